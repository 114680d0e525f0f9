import os
import pathlib
import sys
import tempfile

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

from flashinfer_support import framework_of, frameworks  # noqa: E402 (found by the path above)

# Variants are compiled for this run, and leave nothing behind. Kernels of a GPU take minutes: a cache that is given is used.
if os.environ.get("KVLOOM_TEST_GPU") != "1" or "KVLOOM_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="kvloom-test-cache-")
    os.environ["KVLOOM_CACHE_DIR"] = _cache.name


@pytest.fixture
def rng():
    return np.random.default_rng(7)


@pytest.fixture(params=frameworks)
def fw(request):
    """A framework that kvloom.flashinfer takes tensors of."""
    return framework_of(request.param)


@pytest.fixture
def workspace(fw):
    return fw.empty((1 << 20,), "uint8")
