"""examples/python on a GPU (KVLOOM_TEST_GPU=1 says that there is one): each runs by itself, and checks itself."""

import os
import subprocess
import sys

import pytest

from test_examples import EXAMPLES

if os.environ.get("KVLOOM_TEST_GPU") != "1":
    pytest.skip("no GPU is promised (KVLOOM_TEST_GPU=1)", allow_module_level=True)

pytest.importorskip("torch", reason="torch is not installed")


@pytest.mark.parametrize("program", [p for p in EXAMPLES if p.stem != "generate_batch"], ids=lambda p: p.stem)
def test_example(program, tmp_path):
    done = subprocess.run([sys.executable, program, "--gpu"], capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no GPU" not in done.stdout
