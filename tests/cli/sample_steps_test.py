#!/usr/bin/env python3
"""benchmarks/sample_steps.py: every kind is there, weights add up to the trace, the same file gives the same sample."""
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
SCRIPT = ROOT / "benchmarks" / "sample_steps.py"


def step(number, q_len, keys):
    n = len(q_len)
    return {"step": number, "page_size": 16, "q_len": q_len, "kv_len": [keys] * n, "shared_with": [-1] * n, "shared_tokens": [0] * n}


def run(*words):
    return subprocess.run([sys.executable, SCRIPT, *map(str, words)], capture_output=True, text=True)


def main():
    with tempfile.TemporaryDirectory() as folder:
        steps, out, again, one = (pathlib.Path(folder) / name for name in ("steps.jsonl", "out.jsonl", "again.jsonl", "one.jsonl"))
        lines = [step(i, [1, 1], 100 + (i * 37) % 1000) for i in range(1000)] + [step(1000 + i, [1, 64], 500 + i) for i in range(90)] + [step(1090 + i, [64], 64) for i in range(3)]
        steps.write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert run(steps, out, "--count", 40).returncode == 0
        assert run(steps, again, "--count", 40).returncode == 0
        assert out.read_text() == again.read_text()
        sample = [json.loads(line) for line in out.read_text().splitlines()]
        weights = {kind: sum(s["weight"] for s in sample if s["kind"] == kind) for kind in ("decode", "mixed", "prefill")}
        assert weights == {"decode": 1000, "mixed": 90, "prefill": 3}, weights
        assert 36 <= len(sample) <= 44, len(sample)
        keys = lambda list: sum(s.get("weight", 1) * sum(s["kv_len"]) for s in list)
        assert abs(keys(sample) / keys(lines) - 1) < 0.01, "the sum over the sample stands for the trace"
        assert [s["step"] for s in sample] == sorted(s["step"] for s in sample)
        assert run(steps, one, "--count", 1).returncode == 0 and one.read_text()
        steps.write_text("")
        empty = run(steps, out)
        assert empty.returncode == 1 and "got no step" in empty.stderr, empty.stderr
        assert run(steps, out, "--count", 0).returncode == 2


if __name__ == "__main__":
    main()
