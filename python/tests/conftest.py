import os
import pathlib
import sys
import tempfile

import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

# Variants are compiled for this run, and leave nothing behind. Kernels of a GPU take minutes: a cache that is given is used.
if os.environ.get("KVLOOM_TEST_GPU") != "1" or "KVLOOM_CACHE_DIR" not in os.environ:
    _cache = tempfile.TemporaryDirectory(prefix="kvloom-test-cache-")
    os.environ["KVLOOM_CACHE_DIR"] = _cache.name


@pytest.fixture
def rng():
    return np.random.default_rng(7)
