#!/usr/bin/env bash
# Check scenarios with many backends at once, within a time limit, and print backend x verdict. Not for timing.
#
#     benchmarks/all_backends.sh DIR SECONDS SUITE "SCENARIOS" [BACKEND...]
#     benchmarks/all_backends.sh out 240 quick "docs edge" flash-attn flashinfer
#
# One process a backend, side by side. What is done is on disk at any moment: DIR/BACKEND.jsonl has a record a cell
# (.jsonl.partial while it runs, and when it was killed), DIR/BACKEND.log what was printed, DIR/BACKEND.exit the exit
# code or how it was ended. All of it is over within SECONDS: what still runs gets SIGTERM, so that it can say what it
# has, and SIGKILL, with all that it started, when it does not end. PYTHON names the interpreter (python3).
set -u

if [ $# -lt 4 ]; then
    sed -n '2,10s/^# \{0,1\}//p' "$0" >&2
    exit 2
fi
out=$1 seconds=$2 suite=$3 scenarios=$4
shift 4
backends=("$@")
if [ ${#backends[@]} -eq 0 ]; then
    backends=(torch torch-varlen triton flash-attn flash-attn-3 flash-attn-4 flashinfer flashinfer-fa3
        flashinfer-cuda-cores transformers transformers-eager flex)
fi
python=${PYTHON:-python3}
if ! [[ $seconds =~ ^[1-9][0-9]*$ ]]; then
    echo "SECONDS must be a whole number, not '$seconds'" >&2
    exit 2
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}
mkdir -p "$out" || exit 2

now() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }
start=$(now)
end=$((start + seconds * 1000 - (seconds > 4 ? 700 : 300)))      # the table is printed after it
grace=$((seconds >= 20 ? 5000 : seconds * 250))
stop=$((end - grace))                                            # of this, processes have `grace` to end by themselves

declare -A group=()
for backend in "${backends[@]}"; do
    name=${backend//[^A-Za-z0-9._-]/_}
    rm -f "$out/$name.jsonl" "$out/$name.jsonl.partial" "$out/$name.exit"
    # A session of its own, so that its workers can be ended with it.
    # shellcheck disable=SC2086  # scenarios are several words
    setsid bash -c 'log=$1 code=$2; shift 2; "$@" >"$log" 2>&1; echo $? >"$code"' _ \
        "$out/$name.log" "$out/$name.exit" \
        "$python" -m pagedbench check $scenarios --suite "$suite" --backend "$backend" --json "$out/$name.jsonl" &
    group[$name]=$!
done

running() { # the names of what is not over yet; a group exists only from a moment after the start
    local name
    for name in "${!group[@]}"; do
        kill -0 "${group[$name]}" 2>/dev/null || kill -0 -- "-${group[$name]}" 2>/dev/null || continue
        echo "$name"
    done
}
send() { # SIGNAL: to every process of what still runs
    local name
    for name in $(running); do
        kill "-$1" -- "-${group[$name]}" 2>/dev/null || kill "-$1" "${group[$name]}" 2>/dev/null
    done
}
family() { # PID: all that it started, and all that these started; workers and compilers have sessions of their own
    local child
    for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do
        echo "$child"
        family "$child"
    done
}
trap 'stop=0; early=$(($(now) + grace)); [ "$early" -lt "$end" ] && end=$early' TERM INT HUP

while [ -n "$(running)" ] && [ "$(now)" -lt "$stop" ]; do
    sleep 0.1
done
late=$(running)
orphans=()
for name in $late; do
    echo "stopped" >"$out/$name.exit"
    orphans+=($(family "${group[$name]}"))
done
send TERM
while [ -n "$(running)" ] && [ "$(now)" -lt "$end" ]; do
    sleep 0.1
done
for name in $(running); do
    echo "killed" >"$out/$name.exit"
done
send KILL
[ ${#orphans[@]} -gt 0 ] && kill -KILL "${orphans[@]}" 2>/dev/null

# -S -E: no site packages, so that nothing but the standard library is waited for.
"$python" -S -E - "$out" "${!group[@]}" <<'TABLE' | tee "$out/summary.txt"
import collections, json, pathlib, sys

out, names = pathlib.Path(sys.argv[1]), sorted(sys.argv[2:])
counts = {}
for name in names:
    counts[name] = collections.Counter()
    records = next(filter(pathlib.Path.exists, (out / f"{name}.jsonl", out / f"{name}.jsonl.partial")), None)
    for line in records.read_text(errors="replace").splitlines() if records else ():
        try:
            counts[name][json.loads(line)["verdict"]] += 1
        except (ValueError, KeyError, TypeError):
            counts[name]["(cut off)"] += 1
verdicts = sorted({verdict for count in counts.values() for verdict in count}, key=lambda v: (v != "PASS", v))
widths = [max(len(verdict), 5) for verdict in verdicts]
first = max(map(len, ["backend", *names]))
print("backend".ljust(first), *(v.rjust(w) for v, w in zip(verdicts, widths)), "  end", sep="  ")
for name in names:
    code = out / f"{name}.exit"
    ended = code.read_text().strip() if code.exists() else "?"
    row = (str(counts[name][v] or "-").rjust(w) for v, w in zip(verdicts, widths))
    print(name.ljust(first), *row, f"  exit {ended}" if ended.isdigit() else f"  {ended}", sep="  ")
    if not counts[name]:
        log = out / f"{name}.log"
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()] if log.exists() else []
        for line in said[-2:]:
            print(" " * first, line[:100], sep="  ")
TABLE
echo "$(($(now) - start)) ms of ${seconds} s"
