#!/usr/bin/env bash
# gpu_check.sh OUT [BIN]: everything that a machine with a GPU shows: doctor, compile, tests, check, sanitizer, replay, bench. JSON and logs go
# to the folder OUT. Needs the programs kvloom and test_cuda (BIN: their folder, default build/release/bin), a driver, and NVRTC (a CUDA
# toolkit or a Python package); the tests read tests/cases and examples/variants: run it from the source tree, or beside copies of those two.
# compute-sanitizer is run where it is installed; the Python package's tests where PYTHON (default python3) has it, torch and pytest; generate
# (generate_batch of transformers, tokens a second) where it has transformers.
# RESULTS=NAME: what check, replay and bench measured goes to benchmarks/results/NAME_*.json, too, and docs/PERFORMANCE.md is made anew of all files there.
# STEPS (default: all, in this order: doctor warm tests python generate check variants sanitize replay bench), CASES, SEED, TIMEOUT, REPLAY and BENCH (arguments) may be
# set. Exit status 1 if any step failed.
set -uo pipefail
out=${1:?usage: gpu_check.sh OUT [BIN]}
bin=${2:-$(dirname "$0")/../build/release/bin}
kvloom=$bin/kvloom
here=$(cd "$(dirname "$0")/.." && pwd)
steps=${STEPS:-doctor warm tests python generate check variants sanitize replay bench}
mkdir -p "$out"
export KVLOOM_CACHE_DIR=${KVLOOM_CACHE_DIR:-$out/cache}
bad=0
step() {  # NAME COMMAND...: runs it, keeps its words
  local name=$1
  shift
  echo "== $name: $*"
  "$@" > "$out/$name.log" 2> "$out/$name.err" || { echo "   FAILED ($?), see $out/$name.err"; tail -5 "$out/$name.err"; bad=1; }
  tail -"${LINES_SHOWN:-4}" "$out/$name.log"
}
wanted() { [[ " $steps " == *" $1 "* ]]; }

# Small enough for a sanitizer: each policy, a graph, a merge, an append, one run of a thousand, steps of both kinds, the planner on the device.
small='GpuEngine.EveryPolicyIsRight:GpuEngine.VariantsGetTheirArrays:GpuGraph.B71*:GpuGraph.StepsOfUpTo32Rows:GpuOps.B07*:GpuOps.AppendRotates:GpuOps.RopeInPlace:GpuStreams.B14*:GpuMixed.PartsOfBothKinds:GpuStream.KindsThatChangeFromItemToItem:GpuDevicePlan.RunsAndHasTheHostsBytes'
sanitize() {
  local tool
  for tool in memcheck racecheck initcheck synccheck; do
    # KVLOOM_RACECHECK: kernels whose order between lanes racecheck can see (kvloom/device/sm80/ring.cuh).
    step "sanitize_$tool" env KVLOOM_RACECHECK=$([ "$tool" = racecheck ] && echo 1 || echo 0) KVLOOM_TEST_GPU=1 KVLOOM_TEST_SECONDS=1500 timeout 1800 compute-sanitizer --tool "$tool" --error-exitcode 9 \
      "$bin/test_cuda" --gtest_brief=1 "--gtest_filter=${SANITIZE_FILTER:-$small}"
  done
}

