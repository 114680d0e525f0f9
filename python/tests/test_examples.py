"""examples/python: each runs by itself, and checks itself."""

import importlib.util
import os
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


def test_a_gpu_without_torch_is_one_line(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError('not installed')\n")
    quick_start = next(p for p in EXAMPLES if p.stem == "quick_start")
    done = subprocess.run([sys.executable, quick_start, "--gpu"], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, timeout=120)
    assert done.returncode == 1
    assert done.stderr == "--gpu: got no torch with a GPU, wanted one; install torch for CUDA, or leave --gpu out\n"
