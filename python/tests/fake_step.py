"""A step on the driver without a GPU: an engine, a cache in pages, rows of q and out. Fixtures that test_fake_gpu*.py import."""

import numpy as np
import pytest

import kvloom
import reference
from exporters import Exchange, bf16, from_bf16
from fake_gpu import FakeGpu
from reference import close

HEADS, KV_HEADS, DIM, PAGE, PAGES, REQUESTS, TOKENS = 4, 2, 64, 16, 60, 4, 16
SPEC = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "dtype": "bf16", "causal": True}


@pytest.fixture(scope="session")
def gpu():
    made = FakeGpu()
    made.add_kernel("attend.any.bf16.d64.paged.causal", kvloom.Spec(**SPEC, page_size=PAGE))
    made.add_kernel("attend.any.bf16.d64.ragged.causal", kvloom.Spec(**SPEC))
    return made


@pytest.fixture(autouse=True)
def default_stream():
    Exchange.stream = 0
    yield
    Exchange.stream = 0x5EED0


def make_engine(page_size=PAGE, **fields):
    options = {"backend": "cuda", "policy": "stream", "max_requests": REQUESTS, "max_query_tokens": TOKENS, "max_kv_tokens": 4000, **fields}
    return kvloom.Engine(kvloom.Spec(**SPEC, page_size=page_size), **options)


@pytest.fixture
def engine(gpu):
    return make_engine()


class Cache:
    """K and V in pages on the device, and a table of [REQUESTS, 15] page ids, no page in two rows."""

    def __init__(self, gpu, rng):
        self.host = [from_bf16(bf16(rng.standard_normal((PAGES, PAGE, KV_HEADS, DIM), dtype=np.float32))) for _ in "kv"]
        self.k, self.v = map(gpu.put_bf16, self.host)
        self.table = rng.permutation(PAGES).reshape(REQUESTS, 15)

    def check(self, q, out, q_len, kv_len):
        """Rows of `out` against REF of the lengths."""
        begin = 0
        for r, (n, m) in enumerate(zip(q_len, kv_len)):
            keys = [pool[self.table[r]].reshape(-1, KV_HEADS, DIM)[:m] for pool in self.host]
            wanted = reference.attention(q[begin : begin + n], *keys, causal=True)[0]
            close(out[begin : begin + n], wanted, "bf16")
            begin += n


@pytest.fixture
def cache(gpu, rng):
    return Cache(gpu, rng)


@pytest.fixture
def rows(gpu, rng):
    """q as it is, q and out on the device, of as many rows as ever."""
    q = from_bf16(bf16(rng.standard_normal((TOKENS, HEADS, DIM), dtype=np.float32)))
    return q, gpu.put_bf16(q), gpu.put_bf16(np.zeros_like(q))


def indptr(lengths):
    return np.cumsum([0, *lengths])


Q_LEN, KV_LEN = [1, 2, 4, 1], [100, 70, 200, 30]
SIZES = {"num_tokens": TOKENS, "max_q_len": 4}
