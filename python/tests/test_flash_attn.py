"""kvloom.flash_attn against float64, with flash-attn's conventions."""

import numpy as np
import pytest

import kvloom
import reference
from kvloom.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from reference import close

f32 = np.float32


def tensors(rng, b, n, m, heads=4, kv_heads=2, d=32):
    return [rng.standard_normal(s, dtype=f32) for s in ((b, n, heads, d), (b, m, kv_heads, d), (b, m, kv_heads, d))]


def flash_reference(q, k, v, causal=False, window_size=(-1, -1), softcap=0.0, softmax_scale=None, slopes=None):
    """One batch entry, with flash-attn's own words."""
    left, right = window_size
    bias = None if slopes is None else lambda s, h, i, j: s - slopes[h] * abs(i - j)
    return reference.attention(q, k, v, causal=causal, window_left=left, window_right=right, soft_cap=softcap, sm_scale=softmax_scale, logit=bias)


@pytest.mark.parametrize("n, m", [(1, 1), (7, 20), (20, 7), (0, 5)])
@pytest.mark.parametrize(
    "features", [{}, {"causal": True}, {"window_size": (3, 2)}, {"causal": True, "window_size": (4, 0), "softcap": 3.0}, {"softmax_scale": 0.3}]
)
def test_func(rng, n, m, features):
    q, k, v = tensors(rng, 3, n, m)
    out, lse, nothing = flash_attn_func(q, k, v, return_attn_probs=True, **features)
    assert out.shape == q.shape and lse.shape == (3, 4, n) and nothing is None
    for b in range(3):
        wanted, wanted_lse = flash_reference(q[b], k[b], v[b], **features)
        close(out[b], wanted)
        close(lse[b].T, wanted_lse)
    assert np.array_equal(flash_attn_func(q, k, v, **features), out)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("per_batch", [False, True])
def test_alibi(rng, causal, per_batch):
    q, k, v = tensors(rng, 2, 6, 9)
    slopes = rng.random((2, 4) if per_batch else 4).astype(f32)
    out = flash_attn_func(q, k, v, causal=causal, alibi_slopes=slopes)
    for b in range(2):
        close(out[b], flash_reference(q[b], k[b], v[b], causal, slopes=slopes[b] if per_batch else slopes)[0])


def test_strided_views(rng):
    qkv = rng.standard_normal((2, 5, 3, 4, 32), dtype=f32)  # [batch, seqlen, 3, heads, dim], packed
    q, k, v = (qkv[:, :, i] for i in range(3))
    out = flash_attn_func(q, k, v, causal=True)
    for b in range(2):
        close(out[b], flash_reference(q[b], k[b], v[b], True)[0])


