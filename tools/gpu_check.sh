#!/usr/bin/env bash
# gpu_check.sh OUT [KVLOOM]: everything that a machine with a GPU shows: doctor, compile, check, bench. JSON and logs go to the folder OUT.
# Needs the kvloom binary alone (default: build/release/bin/kvloom), a driver, and NVRTC (a CUDA toolkit or a Python package).
# CASES, SEED, TIMEOUT and BENCH_FILTER may be set.
set -uo pipefail
out=${1:?usage: gpu_check.sh OUT [KVLOOM]}
kvloom=${2:-$(dirname "$0")/../build/release/bin/kvloom}
mkdir -p "$out"
export KVLOOM_CACHE_DIR=${KVLOOM_CACHE_DIR:-$out/cache}
bad=0
step() {  # NAME COMMAND...: runs it, keeps its words
  local name=$1
  shift
  echo "== $name: $*"
  "$@" > "$out/$name.log" 2> "$out/$name.err" || { echo "   FAILED ($?), see $out/$name.err"; tail -5 "$out/$name.err"; bad=1; }
  tail -${LINES_SHOWN:-4} "$out/$name.log"
}
LINES_SHOWN=30 step doctor "$kvloom" doctor
"$kvloom" doctor --json "$out/doctor.json"
"$kvloom" check --print-keys > "$out/keys.txt"
step warm bash -c "time '$kvloom' cache warm --file '$out/keys.txt'"
grep real "$out/warm.err"
LINES_SHOWN=40 step check "$kvloom" check --backend cuda --cases "${CASES:-300}" --seed "${SEED:-1}" --timeout "${TIMEOUT:-60}" --json "$out/check.json"
LINES_SHOWN=60 step bench "$kvloom" bench --backend cuda --repeat 12 --filter "${BENCH_FILTER:-}" --json "$out/bench.json"
rm -rf "$out/cache"
exit $bad
