"""kvloom.flashinfer: merges, bits, appends and positions."""

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
import reference
from flashinfer_support import LN2, PAGE
from reference import close


def states(rng, fw, *dims, heads=3, dim=16, dtype="float32"):
    s = rng.standard_normal((*dims, heads), dtype=np.float32) * 4
    s[0, ..., 0] = -np.inf
    return fw.tensor(rng.standard_normal((*dims, heads, dim)), dtype), fw.tensor(s)


def merged(fw, parts):
    """States in base 2 through the natural logarithm's reference."""
    o, s = zip(*parts)
    o, s = reference.merge([fw.host(x) for x in o], [fw.host(x) * LN2 for x in s])
    return o, s / LN2


@pytest.mark.parametrize("heads, dim", [(3, 16), (128, 128), (5, 40)])
def test_merge_state(rng, fw, heads, dim):
    """128 heads of 128 are 2048 vectors a row: more than a block of threads."""
    a, b = (states(rng, fw, 6, heads=heads, dim=dim) for _ in "ab")
    kept = [fw.host(x).copy() for x in (*a, *b)]
    for got, expected in zip(flashinfer.merge_state(*a, *b), merged(fw, (a, b))):
        close(fw.host(got), expected)
    for x, before in zip((*a, *b), kept):
        assert np.array_equal(fw.host(x), before)  # inputs stay


def test_merge_two_empty_states(fw):
    nothing = fw.tensor(np.full((2, 3), -np.inf))
    v, s = flashinfer.merge_state(fw.tensor(np.full((2, 3, 8), np.nan)), nothing, fw.tensor(np.ones((2, 3, 8))), nothing)
    assert not fw.host(v).any() and np.isneginf(fw.host(s)).all()


