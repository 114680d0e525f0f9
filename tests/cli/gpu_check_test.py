#!/usr/bin/env python3
"""tools/gpu_check.sh with a kvloom that only says what it was asked: which commands the steps run, and what becomes of a failure."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VARIANTS = sorted(path.stem for path in (ROOT / "examples" / "variants").glob("*.h"))

STUB = """#!/bin/bash
echo "$@" >> "$ASKED"
while [ $# -gt 0 ]; do
  [ "$1" = --json ] && json=$2
  [ "$1" = --variant ] && variant=$2
  [ "$1" = --case ] && case=$2
  shift
done
[ "$(basename "$variant") $case" = "$CRASHES" ] && exit 139
failed=0
[ "$(basename "$variant") $case" = "$FAILS" ] && failed=1
[ -n "$json" ] && echo "{\\"cases\\": 1, \\"runs\\": 42, \\"failed\\": $failed}" > "$json"
exit $failed
"""


def run(folder, steps, **environment):
    stub = folder / "kvloom"
    stub.write_text(STUB)
    stub.chmod(0o755)
    asked = folder / "asked"
    asked.write_text("")
    base = {"PATH": "/usr/local/bin:/usr/bin:/bin", "STEPS": steps, "ASKED": str(asked)}
    done = subprocess.run(["bash", str(ROOT / "tools" / "gpu_check.sh"), str(folder / "out"), str(folder)], env={**base, **environment}, capture_output=True, text=True)
    return done, asked.read_text().splitlines()


def test_variants(folder):
    done, asked = run(folder, "variants")
    assert done.returncode == 0, done
    assert len(asked) == 4 * len(VARIANTS) and all("check --backend cuda --variant" in line for line in asked), asked
    results = json.loads((folder / "out" / "variants.json").read_text())["variants"]
    assert sorted({r["variant"] for r in results}) == VARIANTS, results
    assert all(r["exit"] == 0 and r["report"]["runs"] == 42 for r in results), results


def test_failures(folder):
    environment = {"FAILS": "soft_cap_sink.h 3:1", "CRASHES": "prefix_lm.h 3:0", "SEED": "3", "VARIANT_CASES": "0 1"}
    done, asked = run(folder, "variants", **environment)
    assert done.returncode == 1 and len(asked) == 2 * len(VARIANTS), done
    assert "12 cases, 2 failed" in done.stdout and "soft_cap_sink-1: exit status 1" in done.stdout, done.stdout
    results = {(r["variant"], r["case"]): r for r in json.loads((folder / "out" / "variants.json").read_text())["variants"]}
    assert results["soft_cap_sink", "3:1"]["report"]["failed"] == 1
    crashed = results["prefix_lm", "3:0"]
    assert crashed["exit"] == 139 and crashed["report"] is None, crashed


def test_arguments(folder):
    done, asked = run(folder, "replay bench", BENCH="--preset hopper --even-lengths")
    assert done.returncode == 0, done
    assert asked[0].startswith("replay --backend cuda --layers 32"), asked
    assert asked[1] == f"bench --backend cuda --preset hopper --even-lengths --json {folder}/out/bench.json", asked
    assert run(folder, "bench")[1] == [f"bench --backend cuda --json {folder}/out/bench.json"]


if __name__ == "__main__":
    for test in (test_variants, test_failures, test_arguments):
        with tempfile.TemporaryDirectory() as name:
            test(pathlib.Path(name))
    print("3 passed, 0 failed")
