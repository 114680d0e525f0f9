#!/usr/bin/env python3
"""tools/gpu_counters.py with an ncu and a kvloom that only say what they are asked, and the page's words for what it writes."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import gpu_counters  # noqa: E402
import performance_page  # noqa: E402

KVLOOM = """#!/bin/bash
case "$1" in
  doctor) echo '{"machine": {"cpu": "a stub", "commit": "c0ffee"}}' ;;
  bench) echo '{"presets": [], "rows": [{"shape": "one"}, {"shape": "page1"}, {"shape": "page16"}, {"shape": "fails"}]}' ;;
esac
"""
# Counts 2 for the first counter asked for, 4 for the second, ...; says nothing of the row that fails.
NCU = """#!/bin/bash
echo "$@" >> "$ASKED"
while [ $# -gt 0 ]; do
  [ "$1" = --metrics ] && names=$2
  [ "$1" = --filter ] && row=$2
  shift
done
echo "==PROF== Connected to process 1 (kvloom)"
[ "$row" = "=fails" ] && { echo "no such kernel" >&2; exit 1; }
line='"ID","Kernel Name","Grid Size"' units='"","",""' values='"0","attend_compute","(132, 1, 1)"' n=0
for name in ${names//,/ }; do n=$((n + 2)); line="$line,\\"$name\\""; units="$units,\\"x\\""; values="$values,\\"1,00$n\\""; done
printf '%s\\n%s\\n%s\\n' "$line" "$units" "$values"
"""


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for program, text in (("kvloom", KVLOOM), ("ncu", NCU)):
            (folder / program).write_text(text)
            (folder / program).chmod(0o755)
        out = folder / "counters.json"
        done = subprocess.run([sys.executable, str(ROOT / "tools" / "gpu_counters.py"), "--kvloom", str(folder / "kvloom"), "--json", str(out)], capture_output=True, text=True,
                              env={"PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin", "ASKED": str(folder / "asked")})
        assert done.returncode == 1, done  # a row failed, and says why
        data = json.loads(out.read_text())
        assert data["machine"]["commit"] == "c0ffee"
        one, page1, page16, fails = data["rows"]
        assert fails == {"shape": "fails", "why": "no such kernel"}, fails
        assert (one["kernel"], one["us"], one["sm_mhz"]) == ("attend_compute", 1.002, 0.001), one
        assert one["active"] == round(100 * 1006 / 1008, 2) and "elapsed" not in one
        assert set(gpu_counters.COUNTERS) - {"elapsed"} <= set(page16)
        asked = (folder / "asked").read_text().splitlines()
        assert [line.split("--filter ")[1].split()[0] for line in asked] == ["=one", "=page1", "=page16", "=fails"]
        data["rows"][1].update(tensor_cycles=91, dram=1, l2=1, exp=1, issue=1, shared=1, active=97)
        data["rows"][2].update(tensor_cycles=1, dram=40, l2=1, exp=1, issue=1, shared=1, active=80)
        table = "\n".join(performance_page.counters_table(data))
        assert "| tensor cores |" in table and "| latency; then memory; launch and tail (20 % of the time an SM has no work) |" in table, table
        assert "not counted: no such kernel" in table, table
    print("gpu_counters.py: fine")


if __name__ == "__main__":
    main()