@pytest.mark.parametrize("mask", [None, "bool", "uint8"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_merge_in_place(rng, fw, mask, dtype):
    a, b = (states(rng, fw, 6, dtype=dtype) for _ in "ab")
    rows = np.array([1, 0, 1, 1, 0, 1], bool) if mask else np.ones(6, bool)
    expected = merged(fw, (a, b))
    before = [fw.host(x).copy() for x in a]
    assert flashinfer.merge_state_in_place(*a, *b, mask=fw.tensor(rows, mask) if mask else None) is None
    for x, y, old, kind in zip(a, expected, before, ("f16" if dtype == "float16" else "f32", "f32")):
        close(fw.host(x)[rows], y[rows], kind)
        assert np.array_equal(fw.host(x)[~rows], old[~rows])


def test_merge_in_place_writes_any_dtype_of_s(rng, fw):
    (v, s), b = states(rng, fw, 4), states(rng, fw, 4)
    s = fw.tensor(fw.host(s), "float64")
    expected = merged(fw, ((v, s), b))
    flashinfer.merge_state_in_place(v, s, *b)
    close(fw.host(s), expected[1])


@pytest.mark.parametrize("rows, n", [(6, 5), (2, 40), (3, 1)])
def test_merge_states(rng, fw, rows, n):
    v, s = states(rng, fw, rows, n)
    expected = merged(fw, [(v[:, i], s[:, i]) for i in range(n)])
    for got, x in zip(flashinfer.merge_states(v, s), expected):
        close(fw.host(got), x)


def test_merge_any_numbers_of_states(rng, fw):
    v, s = states(rng, fw, 9)
    got = flashinfer.triton.cascade.variable_length_merge_states(v, s, fw.tensor([0, 2, 2, 9], "int32"))
    for r, (a, b) in enumerate([(0, 2), (2, 2), (2, 9)]):
        if a == b:
            assert not fw.host(got[0])[r].any() and np.isneginf(fw.host(got[1])[r]).all()
            continue
        for x, expected in zip(got, merged(fw, [(v[i : i + 1], s[i : i + 1]) for i in range(a, b)])):
            close(fw.host(x)[r : r + 1], expected)
    assert flashinfer.triton.cascade.merge_state is flashinfer.merge_state


def test_merge_no_states(fw):
    v, s = flashinfer.merge_states(fw.tensor(np.zeros((2, 0, 3, 8))), fw.tensor(np.zeros((2, 0, 3))))
    assert not fw.host(v).any() and np.isneginf(fw.host(s)).all()


@pytest.mark.parametrize("bitorder", ["big", "little"])
@pytest.mark.parametrize("n", [0, 1, 8, 13, 999])
def test_packbits(rng, fw, bitorder, n):
    x = rng.random(n) < 0.5
    assert np.array_equal(fw.host(flashinfer.packbits(fw.tensor(x, "bool"), bitorder)), np.packbits(x, bitorder=bitorder))


@pytest.mark.parametrize("bitorder", ["big", "little"])
@pytest.mark.parametrize("lengths", [[8, 16, 0], [3, 0, 9, 8], [0], [1] * 20])
def test_segment_packbits(rng, fw, bitorder, lengths):
    begins = np.cumsum([0, *lengths])
    x = rng.random(begins[-1]) < 0.5
    y, indptr = flashinfer.segment_packbits(fw.tensor(x, "bool"), fw.tensor(begins, "int32"), bitorder)
    parts = [np.packbits(x[a:b], bitorder=bitorder) for a, b in zip(begins, begins[1:])]
    assert np.array_equal(fw.host(y), np.concatenate(parts))
    assert np.array_equal(fw.host(indptr), np.cumsum([0, *map(len, parts)]))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["pair", "one tensor"])
def test_append(rng, fw, layout, form):
    """Positions as get_batch_indices_positions says, padding skipped."""
    append, total = [3, 0, 6], [5, 4, 6]
    begins, tables = np.cumsum([0, *append]), [[5, 2], [0], [7, 4]]
    lists = np.cumsum([0, 2, 1, 2])
    ids, last = np.concatenate(tables), [1, 4, 2]
    lengths = flashinfer.get_seq_lens(fw.tensor(lists, "int32"), fw.tensor(last, "int32"), PAGE)
    assert np.array_equal(fw.host(lengths), total)
    request, pos = flashinfer.get_batch_indices_positions(fw.tensor(begins, "int32"), lengths, 11)
    assert fw.host(request).tolist() == [0] * 3 + [2] * 6 + [-1] * 2
    assert fw.host(pos).tolist() == [2, 3, 4, *range(6), 0, 0]
    k_new, v_new = (fw.tensor(rng.standard_normal((11, 2, 8))) for _ in "kv")
    shape = (9, PAGE, 2, 8) if layout == "NHD" else (9, 2, PAGE, 8)
    both = fw.tensor(np.full((9, 2, *shape[1:]), np.nan))
    cache = both if form == "one tensor" else (both[:, 0], both[:, 1])
    flashinfer.append_paged_kv_cache(
        k_new, v_new, request, pos, cache, fw.tensor(ids, "int32"), fw.tensor(lists, "int32"), fw.tensor(last, "int32"), layout
    )
    written = fw.host(both)
    if layout == "HND":
        written = written.swapaxes(2, 3)
    for i, (r, p) in enumerate(zip([0] * 3 + [2] * 6, [2, 3, 4, *range(6)])):
        slot = tables[r][p // PAGE], p % PAGE
        for half, new in enumerate((k_new, v_new)):
            assert np.array_equal(written[slot[0], half, slot[1]], fw.host(new)[i])
    assert np.isfinite(written).sum() == 9 * 2 * 2 * 8


def test_positions_into_buffers(fw):
    buffers = [fw.tensor(np.full(4, 9), "int32") for _ in "ab"]
    got = flashinfer.get_batch_indices_positions(fw.tensor([0, 2], "int32"), fw.tensor([7], "int32"), 4, *buffers)
    assert got[0] is buffers[0] and got[1] is buffers[1]
    assert fw.host(buffers[0]).tolist() == [0, 0, -1, -1] and fw.host(buffers[1]).tolist() == [5, 6, 0, 0]


def test_lengths_of_requests_without_pages(fw):
    lengths = flashinfer.get_seq_lens(fw.tensor([0, 0, 3, 3], "int32"), fw.tensor([1, 2, 0], "int32"), 16)
    assert fw.host(lengths).tolist() == [0, 34, 0]  # whatever their last page says
    assert str(lengths.dtype).endswith("int32")


def test_append_mla(rng, fw):
    ckv, kpe = fw.tensor(rng.standard_normal((3, 64))), fw.tensor(rng.standard_normal((3, 16)))
    caches = [fw.tensor(np.zeros((4, PAGE, d))) for d in (64, 16)]
    where = [fw.tensor(x, "int32") for x in ([0, 0, 1], [3, 4, 0], [2, 0, 1], [0, 2, 3], [1, 1])]
    flashinfer.append_paged_mla_kv_cache(ckv, kpe, where[0], where[1], *caches, *where[2:])
    for cache, new in zip(caches, (ckv, kpe)):
        for i, slot in enumerate([(2, 3), (0, 0), (1, 0)]):
            assert np.array_equal(fw.host(cache)[slot], fw.host(new)[i])


def test_concat_mla_k(rng, fw):
    k, nope, rope = fw.empty((3, 4, 24)), fw.tensor(rng.standard_normal((3, 4, 16))), fw.tensor(rng.standard_normal((3, 1, 8)))
    flashinfer.concat_ops.concat_mla_k(k, nope, rope)
    assert np.array_equal(fw.host(k)[..., :16], fw.host(nope)) and np.array_equal(fw.host(k)[..., 16:], np.broadcast_to(fw.host(rope), (3, 4, 8)))
    with pytest.raises(ValueError, match=r"`k`: expected \[3, 4, 24\]"):
        flashinfer.concat_ops.concat_mla_k(k[..., :20], nope, rope)
    with pytest.raises(RuntimeError, match="`k_rope.dtype`: expected .*float32, that of k, got .*float16; convert it"):
        flashinfer.concat_ops.concat_mla_k(k, nope, fw.tensor(rng.standard_normal((3, 1, 8)), "float16"))
