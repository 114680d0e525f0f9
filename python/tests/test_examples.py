"""examples/python: each runs by itself, and checks itself."""

import importlib.util
import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted(p for p in (pathlib.Path(__file__).parents[2] / "examples" / "python").glob("*.py") if p.stem != "arrays")

NEEDS = {"generate_batch": ("torch", "transformers", "psutil")}  # the others: NumPy


def test_they_are_there():
    assert len(EXAMPLES) >= 7 and set(NEEDS) <= {p.stem for p in EXAMPLES}


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda p: p.stem)
def test_example(program, tmp_path):
    missing = [m for m in NEEDS.get(program.stem, ()) if importlib.util.find_spec(m) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
