"""attention(): every feature against float64."""

import ml_dtypes
import numpy as np
import pytest

import kvloom
import reference
from reference import close


def tensors(rng, n, m, heads=4, kv_heads=2, d=64, dv=None, dtype=np.float32):
    shapes = (n, heads, d), (m, kv_heads, d), (m, kv_heads, dv or d)
    return [rng.standard_normal(s).astype(np.float32).astype(dtype) for s in shapes]


@pytest.mark.parametrize("n, m", [(1, 1), (1, 300), (5, 9), (33, 33), (70, 200), (9, 5)])
@pytest.mark.parametrize("heads, kv_heads", [(1, 1), (4, 2), (6, 2), (8, 1)])
def test_one_request(rng, n, m, heads, kv_heads):
    q, k, v = tensors(rng, n, m, heads, kv_heads)
    for causal in (False, True):
        o, lse = kvloom.attention(q, k, v, causal=causal, return_lse=True)
        wanted, wanted_lse = reference.attention(q, k, v, causal=causal)
        close(o, wanted)
        close(lse, wanted_lse)


@pytest.mark.parametrize("d, dv", [(16, 16), (80, 80), (128, 128), (256, 256), (192, 128)])
def test_head_dims(rng, d, dv):
    q, k, v = tensors(rng, 7, 40, d=d, dv=dv)
    close(kvloom.attention(q, k, v), reference.attention(q, k, v)[0])


@pytest.mark.parametrize(
    "features",
    [
        {"window_left": 3},
        {"causal": True, "window_left": 0},
        {"window_left": 2, "window_right": 5},
        {"soft_cap": 2.0},
        {"sm_scale": 0.3},
        {"causal": True, "soft_cap": 5.0, "window_left": 10},
    ],
)
def test_features(rng, features):
    q, k, v = tensors(rng, 20, 50)
    o, lse = kvloom.attention(q, k, v, return_lse=True, **features)
    wanted, wanted_lse = reference.attention(q, k, v, **features)
    close(o, wanted)
    close(lse, wanted_lse)


def test_alibi_and_sink(rng):
    q, k, v = tensors(rng, 20, 50)
    slopes = np.array([0.5, 0.25, 0.1, -0.1], np.float32)
    sink = np.array([0.0, 3.0, -2.0, 40.0], np.float32)
    o, lse = kvloom.attention(q, k, v, causal=True, alibi_slopes=slopes, sink=sink, return_lse=True)
    wanted, wanted_lse = reference.attention(q, k, v, causal=True, slopes=slopes, sink=sink)
    close(o, wanted)
    close(lse, wanted_lse)


def test_sigmoid(rng):
    q, k, v = tensors(rng, 20, 50)
    close(kvloom.attention(q, k, v, causal=True, reduction="sum", sigmoid_bias=-2.0), reference.attention(q, k, v, causal=True, sigmoid_bias=-2.0)[0])


@pytest.mark.parametrize("mode", ["half_split", "interleaved"])
def test_rope(rng, mode):
    q, k, v = tensors(rng, 20, 50)
    o = kvloom.attention(q, k, v, causal=True, rope=kvloom.Rope(mode=mode, theta=500.0))
    turned = [reference.rope(x, pos, 500.0, mode == "interleaved") for x, pos in ((q, np.arange(30, 50)), (k, np.arange(50)))]
    wanted = reference.attention(*turned, v, causal=True)[0]
    assert np.linalg.norm(o - wanted) <= 4e-6 * np.linalg.norm(wanted)  # turned in fp32: a rounding more an element of Q and of K


def test_ragged_batch(rng):
    q_len, kv_len = [3, 0, 17, 1], [3, 9, 40, 0]
    q, k, v = tensors(rng, sum(q_len), sum(kv_len))
    qo, kv = np.cumsum([0, *q_len]), np.cumsum([0, *kv_len])
    o, lse = kvloom.attention(q, k, v, qo_indptr=qo, kv_indptr=kv, causal=True, return_lse=True)
    for r in range(4):
        rows, keys = slice(qo[r], qo[r + 1]), slice(kv[r], kv[r + 1])
        wanted, wanted_lse = reference.attention(q[rows], k[keys], v[keys], causal=True)
        close(o[rows], wanted)
        close(lse[rows], wanted_lse)
    hnd = [np.ascontiguousarray(x.transpose(1, 0, 2)) for x in (k, v)]
    assert np.array_equal(o, kvloom.attention(q, *hnd, qo_indptr=list(qo), kv_indptr=list(kv), causal=True, layout="HND"))