# Users' variants, several processes side by side: each case has kernels of its own to compile, most of its time. Which keys these cases are
# bent to: cli/check/gpu_case.cc. variants.json: what every one of them came to.
variants() {
  local folder=$out/variants file first=1
  rm -rf "$folder" && mkdir -p "$folder"
  for file in "$here"/examples/variants/*.h; do
    for index in ${VARIANT_CASES:-0 1 2 10}; do printf '%s\n%s\n' "$file" "$index"; done
  done > "$folder/list"
  xargs -P "${VARIANT_JOBS:-8}" -d '\n' -n 2 bash -c '
    name=$(basename "$4" .h)-$5
    timeout 300 "$0" check --backend cuda --variant "$4" --case "$1:$5" --timeout "$2" --json "$3/$name.json" > "$3/$name.log" 2> "$3/$name.err"
    status=$?
    echo "{\"variant\": \"$(basename "$4" .h)\", \"case\": \"$1:$5\", \"exit\": $status, \"report\": $(cat "$3/$name.json" 2> /dev/null || echo null)}" > "$3/$name.result"
    [ $status -eq 0 ] || { echo "$name: exit status $status"; tail -3 "$3/$name.log" "$3/$name.err"; }
    exit $((status != 0))' "$kvloom" "${SEED:-1}" "${TIMEOUT:-60}" "$folder" < "$folder/list"
  local status=$?
  {
    echo '{"backend": "cuda", "variants": ['
    for file in "$folder"/*.result; do
      [ $first -eq 1 ] || echo ','
      first=0
      cat "$file"
    done
    echo ']}'
  } > "$out/variants.json"
  echo "variants: $(cat "$folder"/*.result | wc -l) cases, $(cat "$folder"/*.result | grep -o '"exit": [1-9]' | wc -l) failed"
  return $status
}

if wanted doctor; then
  LINES_SHOWN=30 step doctor "$kvloom" doctor
  "$kvloom" doctor --json "$out/doctor.json"
fi
if wanted warm; then
  "$kvloom" check --print-keys > "$out/keys.txt"
  step warm bash -c "time '$kvloom' cache warm --file '$out/keys.txt'"
  grep real "$out/warm.err"
fi
wanted tests && LINES_SHOWN=12 step tests env KVLOOM_TEST_GPU=1 "$bin/test_cuda" '--gtest_filter=*Gpu*-Cuda*' "--gtest_output=json:$out/tests.json"
if wanted python; then
  if "${PYTHON:-python3}" -c 'import kvloom, torch, pytest' 2> /dev/null; then
    step python env KVLOOM_TEST_GPU=1 "${PYTHON:-python3}" -m pytest -q -p no:cacheprovider "$here"/python/tests/test_gpu*.py
  else
    echo "== python: ${PYTHON:-python3} has not all of kvloom, torch and pytest: not run"
  fi
fi
if wanted generate; then
  if "${PYTHON:-python3}" -c 'import kvloom, torch, transformers' 2> /dev/null; then
    LINES_SHOWN=20 step generate timeout 180 "${PYTHON:-python3}" "$here/examples/python/generate_batch.py" --json "$out/generate_batch.json"
  else
    echo "== generate: ${PYTHON:-python3} has not all of kvloom, torch and transformers: not run"
  fi
fi
wanted check && LINES_SHOWN=40 step check "$kvloom" check --backend cuda --cases "${CASES:-1000}" --seed "${SEED:-1}" --timeout "${TIMEOUT:-60}" --json "$out/check.json"
wanted variants && LINES_SHOWN=40 step variants variants
if wanted sanitize; then
  if command -v compute-sanitizer > /dev/null; then sanitize; else echo "== sanitize: no compute-sanitizer on PATH: not run"; fi
fi
# shellcheck disable=SC2086
wanted replay && LINES_SHOWN=60 step replay "$kvloom" replay --backend cuda ${REPLAY:---layers 32 --requests 200} --json "$out/replay.json"
# shellcheck disable=SC2086
wanted bench && LINES_SHOWN=200 step bench "$kvloom" bench --backend cuda ${BENCH:-} --json "$out/bench.json"
[ "$KVLOOM_CACHE_DIR" = "$out/cache" ] && rm -rf "$out/cache"
if [ -n "${RESULTS:-}" ]; then
  for name in check replay bench; do
    if wanted "$name" && [ -s "$out/$name.json" ]; then cp "$out/$name.json" "$here/benchmarks/results/${RESULTS}_$name.json"; fi
  done
  step page python3 "$here/tools/performance_page.py"
fi
exit $bad
