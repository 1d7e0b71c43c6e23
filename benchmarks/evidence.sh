#!/usr/bin/env bash
# Make again what results/ holds, on the GPU of this machine: what is right first, side by side, then what is timed, alone.
#
#     benchmarks/evidence.sh DIR [SECONDS_FOR_RIGHT] [SECONDS_FOR_TIMED]
#
# Records and printed tables go straight into DIR/check and DIR/timing, so that an early end keeps what was done. Every
# step has a limit of its own and is ended with SIGTERM, which pagedbench answers with what it has. PYTHON names the
# interpreter (python3). Exit 0 whatever the verdicts: they are in the tables.
set -u

if [ $# -lt 1 ]; then
    sed -n '2,9s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
out=$1 right=${2:-240} timed=${3:-300}
python=${PYTHON:-python3}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH} COLUMNS=100
mkdir -p "$out/check" "$out/timing" || exit 2
begun=$SECONDS

step() { # FOLDER NAME SECONDS COMMAND...: one step within its limit, its table in FOLDER/NAME.txt
    local folder=$1 name=$2 limit=$3
    shift 3
    timeout -k 5 "$limit" "$@" >"$out/$folder/$name.txt" 2>"$out/$folder/$name.err"
    echo "$((SECONDS - begun)) s: $folder/$name ended with $?"
}
bench() { # NAME SECONDS ARGUMENTS...: a pagedbench command, its records in timing/NAME.jsonl
    local name=$1 limit=$2
    shift 2
    step timing "$name" "$limit" "$python" -m pagedbench "$@" --device cuda --json "$out/timing/$name.jsonl"
}

"$here/benchmarks/all_backends.sh" "$out/check" "$right" full "docs edge features models" \
    torch flash-attn-3 triton flash-attn torch-varlen transformers >"$out/check/all.txt" 2>&1 &
"$here/benchmarks/all_backends.sh" "$out/check/compiling" "$right" quick "docs edge features" \
    flash-attn-4 flashinfer flashinfer-fa3 flashinfer-cuda-cores flex >"$out/check/compiling.txt" 2>&1 &
step check long "$right" "$python" -m pagedbench run long --no-timing --device cuda \
    -b torch -b flash-attn-3 -b triton --json "$out/check/long.jsonl" &
step check selftest "$right" "$python" -m pagedbench selftest --device cuda --jobs 4 \
    --lengths 70,1000,8192,32768,131072 --json "$out/check/selftest.jsonl" &
step check gpu-tests "$right" "$python" -m pytest -o addopts= -q -p no:cacheprovider -n 4 -m gpu "$here/tests" &
wait

limit=$((SECONDS + timed))
left() { echo $((limit > SECONDS ? limit - SECONDS : 1)); }
fa3=flash-attn-3
step timing cost "$(left)" "$python" "$here/benchmarks/check_cost.py" --device cuda --backend torch --backend $fa3 --backend triton
step timing clock "$(left)" "$python" "$here/benchmarks/validate_clock.py" --json "$out/timing/clock.json"
bench docs "$(left)" run docs-decode docs-varlen -b torch -b $fa3 -b triton
bench stages "$(left)" compare $fa3:varlen $fa3:decode "$here/benchmarks/stages.yaml" --max-seconds 0.5
step timing identical "$(left)" "$python" "$here/benchmarks/identical_sides.py" $fa3:decode docs-decode --times 20 \
    --max-seconds 0.4 --json "$out/timing/identical.json"
bench crossover "$(left)" compare $fa3:varlen $fa3:decode "$here/benchmarks/crossover.yaml" --max-seconds 0.1 --precision 2%
bench shapes "$(left)" run "$here/benchmarks/shapes.yaml" -b $fa3:decode -b triton:decode -b flashinfer:decode \
    -b $fa3:varlen -b torch-varlen:varlen -b flash-attn-4:varlen --max-seconds 0.2
bench shapes-256 "$(left)" run "$here/benchmarks/shapes-256.yaml" -b flash-attn:decode -b flash-attn:varlen \
    -b $fa3:decode --max-seconds 0.2
step timing triton "$(left)" "$python" "$here/benchmarks/triton_decode.py" --json "$out/timing/triton.json"
bench models "$(left)" run docs models -b torch -b $fa3 -b triton --max-seconds 0.1 --precision 5%