def paged(rng, k, v, kv, page_size, hnd=False):
    """Pages in random places, the rest NaN; returns pools, page ids by request."""
    pages = sum(-(-(b - a) // page_size) for a, b in zip(kv, kv[1:])) + 3
    free = list(rng.permutation(pages))
    pools = [np.full((pages, page_size, *x.shape[1:]), np.nan, np.float32) for x in (k, v)]
    lists = []
    for a, b in zip(kv, kv[1:]):
        lists.append([])
        for start in range(a, b, page_size):
            lists[-1].append(free.pop())
            stop = min(start + page_size, b)
            for pool, x in zip(pools, (k, v)):
                pool[lists[-1][-1], : stop - start] = x[start:stop]
    return [np.ascontiguousarray(p.transpose(0, 2, 1, 3)) if hnd else p for p in pools], lists


@pytest.mark.parametrize("page_size", [1, 3, 16])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_paged_batch(rng, page_size, layout, index):
    q_len, kv_len = [3, 1, 17], [3, 45, 40]
    q, k, v = tensors(rng, sum(q_len), sum(kv_len))
    qo, kv = np.cumsum([0, *q_len]).astype(index), np.cumsum([0, *kv_len])
    (kp, vp), lists = paged(rng, k, v, kv, page_size, layout == "HND")
    wanted = np.concatenate([reference.attention(q[qo[r] : qo[r + 1]], k[kv[r] : kv[r + 1]], v[kv[r] : kv[r + 1]], causal=True)[0] for r in range(3)])
    fixed = {"qo_indptr": qo, "kv_len": np.array(kv_len, index), "causal": True, "layout": layout}
    ids, begins = np.concatenate(lists).astype(index), np.cumsum([0, *map(len, lists)]).astype(index)
    close(kvloom.attention(q, kp, vp, pages=ids, list_indptr=begins, **fixed), wanted)
    table = np.full((3, 50), 10**6, index)
    for row, pages in zip(table, lists):
        row[: len(pages)] = pages
    close(kvloom.attention(q, kp, vp, block_table=table, **fixed), wanted)
    wide = np.full((3, 60), -1, index)
    wide[:, :50] = table
    close(kvloom.attention(q, kp, vp, block_table=wide[:, :50], **fixed), wanted)  # rows farther apart than they are long
    close(kvloom.attention(q, kp, vp, block_table=table.astype(np.int64)[:, ::-1][:, ::-1], **fixed), wanted)


def test_decode_needs_no_indptr(rng):
    q, k, v = tensors(rng, 2, 30)
    (kp, vp), lists = paged(rng, k, v, [0, 12, 30], 16)
    table = np.zeros((2, 2), np.int32)
    for row, pages in zip(table, lists):
        row[: len(pages)] = pages
    o = kvloom.attention(q, kp, vp, kv_len=[12, 18], block_table=table)
    close(o[:1], reference.attention(q[:1], k[:12], v[:12])[0])
    close(o[1:], reference.attention(q[1:], k[12:], v[12:])[0])


def test_q_positions_and_prefix(rng):
    q, k, v = tensors(rng, 4, 12)
    q_pos = [5, 2, 11, 0]
    close(kvloom.attention(q, k, v, causal=True, q_pos=q_pos), reference.attention(q, k, v, causal=True, q_pos=q_pos)[0])
    close(kvloom.attention(q, k, v, causal=True, q_pos0=[3]), reference.attention(q, k, v, causal=True, q_pos=np.arange(3, 7))[0])
    close(kvloom.attention(q, k, v, causal=True, window_left=1, prefix=[2]), reference.attention(q, k, v, causal=True, window_left=1, prefix=2)[0])


def test_a_row_that_keeps_nothing(rng):
    q, k, v = tensors(rng, 6, 2)
    o, lse = kvloom.attention(q, k, v, causal=True, return_lse=True)  # bottom-right: the first four rows stand before every key
    assert not o[:4].any() and np.all(lse[:4] == -np.inf) and o[4:].all()


def test_given_outputs_are_written(rng):
    q, k, v = tensors(rng, 5, 9)
    wanted, wanted_lse = reference.attention(q, k, v)
    out = np.zeros((5, 8, 64), np.float32)[:, ::2]  # strided
    lse = np.zeros((4, 5), np.float32).T
    got = kvloom.attention(q, k, v, out=out, lse=lse)
    assert got[0] is out and got[1] is lse
    close(out, wanted)
    close(lse, wanted_lse)
    assert kvloom.attention(q, k, v, out=out) is out


def test_small_floats(rng):
    for dtype, name in ((np.float16, "f16"), (ml_dtypes.bfloat16, "bf16")):
        q, k, v = tensors(rng, 5, 90, dtype=dtype)
        o = kvloom.attention(q, k, v, causal=True)
        assert o.dtype == dtype
        wanted = reference.attention(*(x.astype(np.float64) for x in (q, k, v)), causal=True)[0]
        close(o.astype(np.float64), wanted, name)
        assert kvloom.attention(q, k, v, o_dtype="f32").dtype == np.float32


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_fp8_cache(rng, name):
    dtype = getattr(ml_dtypes, name)
    q, k, v = tensors(rng, 5, 90)
    k8, v8 = (k / 0.25).astype(dtype), (v / 0.5).astype(dtype)
    wanted = reference.attention(q, k8.astype(np.float64) * 0.25, v8.astype(np.float64) * 0.5)[0]
    close(kvloom.attention(q, k8, v8, k_scale=0.25, v_scale=0.5), wanted)
    per_head = kvloom.attention(q, k8, v8, k_scale=np.full(2, 0.25, np.float32), v_scale=np.full(2, 0.5, np.float32))
    close(per_head, wanted)


def test_strided_inputs(rng):
    qkv = rng.standard_normal((9, 8, 64), dtype=np.float32)  # as one projection gives them
    q, k, v = qkv[:, :4], qkv[:, 4:6], qkv[:, 6:]
    close(kvloom.attention(q, k, v, causal=True), reference.attention(q, k, v, causal=True)[0])
