#!/usr/bin/env bash
# cubins.sh OUT [checks | speed | unit ...]: cubins of these units for sm_90a, what ptxas says in OUT/NAME.log; programs `checks` and `times` beside them.
set -euo pipefail
cd "$(dirname "$0")/../.."
export PATH=$PATH:/usr/local/cuda/bin
out=$1
shift
PYTHONPATH=lab/sm80 python3 lab/sm80/units.py $out "$@"
compile() {
  u=$1
  [ "$out/$u.cubin" -nt "$out/$u.cu" ] && [ "$out/$u.cubin" -nt "$out/stamp" ] && return
  flags=-ftz=true
  [[ $u == *_denormals ]] && flags=""
  nvcc -std=c++20 -arch=sm_90a -cubin $flags -I. -Xptxas -v -o $out/$u.cubin $out/$u.cu > $out/$u.log 2>&1 || { echo "$u failed"; head -5 $out/$u.log; }
}
export -f compile
export out
xargs -P 2 -I{} bash -c 'compile {}' < $out/names
flags="-std=c++20 -O2 -w -I. -Ilab/sm80 -I$out -I/usr/local/cuda/include"
libs="build/release/cli/libkvloom_cli_core.a build/release/kvloom/libkvloom.a build/release/kvloom/libkvloom_ref.a"
for p in checks times; do
  g++ $flags -o $out/$p lab/sm80/$p.cc lab/sm80/cuda_machine.cc $libs -static-libstdc++ -static-libgcc -L/usr/local/cuda/lib64 -L/usr/local/cuda/lib64/stubs -lcudart_static -lcuda -ldl -lpthread -lrt
done
