"""kvloom.flashinfer: block-sparse attention, against float64 over the whole matrix."""

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, attention, rows
from reference import close


def pattern(rng, m, n, r, c):
    """A block map with an empty row and a full one, and its CSR."""
    there = rng.random((-(-m // r), n // c)) < 0.4
    there[0], there[-1] = False, True
    return there, np.cumsum([0, *there.sum(1)]), np.nonzero(there)[1]


def whole(there, m, n, r, c):
    return np.repeat(np.repeat(there, r, 0), c, 1)[:m, :n]


SHAPES = [(12, 20, 4, 5), (10, 24, 4, 2), (7, 9, 1, 1), (16, 8, 16, 8)]


@pytest.mark.parametrize("m, n, r, c", SHAPES)
@pytest.mark.parametrize("features", [{}, {"causal": True}, {"logits_soft_cap": 3.0, "sm_scale": 0.4}])
def test_blocks(rng, fw, workspace, m, n, r, c, features):
    there, indptr, indices = pattern(rng, m, n, r, c)
    wrapper = flashinfer.BlockSparseAttentionWrapper(workspace)
    wrapper.plan(
        fw.tensor(indptr, "int32"),
        fw.tensor(indices, "int32"),
        m,
        n,
        r,
        c,
        HEADS,
        KV_HEADS,
        DIM,
        q_data_type="float32",
        o_data_type="float32",
        **features,
    )
    q, k, v = rows(rng, fw, m), *(rows(rng, fw, n, heads=KV_HEADS) for _ in "kv")
    o, lse = wrapper.run(q, k, v, return_lse=True)
    keep = whole(there, m, n, r, c)
    if "causal" in features:
        keep &= np.arange(n)[None] <= np.arange(m)[:, None]
    words = {"sm_scale": features.get("sm_scale"), "soft_cap": features.get("logits_soft_cap", 0.0)}
    for got, expected in zip((o, lse), attention(fw.host(q), fw.host(k), fw.host(v), keep=keep, **words)):
        close(fw.host(got), expected)


@pytest.mark.parametrize("m, n, r, c", SHAPES)
@pytest.mark.parametrize("form", ["bool", "packed"])
def test_masks_within_blocks(rng, fw, workspace, m, n, r, c, form):
    there, indptr, indices = pattern(rng, m, n, r, c)
    mask = rng.random((len(indices), r, c)) < 0.6
    keep = np.zeros((len(indptr[1:]) * r, n), bool)
    flat = []
    for i, (a, b) in enumerate(zip(indptr, indptr[1:])):
        for block in range(a, b):
            keep[i * r : (i + 1) * r, indices[block] * c : (indices[block] + 1) * c] = mask[block]
        flat.append(mask[a:b].transpose(1, 0, 2).ravel())
    converted = flashinfer.convert_bsr_mask_layout(fw.tensor(mask, "bool"), fw.tensor(indptr, "int32"))
    assert np.array_equal(fw.host(converted), np.concatenate(flat))
    given = {"mask": fw.tensor(mask, "bool")}
    if form == "packed":
        flat[-1] = flat[-1][: (m - r * (len(flat) - 1)) * c * (indptr[-1] - indptr[-2])]
        given = {"packed_mask": fw.tensor(np.concatenate([np.packbits(x, bitorder="little") for x in flat]), "uint8")}
    wrapper = flashinfer.BlockSparseAttentionWrapper(workspace)
    args = (fw.tensor(indptr, "int32"), fw.tensor(indices, "int32"), m, n, r, c, HEADS, KV_HEADS, DIM)
    wrapper.plan(*args, causal=True, q_data_type="float32", o_data_type="float32", **given)
    q, k, v = rows(rng, fw, m), *(rows(rng, fw, n, heads=KV_HEADS) for _ in "kv")
    close(fw.host(wrapper.run(q, k, v)), attention(fw.host(q), fw.host(k), fw.host(v), keep=keep[:m])[0])


def test_a_map_of_blocks(rng, fw, workspace):
    there, _, _ = pattern(rng, 12, 20, 4, 5)
    wrapper = flashinfer.BlockSparseAttentionWrapper(workspace)
    wrapper.plan(None, None, 12, 20, 4, 5, HEADS, KV_HEADS, DIM, block_mask=fw.tensor(there, "bool"), q_data_type="float16")
    q, k, v = rows(rng, fw, 12, "float16"), *(rows(rng, fw, 20, "float16", heads=KV_HEADS) for _ in "kv")
    close(fw.host(wrapper.run(q, k, v)), attention(*map(fw.host, (q, k, v)), keep=whole(there, 12, 20, 4, 5))[0], "f16")
    out = fw.empty((12, HEADS, DIM), "float16")
    assert wrapper.run(q, k, v, out=out) is out
    close(
        fw.host(wrapper.forward(q, k, v, sm_scale=0.4)), attention(*map(fw.host, (q, k, v)), keep=whole(there, 12, 20, 4, 5), sm_scale=0.4)[0], "f16"
    )


@pytest.mark.parametrize("features", [{}, {"causal": True}, {"logits_soft_cap": 3.0}])
def test_blocks_of_any_sizes(rng, fw, workspace, features):
    row_sizes, col_sizes = np.array([[3, 0, 5], [1, 6, 1]]), np.array([[4, 8, 0, 2], [6, 2, 2, 4]])
    there = rng.random((KV_HEADS, 3, 4)) < 0.5
    wrapper = flashinfer.VariableBlockSparseAttentionWrapper(workspace)
    sizes = [fw.tensor(x, "int32") for x in (row_sizes, col_sizes)]
    wrapper.plan(fw.tensor(there, "bool"), *sizes, HEADS, KV_HEADS, DIM, q_data_type="float32", **features)
    q, k, v = (fw.tensor(rng.standard_normal((h, n, DIM))) for h, n in ((HEADS, 8), (KV_HEADS, 14), (KV_HEADS, 14)))
    o, lse = wrapper.run(q, k, v, return_lse=True)
    assert tuple(o.shape) == (HEADS, 8, DIM) and tuple(lse.shape) == (8, HEADS)
    group = HEADS // KV_HEADS
    for h in range(KV_HEADS):
        keep = np.repeat(np.repeat(there[h], row_sizes[h], 0), col_sizes[h], 1)
        if "causal" in features:
            keep &= np.arange(14)[None] <= np.arange(8)[:, None]
        heads = slice(h * group, (h + 1) * group)
        inputs = [fw.host(q)[heads].swapaxes(0, 1), *(fw.host(x)[h : h + 1].swapaxes(0, 1) for x in (k, v))]
        expected = attention(*inputs, keep=keep, soft_cap=features.get("logits_soft_cap", 0.0))
        close(fw.host(o)[heads].swapaxes(0, 1), expected[0])
        close(fw.host(lse)[:, heads], expected[1])
    out = fw.empty((HEADS, 8, DIM))
    assert wrapper.run(q, k, v, out=out) is out
    close(fw.host(out), fw.host(o))


def test_bad_input(rng, fw, workspace):
    blocks, variable = flashinfer.BlockSparseAttentionWrapper(workspace), flashinfer.VariableBlockSparseAttentionWrapper(workspace)
    heads = (HEADS, KV_HEADS, DIM)
    indptr, indices = fw.tensor([0, 1, 2], "int32"), fw.tensor([0, 3], "int32")
    with pytest.raises(ValueError, match="`N`: expected a multiple of C, 3"):
        blocks.plan(indptr, indices, 8, 20, 4, 3, *heads)
    with pytest.raises(ValueError, match=r"`indptr`: expected 4 entries, ceil\(M / R\) \+ 1, got 3"):
        blocks.plan(indptr, indices, 9, 20, 4, 5, *heads)
    with pytest.raises(ValueError, match="`indices`: expected 0 .. 2, block columns, got 0 .. 3"):
        blocks.plan(indptr, indices, 8, 15, 4, 5, *heads)
    with pytest.raises(ValueError, match="`mask`: expected 2 blocks"):
        blocks.plan(indptr, indices, 8, 20, 4, 5, *heads, mask=fw.tensor(np.ones((3, 4, 5)), "bool"))
    with pytest.raises(ValueError, match=r"`block_mask`: expected \[2, 4\]"):
        blocks.plan(None, None, 8, 20, 4, 5, *heads, block_mask=fw.tensor(np.ones((2, 2)), "bool"))
    blocks.plan(indptr, indices, 8, 20, 4, 5, *heads, q_data_type="float32", o_data_type="float32")
    with pytest.raises(ValueError, match=r"`k`: expected \[20, num_kv_heads, head_dim\], got \[15"):
        blocks.run(rows(rng, fw, 8), *(rows(rng, fw, 15, heads=KV_HEADS) for _ in "kv"))
    with pytest.raises(ValueError, match=r"`block_mask_map`: expected \[2, 3, 4\], a row and a column for each of block_row_sz and block_col_sz, got \[2, 4, 3\]"):
        variable.plan(np.ones((2, 4, 3), bool), np.full((2, 3), 2), np.full((2, 4), 2), *heads)
    with pytest.raises(ValueError, match=r"`block_row_sz`: expected 2 dimensions, the first one 2 \(num_kv_heads\)"):
        variable.plan(*(fw.tensor(np.ones((1, 1)), "int32") for _ in "abc"), *heads)
    there, sizes = np.ones((2, 2, 2), bool), np.full((2, 2), 2)
    for rows_, columns, text in (
        (sizes - 3, sizes, r"plan: block_row_sz\[0\]: got -1, wanted at least 0"),
        (sizes, sizes - 3, r"plan: block_col_sz\[0\]: got -1, wanted at least 0"),
        (sizes.astype("f4"), sizes, "`block_row_sz`: expected int32 or int64"),
        (sizes, sizes + np.array([[0], [1]]), "plan: block_col_sz: KV head 1: got a sum of 6, wanted 4 as head 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            variable.plan(there, rows_, columns, *heads)
    with pytest.raises(ValueError, match="`block_mask_map`: expected a contiguous bool or uint8 array on cpu"):
        variable.plan(there.astype("f4"), sizes, sizes, *heads)
    variable.plan(fw.tensor(np.ones((2, 1, 1)), "bool"), *(fw.tensor(np.full((2, 1), 4), "int32") for _ in "ab"), *heads, q_data_type="float32")
    q, k = fw.empty((HEADS, 4, DIM)), fw.empty((KV_HEADS, 5, DIM))
    with pytest.raises(ValueError, match="`k`: expected 4 keys, the sum of block_col_sz, got 5"):
        variable.run(q, k, k)
    with pytest.raises(ValueError, match=r"`q`: expected \[4, tokens, head_dim\]"):
        variable.run(k, k, k)