@pytest.mark.parametrize("index", [list, np.int32, np.int64])
def test_varlen(rng, index):
    q_len, kv_len = [3, 0, 8], [5, 4, 8]
    cu_q, cu_k = np.cumsum([0, *q_len]), np.cumsum([0, *kv_len])
    q, k, v = (x[0] for x in tensors(rng, 1, 11, 17))
    lengths = [[int(i) for i in c] if index is list else c.astype(index) for c in (cu_q, cu_k)]
    out, lse, _ = flash_attn_varlen_func(q, k, v, *lengths, 8, 8, causal=True, return_attn_probs=True)
    assert lse.shape == (4, 11)
    for r in range(3):
        rows, keys = slice(cu_q[r], cu_q[r + 1]), slice(cu_k[r], cu_k[r + 1])
        wanted, wanted_lse = flash_reference(q[rows], k[keys], v[keys], True)
        close(out[rows], wanted)
        close(lse[:, rows].T, wanted_lse)
    table, pools = np.array([[4, 2], [0, 0], [1, 3]], np.int32), [np.full((5, 4, 2, 32), np.nan, f32) for _ in "kv"]
    for r in range(3):
        for pool, x in zip(pools, (k, v)):
            for j in range(kv_len[r]):
                pool[table[r, j // 4], j % 4] = x[cu_k[r] + j]
    close(flash_attn_varlen_func(q, *pools, *lengths, causal=True, block_table=table), out)


def rotate(x, positions, cos, sin, interleaved):
    out = x.astype(np.float64).copy()
    half = cos.shape[1]
    a, b = (out[..., 0 : 2 * half : 2], out[..., 1 : 2 * half : 2]) if interleaved else (out[..., :half], out[..., half : 2 * half])
    c, s = (t[np.asarray(positions)][..., None, :] for t in (cos, sin))
    first, second = a * c - b * s, b * c + a * s
    a[...], b[...] = first, second
    return out


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("rotary", [None, "interleaved", "halves"])
@pytest.mark.parametrize("causal", [False, True])
def test_with_kvcache(rng, paged, rotary, causal):
    batch, new, before = 3, 2, np.array([5, 0, 9], np.int32)
    q, k, v = tensors(rng, batch, new, new)
    if paged:
        table = np.array([[7, 3, 0, 1], [2, 0, 0, 0], [8, 4, 6, 5]], np.int32)
        caches = [rng.standard_normal((9, 4, 2, 32), dtype=f32) for _ in "kv"]

        def place(r, j):
            return table[r, j // 4], j % 4

        where = {"block_table": table}
    else:
        entries = [3, 0, 1]
        caches = [rng.standard_normal((4, 16, 2, 32), dtype=f32) for _ in "kv"]

        def place(r, j):
            return entries[r], j

        where = {"cache_batch_idx": np.array(entries)}
    old = [c.copy() for c in caches]
    turn = {}
    if rotary:
        angle = rng.random((20, 8)) * 6
        cos, sin = np.cos(angle).astype(f32), np.sin(angle).astype(f32)
        turn = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": rotary == "interleaved"}
    out, lse = flash_attn_with_kvcache(q, *caches, k, v, cache_seqlens=before, causal=causal, return_softmax_lse=True, **turn, **where)
    assert lse.shape == (batch, 4, new)
    for r in range(batch):
        keys, values = (np.stack([c[place(r, j)] for j in range(before[r])] or [np.zeros((2, 32))]).reshape(-1, 2, 32)[: before[r]] for c in old)
        q_r, k_r = q[r], k[r]
        if rotary:
            steps = np.arange(new)
            q_r = rotate(q_r, before[r] + (steps if causal else 0 * steps), cos, sin, rotary == "interleaved")
            k_r = rotate(k_r, before[r] + steps, cos, sin, rotary == "interleaved")
        wanted, wanted_lse = flash_reference(q_r, np.concatenate([keys, k_r]), np.concatenate([values, v[r]]), causal)
        close(out[r], wanted)
        close(lse[r].T, wanted_lse)
        for j in range(new):
            assert np.allclose(caches[0][place(r, before[r] + j)], k_r[j], atol=1e-6)
            assert np.array_equal(caches[1][place(r, before[r] + j)], v[r, j])


def test_with_kvcache_reads_whole_caches(rng):
    q, k, v = tensors(rng, 2, 1, 8)
    for lengths, n in ((None, 8), (5, 5)):
        out = flash_attn_with_kvcache(q, k, v, cache_seqlens=lengths)
        for r in range(2):
            close(out[r], flash_reference(q[r], k[r, :n], v[r, :n])[0])
    assert flash_attn_with_kvcache(q[:0], k, v, cache_seqlens=[]).shape == (0, 1, 4, 32)


def test_refusals(rng):
    q, k, v = tensors(rng, 2, 3, 4)
    with pytest.raises(kvloom.UnsupportedError, match="`dropout_p`"):
        flash_attn_func(q, k, v, dropout_p=0.1)
    with pytest.raises(kvloom.UnsupportedError, match="`cache_leftpad`"):
        flash_attn_with_kvcache(q, k, v, cache_seqlens=1, cache_leftpad=np.array([1, 1]))
    with pytest.raises(ValueError, match=r"`q`: expected \[batch, seqlen, heads, head_dim\], got \[3, 4, 32\]"):
        flash_attn_func(q[0], k, v)
    with pytest.raises(ValueError, match=r"`k`, `v`: expected \[2, seqlen"):
        flash_attn_func(q, k[:1], v[:1])
    with pytest.raises(TypeError, match="`v`"):
        flash_attn_func(q, k, v.astype(np.float16))
    with pytest.raises(ValueError, match=r"`alibi_slopes`: expected \[4\] or \[2, 4\], got \[3\]"):
        flash_attn_func(q, k, v, alibi_slopes=np.zeros(3, f32))
    with pytest.raises(ValueError, match="`cu_seqlens_q`"):
        flash_attn_varlen_func(q[0], k[0], v[0], [0, 3], [0, 2, 4])
    with pytest.raises(ValueError, match="`cache_seqlens`: expected the tokens"):
        flash_attn_with_kvcache(q, k, v, k[:, :1], v[:, :1])
    with pytest.raises(ValueError, match="page|slot|pos"):
        flash_attn_with_kvcache(q, k, v, k[:, :1].copy(), v[:, :1].copy(), cache_seqlens=[4, 0])  # the cache is full
    with pytest.raises(ValueError, match="`rotary_cos`: expected a row for position"):
        flash_attn_with_kvcache(q, k, v, rotary_cos=np.zeros((2, 8), f32), rotary_sin=np.zeros((2, 8), f32), cache_seqlens=[1, 1], causal=True)


@pytest.mark.parametrize(
    "kind, named, says",
    [
        (TypeError, {"window_size": 3}, r"`window_size`: expected \(left, right\), two ints .*, got 3;"),
        (TypeError, {"window_size": (3, "a")}, r"`window_size`: expected .* got \(3, 'a'\);"),
        (TypeError, {"window_size": (3,)}, r"`window_size`: expected .* got \(3,\);"),
        (TypeError, {"window_size": None}, "`window_size`: expected .* got None;"),
        (TypeError, {"softmax_scale": "x"}, "`softmax_scale`: expected a finite number above 0, or None .*, got 'x'"),
        (TypeError, {"softmax_scale": "1"}, "`softmax_scale`: .* got '1'"),
        (ValueError, {"softmax_scale": -1.0}, "`softmax_scale`: .* got -1.0"),
        (ValueError, {"softmax_scale": float("nan")}, "`softmax_scale`: .* got nan"),
        (TypeError, {"softcap": "a"}, "`softcap`: expected a finite number above 0, or None for none, got 'a'"),
        (ValueError, {"softcap": float("inf")}, "`softcap`: .* got inf"),
    ],
)
def test_arguments_are_named_as_they_were_given(rng, kind, named, says):
    q, k, v = tensors(rng, 2, 3, 4)
    with pytest.raises(kind, match=says):
        flash_attn_func(q, k, v, **named)
    with pytest.raises(kind, match=says):
        flash_attn_varlen_func(q[0], k[0], v[0], [0, 3], [0, 4], **named)
    with pytest.raises(kind, match=says):
        flash_attn_with_kvcache(q, k, v, **named)


@pytest.mark.parametrize(
    "kind, starts_q, starts_k, says",
    [
        (ValueError, [0, 9], [0, 4], "`cu_seqlens_q`: expected an end of at most 3, the rows of `q`, got 9;"),
        (ValueError, [0, 3], [0, 9], "`cu_seqlens_k`: expected an end of at most 4, the rows of `k`, got 9;"),
        (ValueError, [0, 2, 1], [0, 2, 4], r"`cu_seqlens_q`: expected .* never fall, got \[0, 2, 1\]"),
        (ValueError, [1, 3], [0, 4], "`cu_seqlens_q`: expected .* begin at 0"),
        (ValueError, [0, 3], [0, -4], "`cu_seqlens_k`: expected .* never fall"),
        (ValueError, [], [], r"`cu_seqlens_q`: expected .* got \[\]"),
        (TypeError, 3, [0, 4], r"`cu_seqlens_q`: expected ints \[batch \+ 1\], got 3"),
        (TypeError, [0, 3], "ab", r"`cu_seqlens_k`: expected ints \[batch \+ 1\], got 'ab'"),
        (TypeError, [[0, 3]], [0, 4], r"`cu_seqlens_q`: expected ints"),
    ],
)
def test_starts_that_can_not_be(rng, kind, starts_q, starts_k, says):
    q, k, v = tensors(rng, 1, 3, 4)
    with pytest.raises(kind, match=says) as caught:
        flash_attn_varlen_func(q[0], k[0], v[0], starts_q, starts_k)
    assert not isinstance(caught.value, kvloom.CapacityError)


def test_engines_are_kept(rng):
    from kvloom import _engines

    _engines.clear_engines()
    for n in (1, 5, 40, 3):
        q, k, v = tensors(rng, 2, n, n)
        close(flash_attn_func(q, k, v)[1], flash_reference(q[1], k[1], v[1])[0])
    assert len(_engines._engines) == 1
    for i in range(40):
        flash_attn_func(q, k, v, softmax_scale=0.1 + i)
    assert len(_engines._engines) == 16
