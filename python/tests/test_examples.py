"""examples/python: each runs by itself, and checks itself."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = sorted((pathlib.Path(__file__).parents[2] / "examples" / "python").glob("*.py"))


def test_they_are_there():
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("program", EXAMPLES, ids=lambda p: p.stem)
def test_example(program, tmp_path):
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout
