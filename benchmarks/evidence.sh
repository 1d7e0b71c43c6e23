#!/usr/bin/env bash
# Make again what results/ holds, on the GPU of this machine, a part at a time: each wants the machine to itself.
#
#     benchmarks/evidence.sh DIR compile|right|tests|timed SECONDS
#
# `compile`: every backend's full suite over all shipped scenarios, which compiles what it needs (18 minutes on 16
# cores); called again, it goes on where it ended.
# `right`: the same again, compiled, within 180 seconds; the self-test, the probe of every feature, a cell under memcheck.
# `tests`: the GPU tests, of which some take all of its memory, so nothing else may be on it.
# `timed`: the costs of checks and oracle, clock, stages, identical sides, crossover map, tables, baselines.
#
# Records and printed tables go straight into DIR/check and DIR/timing, so that an early end keeps what was done. Every
# step has a limit of its own and is ended with SIGTERM, which pagedbench answers with what it has. PYTHON names the
# interpreter (python3), CUDA_VISIBLE_DEVICES the GPU. Exit 0 whatever the verdicts: they are in the tables.
set -u

case ${2:-} in compile | right | tests | timed) ;; *)
    sed -n '2,17s/^# \{0,1\}//p' "$0" >&2
    exit 2
    ;;
esac
out=$1 seconds=${3:-600}
python=${PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} COLUMNS=100
export FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED=1 # flash-attn-4 would compile in each process anew
mkdir -p "$out/check" "$out/timing" || exit 2
begun=$SECONDS

left() { echo $((begun + seconds > SECONDS ? begun + seconds - SECONDS : 1)); }
step() { # FOLDER NAME SECONDS COMMAND...: one step within its limit, its table in FOLDER/NAME.txt
    local folder=$1 name=$2 limit=$3 most
    shift 3
    most=$(left)
    timeout -k 20 $((limit < most ? limit : most)) "$@" >"$out/$folder/$name.txt" 2>"$out/$folder/$name.err"
    echo "$((SECONDS - begun)) s: $folder/$name ended with $?"
}
bench() { # NAME SECONDS ARGUMENTS...: a pagedbench command, its records in timing/NAME.jsonl
    local name=$1 limit=$2
    shift 2
    step timing "$name" "$limit" "$python" -m pagedbench "$@" --device cuda --json "$out/timing/$name.jsonl"
}

everyone=()
for backend in torch torch-varlen triton flash-attn flash-attn-3 fa3-fwd flash-attn-4 flashinfer flashinfer-fa3 \
    flashinfer-cuda-cores transformers transformers-eager flex; do
    everyone+=(-b "$backend")
done
suite() { # NAME SECONDS OPTIONS: the full suite over all shipped scenarios with every backend
    local name=$1 limit=$2
    shift 2
    step check "$name" "$limit" "$python" -m pagedbench check docs edge features models long --suite full --device cuda \
        --jobs "$(nproc)" "${everyone[@]}" --json "$out/check/$name.jsonl" "$@"
}
compile() { suite compiling "$seconds" --resume; }
right() {
    suite suite 180
    step check probe 200 "$python" -m pagedbench backends --probe --device cuda
    step check selftest 300 "$python" -m pagedbench selftest --device cuda --jobs 4 \
        --lengths 70,1000,8192,32768,131072 --json "$out/check/selftest.jsonl"
    step check memcheck 60 "$python" -m pagedbench check docs-decode --sanitize memcheck -b triton --device cuda \
        --json "$out/check/memcheck.jsonl"
}
tests() {
    local pytest=("$python" -m pytest -o addopts= -v --tb=short -p no:cacheprovider) bad=$here/tests/runner/test_gpu_isolation.py
    local name
    for name in wild_write assert endless memory scenario_after; do # one by one, so that each tells why it failed, if it did
        step check "gpu-isolation-$name" 90 "${pytest[@]}" "$bad" -k "$name"
    done
    step check gpu-tests 300 "${pytest[@]}" -n 6 -m "gpu and not slow" "$here/tests" --ignore "$bad"
}
timed() {
    local fa3=flash-attn-3
    step timing cost 60 "$python" "$here/benchmarks/check_cost.py" --device cuda --backend torch --backend $fa3 --backend triton
    step timing oracle 30 "$python" "$here/benchmarks/oracle_cost.py"
    step timing clock 60 "$python" "$here/benchmarks/validate_clock.py" --json "$out/timing/clock.json"
    bench docs 60 run docs-decode docs-varlen
    bench stages 60 compare $fa3:varlen $fa3:decode "$here/benchmarks/stages.yaml" --max-seconds 0.5
    step timing identical 90 "$python" "$here/benchmarks/identical_sides.py" $fa3:decode docs-decode --times 20 \
        --max-seconds 0.4 --json "$out/timing/identical.json"
    bench shapes 120 run "$here/benchmarks/shapes.yaml" -b $fa3:decode -b triton:decode -b flashinfer:decode \
        -b $fa3:varlen -b torch-varlen:varlen -b flash-attn-4:varlen --max-seconds 0.2
    bench shapes-256 60 run "$here/benchmarks/shapes-256.yaml" -b flash-attn:decode -b flash-attn:varlen \
        -b $fa3:decode --max-seconds 0.2
    step timing triton 60 "$python" "$here/benchmarks/triton_decode.py" --json "$out/timing/triton.json"
    bench crossover 200 compare $fa3:varlen $fa3:decode "$here/benchmarks/crossover.yaml" --max-seconds 0.1 --precision 2%
    step timing groups 300 "$python" "$here/benchmarks/baseline_groups.py" --same 5 --slowed 2 --json "$out/timing/groups.json"
    step timing gate 300 "$python" "$here/benchmarks/baseline_gate.py" --seconds 290 --json "$out/timing/gate.json"
}
"$2"
