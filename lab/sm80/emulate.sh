#!/usr/bin/env bash
# emulate.sh [unit ...]: builds lab/sm80/out/emulate/emulated, the random cases on an emulated GPU, for these units (default: all of units.py).
# KVLOOM_TIMELINE=1: with marks of time, which are checked too.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${OUT_DIR:-lab/sm80/out/emulate}
PYTHONPATH=lab/sm80 python3 lab/sm80/units.py $out "${@:-checks}"
sed 's/.*/UNIT(&)/' $out/names > $out/emulated.inc
flags="-std=c++20 -O1 -g -w -I$out -Ilab/sm80/emulator -I. -Ilab/sm80 ${KVLOOM_TIMELINE:+-DKVLOOM_TIMELINE}"
g++ $flags -c lab/sm80/emulator/simt.cc -o $out/simt.o
g++ $flags -c lab/sm80/emulator/machine.cc -o $out/machine.o
g++ $flags -c lab/sm80/checks.cc -o $out/checks.o
objects=""
while read -r u; do
  objects+=" $out/$u.o"
  echo "g++ $flags -Dattend_memory=attend_memory_$u -Dattend_compute=attend_compute_$u -Dattend_mixed=attend_mixed_$u -Dattend_small=attend_small_$u -Dlab_tiles=lab_tiles_$u -include lab/sm80/emulator/simt.h -x c++ -c $out/$u.cu -o $out/$u.o"
done < $out/names | xargs -P 2 -I{} sh -c '{}'
objects=$(sed "s#.*#$out/&.o#" $out/names | tr '\n' ' ')
g++ -o $out/emulated $out/checks.o $out/machine.o $out/simt.o $objects ${LIBRARIES:-build/release/cli/libkvloom_cli_core.a build/release/kvloom/libkvloom.a build/release/kvloom/libkvloom_ref.a} -lpthread
