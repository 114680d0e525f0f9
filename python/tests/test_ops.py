"""Merges, appends, rotation, masks, block-sparse matrices."""

import numpy as np
import pytest

import kvloom
import reference
from reference import close


def states(rng, *dims):
    o, lse = rng.standard_normal((*dims, 3, 16), dtype=np.float32), rng.standard_normal((*dims, 3), dtype=np.float32)
    lse[0, ..., 0] = -np.inf
    return o, lse


def test_merge_two(rng):
    (oa, la), (ob, lb) = states(rng, 6), states(rng, 6)
    wanted = reference.merge([oa, ob], [la, lb])
    o, lse = kvloom.merge_states(oa, la, ob, lb)
    close(o, wanted[0])
    close(lse, wanted[1])
    assert kvloom.merge_states(oa, la, ob, lb, out=oa, lse=la)[0] is oa  # in place
    close(oa, wanted[0])


def test_merge_many(rng):
    o, lse = states(rng, 6, 5)
    got = kvloom.merge_states_n(o, lse)
    wanted = reference.merge(o.swapaxes(0, 1), lse.swapaxes(0, 1))
    close(got[0], wanted[0])
    close(got[1], wanted[1])


@pytest.mark.parametrize("indptr", [[0, 2, 2, 7], np.array([0, 2, 2, 7], np.int32), np.array([0, 2, 2, 7])])
def test_merge_ragged(rng, indptr):
    o, lse = states(rng, 7)
    got_o, got_lse = kvloom.merge_states_ragged(o, lse, indptr)
    for r, (a, b) in enumerate([(0, 2), (2, 2), (2, 7)]):
        wanted = reference.merge(o[a:b], lse[a:b])
        close(got_o[r], wanted[0])
        close(got_lse[r], wanted[1])


def test_split_attention_is_merged_attention(rng):
    q, k, v = (rng.standard_normal((n, 2, 32), dtype=np.float32) for n in (4, 50, 50))
    parts = [kvloom.attention(q, k[s], v[s], return_lse=True) for s in (slice(0, 20), slice(20, 50))]
    close(kvloom.merge_states(*parts[0], *parts[1])[0], reference.attention(q, k, v)[0])


def test_append_then_attend(rng):
    page_size, table = 4, np.array([[5, 2, 7], [0, 6, 1]], np.int32)
    k_new, v_new = (rng.standard_normal((14, 2, 32), dtype=np.float32) for _ in "kv")
    k, v = (np.full((8, page_size, 2, 32), np.nan, np.float32) for _ in "kv")
    request = np.repeat([0, 1], [9, 5])
    pos = np.r_[0:9, 0:5]
    kvloom.append_kv(k_new, v_new, k, v, request=request, pos=pos, block_table=table)
    q = rng.standard_normal((2, 4, 32), dtype=np.float32)
    o = kvloom.attention(q, k, v, kv_len=[9, 5], block_table=table)
    close(o[:1], reference.attention(q[:1], k_new[:9], v_new[:9])[0])
    close(o[1:], reference.attention(q[1:], k_new[9:], v_new[9:])[0])
    slots = kvloom.append_slots(np.empty(14, np.int64), request=request, pos=pos, page_size=page_size, num_pages=8, block_table=table)
    assert slots[0] == 5 * page_size and slots[5] == 2 * page_size + 1
    again = [np.full_like(x, np.nan) for x in (k, v)]
    kvloom.append_kv(k_new, v_new, *again, slots=slots)
    assert np.array_equal(k, again[0], equal_nan=True) and np.array_equal(v, again[1], equal_nan=True)
    csr = [np.full_like(x, np.nan) for x in (k, v)]
    kvloom.append_kv(k_new, v_new, *csr, request=request, pos=pos, pages=[5, 2, 7, 0, 6], list_indptr=[0, 3, 5])
    assert np.array_equal(k, csr[0], equal_nan=True)
    short = [np.full_like(x, np.nan) for x in (k, v)]
    kvloom.append_kv(k_new, v_new, *short, request=request, pos=pos, pages=[5, 2, 7, 0, 6], list_indptr=[0, 3])
    assert np.array_equal(k, short[0], equal_nan=True)
    gaps = [np.full_like(x, np.nan) for x in (k, v)]
    kvloom.append_kv(k_new, v_new, *gaps, request=request, pos=pos, block_table=np.pad(table, ((0, 0), (0, 3)))[:, :3])
    assert np.array_equal(k, gaps[0], equal_nan=True)


def test_append_refuses_and_writes_nothing(rng):
    k_new = rng.standard_normal((2, 2, 32), dtype=np.float32)
    k = np.zeros((4, 4, 2, 32), np.float32)
    with pytest.raises(ValueError, match="page"):
        kvloom.append_kv(k_new, k_new, k, k.copy(), request=[0, 0], pos=[0, 5], block_table=np.array([[1, 9]]))
    with pytest.raises(TypeError, match="`request`: expected where the tokens go, got None; give `request` and `pos` with a `block_table`"):
        kvloom.append_kv(k_new, k_new, k, k.copy())
    with pytest.raises(TypeError, match="`pos`: expected where the tokens go, got None"):
        kvloom.append_kv(k_new, k_new, k, k.copy(), request=[0, 0], block_table=np.array([[1, 2]]))
    with pytest.raises(ValueError, match=r"`k_new`: expected \[2, 2, 32\], heads and head_dim of `k` \[4, 4, 2, 32\] f32 on cpu, got \[2, 1, 32\]"):
        kvloom.append_kv(k_new[:, :1], k_new[:, :1], k, k.copy(), slots=[0, 1])
    with pytest.raises(ValueError, match="append_kv: k_new: dtype: got float64, wanted float32, float16"):
        kvloom.append_kv(k_new.astype(float), k_new, k, k.copy(), slots=[0, 1])
    assert not k.any()


