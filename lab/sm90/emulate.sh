#!/usr/bin/env bash
# emulate.sh [KEY ...]: builds lab/sm90/out/libemulated.so, the tests' fake CUDA driver with these units of family sm90 (default: those below)
# on an emulated GPU, one CTA at a time: attend_compute has the rows of its cluster in one CTA. Then
#   KVLOOM_TEST_DRIVER=lab/sm90/out/libemulated.so build/release/bin/test_cuda --gtest_filter=...
# runs tests on it. Needs build/release with kvloom and test_cuda. KVLOOM_TIMELINE=1: units with marks of time, which GpuTimeline.* wants. KVLOOM_RACECHECK=1: every lane arrives (block/arriving.cuh).
set -euo pipefail
cd "$(dirname "$0")/../.."
out=lab/sm90/out
mkdir -p $out
keys=("$@")
[ $# -gt 0 ] || keys=(attend.sm90.bf16.d128.paged attend.sm90.bf16.d128.ragged attend.sm90.f16.d64.paged attend.sm90.bf16.d64.paged attend.sm90.bf16.d256.paged
  attend.sm90.bf16.d128.paged.mask attend.sm90.bf16.d128.paged.alibi attend.sm90.f16.o-f32.d64.ragged.mask attend.sm90.bf16.d192-128.paged attend.sm90.bf16.o-f16.d96.paged)
flags="${KVLOOM_RACECHECK:+-DKVLOOM_RACECHECK} -std=c++20 -O2 -g -w -fPIC -I$out -Ilab/sm90/emulator -Ilab/sm80/emulator -I."
: > $out/emulated.inc
: > $out/jobs
objects=""
for key in "${keys[@]}"; do
  u=${key//[.-]/_}
  echo "UNIT($u, \"$key\")" >> $out/emulated.inc
  # A cluster's rows in one CTA: as many computing warpgroups, and tiles of half the keys, so that descriptors reach all of shared memory.
  build/release/bin/kvloom cache show "$key" --arch sm_90a ${KVLOOM_TIMELINE:+--timeline} | python3 -c '
import re, sys
for line in sys.stdin:
    if " kCompute{" in line and "ctas = 2" in line:
        line = re.sub(r"tile_rows = (\d+)", lambda m: f"tile_rows = {2 * int(m.group(1))}", line).replace("ctas = 2", "ctas = 1")
        line = re.sub(r"tile_kv = (\d+)", lambda m: f"tile_kv = {int(m.group(1)) // 2}", line)
    sys.stdout.write(line)' > $out/$u.cu
  echo "g++ $flags -Dattend_memory=attend_memory_$u -Dattend_memory_32=attend_memory_32_$u -Dattend_memory_32_facts=attend_memory_32_${u}_facts -Dattend_memory_facts=attend_memory_${u}_facts -Dattend_small=attend_small_$u -Dattend_small_facts=attend_small_${u}_facts -Dattend_compute=attend_compute_$u -Dattend_mixed=attend_mixed_$u -Dattend_compute_facts=attend_compute_${u}_facts -Dattend_mixed_facts=attend_mixed_${u}_facts -x c++ -c $out/$u.cu -o $out/$u.o" >> $out/jobs
  objects+=" $out/$u.o"
done
for f in lab/sm80/emulator/simt lab/sm90/emulator/machine tests/cuda/fake_driver tests/cuda/fake_kernels tests/cuda/fake_machine; do
  echo "g++ $flags -c $f.cc -o $out/$(basename $f).o" >> $out/jobs
  objects+=" $out/$(basename $f).o"
done
rm -f $out/libemulated.so
xargs -P 2 -I{} sh -c '{}' < $out/jobs
g++ -shared -Wl,-Bsymbolic -o $out/libemulated.so $objects build/release/kvloom/libkvloom.a -lpthread
