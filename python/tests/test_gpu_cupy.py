"""The package on a GPU with CuPy's arrays alone (KVLOOM_TEST_GPU=1 says that there is one): they are read and written where they are, outputs are CuPy's,
work goes into CuPy's current stream."""

import os

import numpy as np
import pytest

import kvloom
import kvloom.flashinfer as flashinfer
import reference
from reference import close

if os.environ.get("KVLOOM_TEST_GPU") != "1":
    pytest.skip("no GPU is promised (KVLOOM_TEST_GPU=1)", allow_module_level=True)
cupy = pytest.importorskip("cupy")

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
RNG = np.random.default_rng(7)


def normal(*shape):
    return cupy.asarray(RNG.standard_normal(shape).astype("float16"))


def pools(pages=12):
    return [normal(pages, PAGE, KV_HEADS, DIM) for _ in "kv"]


def attend(q, kv, ids, kv_len):
    keys = [cupy.asnumpy(p)[ids].reshape(-1, KV_HEADS, DIM)[:kv_len] for p in kv]
    return reference.attention(cupy.asnumpy(q), *keys, causal=True)


def make_engine():
    spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="f16", page_size=PAGE, causal=True)
    return kvloom.Engine(spec, max_requests=8, max_query_tokens=256, backend="cuda")


def test_attention():
    q, k, v = normal(40, HEADS, DIM), normal(100, KV_HEADS, DIM), normal(100, KV_HEADS, DIM)
    o, lse = kvloom.attention(q, k, v, causal=True, return_lse=True)
    assert isinstance(o, cupy.ndarray) and o.dtype == q.dtype and isinstance(lse, cupy.ndarray)
    wanted, wanted_lse = reference.attention(*map(cupy.asnumpy, (q, k, v)), causal=True)
    close(cupy.asnumpy(o), wanted, "f16", "cuda")
    assert np.abs(cupy.asnumpy(lse) - wanted_lse).max() < 2e-3
    out = cupy.empty_like(q)
    assert kvloom.attention(q, k, v, causal=True, out=out) is out
    assert cupy.array_equal(out, o)


def test_steps():
    engine, kv = make_engine(), pools()
    table = np.array([[3, 8, 1, 0], [7, 2, 5, 11]], dtype="int32")
    pages, plan = cupy.asarray(table), engine.plan([50, 20], block_table=table)
    for q_len, kv_len in (([1, 1], [51, 21]), ([5, 3], [60, 64])):
        begins = np.cumsum([0, *q_len])
        engine.replan(plan, kv_len, begins, block_table=table)
        q = normal(int(begins[-1]), HEADS, DIM)
        out = engine.run(plan, q, *kv, pages=pages)
        assert isinstance(out, cupy.ndarray)
        for r in range(2):
            rows = slice(begins[r], begins[r + 1])
            close(cupy.asnumpy(out[rows]), attend(q[rows], kv, table[r], kv_len[r])[0], "f16", "cuda")


def test_the_current_stream_is_taken():
    """What a stream writes late is read after it: in CuPy's current stream, and in one that is given."""
    engine, kv, table = make_engine(), pools(), np.array([[3, 8]], dtype="int32")
    plan, pages, late = engine.plan([30], block_table=table), cupy.asarray(table), normal(1, HEADS, DIM)
    slow = cupy.zeros(1 << 28, dtype="float32")
    engine.run(plan, late, *kv, pages=pages)
    stream = cupy.cuda.Stream(non_blocking=True)
    for explicit in (False, True):
        q = cupy.zeros_like(late)
        cupy.cuda.Device().synchronize()
        with stream:
            for _ in range(20):
                slow += 1.0  # a GiB read and written: half a millisecond each
            q[...] = late
            if not explicit:
                out = engine.run(plan, q, *kv, pages=pages)
        if explicit:
            out = engine.run(plan, q, *kv, pages=pages, stream=stream)
        stream.synchronize()
        close(cupy.asnumpy(out), attend(late, kv, [3, 8], 30)[0], "f16", "cuda")


def test_operations():
    a, b = [(normal(5, 2, 64), cupy.asarray(RNG.standard_normal((5, 2)).astype("float32"))) for _ in "ab"]
    o, lse = kvloom.merge_states(*a, *b)
    wanted = reference.merge([cupy.asnumpy(a[0]), cupy.asnumpy(b[0])], [cupy.asnumpy(a[1]), cupy.asnumpy(b[1])])
    close(cupy.asnumpy(o), wanted[0], "f16")
    close(cupy.asnumpy(lse), wanted[1])
    kv = [cupy.zeros((4, PAGE, KV_HEADS, DIM), dtype="float16") for _ in "kv"]
    k, v = (normal(3, KV_HEADS, DIM) for _ in "kv")
    kvloom.append_kv(k, v, *kv, slots=cupy.asarray([5, 40, -1]))
    for pool, new in zip(kv, (k, v)):
        rows = cupy.asnumpy(pool).reshape(-1, KV_HEADS, DIM)
        assert np.array_equal(rows[[5, 40]], cupy.asnumpy(new)[:2]) and np.count_nonzero(rows.any(axis=(1, 2))) == 2


def test_flashinfer():
    workspace, kv = cupy.empty(64 << 20, dtype="uint8"), pools()
    cache = cupy.stack(kv, axis=1)
    table = [np.array([3, 8, 1]), np.array([7])]
    arrays = [cupy.asarray(np.array(x, dtype="int32")) for x in ([0, 3, 4], [3, 8, 1, 7], [4, 9])]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(*arrays, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float16")
    q = normal(2, HEADS, DIM)
    o, lse = wrapper.run(q, cache, return_lse=True)
    for r, kv_len in enumerate((36, 9)):
        wanted, wanted_lse = attend(q[r : r + 1], kv, table[r], kv_len)
        close(cupy.asnumpy(o[r : r + 1]), wanted, "f16", "cuda")
        assert np.abs(cupy.asnumpy(lse[r : r + 1]) - wanted_lse / np.log(2.0)).max() < 3e-3


def test_wrong_places():
    engine, kv, table = make_engine(), pools(), np.array([[3, 8]], dtype="int32")
    plan, q = engine.plan([30], block_table=table), normal(1, HEADS, DIM)
    with pytest.raises(ValueError, match=r"`q`: expected \[1, 8, 128\] f16 on cuda:0, got \[1, 8, 128\] f16 on cpu; move it there"):
        engine.run(plan, cupy.asnumpy(q), *kv, pages=cupy.asarray(table))
    with pytest.raises((TypeError, ValueError), match="`q`: expected .* f16 on cuda:0, got .* f32"):
        engine.run(plan, q.astype("float32"), *kv, pages=cupy.asarray(table))