def test_rope(rng):
    x = rng.standard_normal((5, 3, 32), dtype=np.float32)
    pos = [0, 3, 100, 7, 1]
    wanted = reference.rope(x, pos, 1000.0)
    kvloom.apply_rope(x, pos, kvloom.Rope(theta=1000.0))
    close(x, wanted)
    k_new = rng.standard_normal((5, 3, 32), dtype=np.float32)
    k = np.zeros((2, 4, 3, 32), np.float32)
    kvloom.append_kv(k_new, None, k, None, slots=[0, 1, 2, -1, 4], rope_pos=pos, rope=kvloom.Rope(theta=1000.0))
    turned = reference.rope(k_new, pos, 1000.0)
    close(k.reshape(8, 3, 32)[[0, 1, 2, 4]], turned[[0, 1, 2, 4]])
    assert not k.reshape(8, 3, 32)[3].any()


def test_custom_masks(rng):
    keep = [rng.random((3, 7)) < 0.5, rng.random((5, 9)) < 0.5]
    mask, indptr = kvloom.pack_mask(keep)
    assert np.array_equal(np.unpackbits(mask[indptr[0] : indptr[1]], bitorder="little")[:21], keep[0].ravel())
    q, k, v = (rng.standard_normal((n, 2, 32), dtype=np.float32) for n in (8, 16, 16))
    o = kvloom.attention(q, k, v, qo_indptr=[0, 3, 8], kv_indptr=[0, 7, 16], mask=mask, mask_indptr=indptr)
    close(o[:3], reference.attention(q[:3], k[:7], v[:7], keep=keep[0])[0])
    close(o[3:], reference.attention(q[3:], k[7:], v[7:], keep=keep[1])[0])


def test_masks_are_a_list(rng):
    three = rng.random((2, 3, 7)) < 0.5
    assert np.array_equal(kvloom.pack_mask(three)[0], kvloom.pack_mask(list(three))[0])
    with pytest.raises(ValueError, match=r"`masks`: expected a list of arrays \[q_len, kv_len\], one a request, got one array \[3, 7\]; of one request: \[mask\]"):
        kvloom.pack_mask(three[0])
    with pytest.raises(TypeError, match="`masks`: expected a list of arrays .*, got int"):
        kvloom.pack_mask(5)
    with pytest.raises(ValueError, match=r"`masks\[1\]`: expected a contiguous bool or uint8 array \[q_len, kv_len\] on cpu, got \[7\]"):
        kvloom.pack_mask([three[0], three[0][0]])
    with pytest.raises(TypeError, match=r"`masks\[0\]`: "):
        kvloom.pack_mask([[[True, False]]])


@pytest.mark.parametrize("index", [list, np.int32, np.int64])
def test_block_sparse(rng, index):
    rows, cols = 3, 4
    present = np.array([[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1]], bool)
    indptr, indices = np.r_[0, present.sum(1).cumsum()], np.nonzero(present)[1]
    as_index = (lambda x: [int(i) for i in x]) if index is list else (lambda x: x.astype(index))
    matrix = kvloom.BlockSparse(as_index(indptr), as_index(indices), block_shape=(rows, cols), shape=(12, 12))
    q, k, v = (rng.standard_normal((12, 2, 32), dtype=np.float32) for _ in "qkv")
    keep = np.kron(present, np.ones((rows, cols), bool))
    for causal in (False, True):
        wanted = reference.attention(q, k, v, keep=keep, causal=causal, q_pos=np.arange(12))[0]
        close(kvloom.attention(q, k, v, matrix=matrix, causal=causal), wanted)
    spec = kvloom.Spec(num_qo_heads=2, head_dim=32, page_size=matrix.page_size, causal=True)
    engine = kvloom.Engine(spec, max_requests=matrix.num_requests, max_query_tokens=matrix.num_rows, backend="cpu")
    plan = engine.plan_sparse(matrix)
    del matrix
    close(engine.run(plan, q, k.reshape(3, 4, 2, 32), v.reshape(3, 4, 2, 32)), wanted)


def test_variable_block_sparse(rng):
    row_sizes, col_sizes = np.array([2, 0, 5]), np.array([4, 2, 6])
    present = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 0]], bool)
    matrix = kvloom.BlockSparse.variable(row_sizes, col_sizes, present)
    assert matrix.page_size == 2 and matrix.num_rows == 7
    q, k, v = (rng.standard_normal((n, 2, 32), dtype=np.float32) for n in (7, 12, 12))
    keep = np.repeat(np.repeat(present, row_sizes, 0), col_sizes, 1)
    close(kvloom.attention(q, k, v, matrix=matrix), reference.attention(q, k, v, keep=keep)[0])
    per_head = kvloom.BlockSparse.variable(np.stack([row_sizes] * 2), np.stack([col_sizes] * 2), np.stack([present, ~present]))
    o = kvloom.attention(q, k, v, matrix=per_head)
    close(o[:, :1], reference.attention(q[:, :1], k[:, :1], v[:, :1], keep=keep)[0])
    close(o[:, 1:], reference.attention(q[:, 1:], k[:, 1:], v[:, 1:], keep=~keep)[0])
