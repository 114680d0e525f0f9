"""kvloom.flashinfer: cascades and shared prefixes, against float64 over every request's whole keys."""

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, PAGE, attention, rows
from reference import close


class Cascade:
    """Levels over one pool: for each, which queries its segments have and how many keys."""

    def __init__(self, rng, fw, levels, page=PAGE):
        self.fw, self.levels = fw, levels
        counts = [[-(-n // page) for n in kv_len] for _, kv_len in levels]
        ids = rng.permutation(sum(map(sum, counts)) + 2)
        self.k_np, self.v_np = (rng.standard_normal((len(ids), page, KV_HEADS, DIM), dtype=np.float32) for _ in "kv")
        self.k, self.v = fw.tensor(self.k_np), fw.tensor(self.v_np)
        self.ids, self.arrays, at = [], ([], [], [], []), 0
        for (begins, kv_len), pages in zip(levels, counts):
            lists = np.cumsum([0, *pages])
            own = ids[at : at + lists[-1]]
            self.ids.append([own[a:b] for a, b in zip(lists, lists[1:])])
            at += lists[-1]
            last = [n - (c - 1) * page if c else 0 for n, c in zip(kv_len, pages)]
            for array, x in zip(self.arrays, (begins, lists, own, last)):
                array.append(fw.tensor(x, "int32"))

    def wanted(self, q, causal=False, **features):
        """Row by row: its keys level after level, its position counted from the end of them."""
        q, o = self.fw.host(q), []
        last = self.levels[-1][0]
        for row in range(len(q)):
            keys = [[], []]
            for (begins, kv_len), of in zip(self.levels, self.ids):
                s = next(s for s in range(len(kv_len)) if begins[s] <= row < begins[s + 1])
                for to, pool in zip(keys, (self.k_np, self.v_np)):
                    to.append(pool[of[s]].reshape(-1, KV_HEADS, DIM)[: kv_len[s]])
            k, v = map(np.concatenate, keys)
            behind = next(b for b in last if b > row) - row  # rows of the request from this one on
            o.append(attention(q[row : row + 1], k, v, causal=causal, q_pos=[len(k) - behind], **features)[0])
        return np.concatenate(o)


LEVELS = [
    [([0, 7], [10]), ([0, 3, 4, 4, 7], [3, 5, 2, 9])],
    [([0, 7], [10]), ([0, 4, 7], [6, 0]), ([0, 3, 4, 7], [3, 5, 9])],
    [([0, 2, 7], [9, 4]), ([0, 7], [3])],  # a request whose queries have different keys before its own
    [([0, 3, 7], [3, 8])],
]


@pytest.mark.parametrize("levels", LEVELS)
@pytest.mark.parametrize(
    "features", [{}, {"causal": True}, {"causal": True, "window_left": 6, "logits_soft_cap": 3.0}, {"sm_scale": 0.4, "window_left": 2}]
)
def test_levels(rng, fw, workspace, levels, features):
    cascade = Cascade(rng, fw, levels)
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(len(levels), workspace)
    wrapper.plan(*cascade.arrays, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32", **features)
    q = rows(rng, fw, 7)
    words = {("soft_cap" if name == "logits_soft_cap" else name): x for name, x in features.items()}
    close(fw.host(wrapper.run(q, (cascade.k, cascade.v))), cascade.wanted(q, **words))


def test_alibi_counts_through_the_levels(rng, fw, workspace):
    cascade = Cascade(rng, fw, LEVELS[1])
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(3, workspace)
    wrapper.plan(*cascade.arrays, HEADS, KV_HEADS, DIM, PAGE, causal=True, pos_encoding_mode="ALIBI", q_data_type="float32")
    q = rows(rng, fw, 7)
    close(fw.host(wrapper.run(q, (cascade.k, cascade.v))), cascade.wanted(q, causal=True, slopes=2.0 ** (-2.0 * np.arange(1, HEADS + 1))), "f16")


def test_graph_mode(rng, fw, workspace):
    sizes = {
        "qo_indptr_buf_arr": (2, 5),
        "paged_kv_indptr_buf_arr": (2, 5),
        "paged_kv_indices_buf_arr": (8, 32),
        "paged_kv_last_page_len_buf_arr": (1, 4),
    }
    buffers = {name: [fw.tensor(np.zeros(n), "int32") for n in x] for name, x in sizes.items()}
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace, "NHD", True, **buffers)
    assert wrapper.is_cuda_graph_enabled
    kept = wrapper._ids
    for kv_len in ([3, 5, 2, 9], [8, 0, 1, 17]):
        cascade = Cascade(rng, fw, [([0, 7], [10]), ([0, 3, 4, 4, 7], kv_len)])
        wrapper.plan(*cascade.arrays, HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type="float32")
        q = rows(rng, fw, 7)
        close(fw.host(wrapper.run(q, (cascade.k, cascade.v))), cascade.wanted(q, causal=True))
        assert wrapper._paged_kv_indices_buf is kept
        assert np.array_equal(fw.host(buffers["paged_kv_indices_buf_arr"][1])[: len(cascade.arrays[2][1])], fw.host(cascade.arrays[2][1]))
    with pytest.raises(ValueError, match="`qo_indptr_buf_arr`: expected 2 buffers in CUDA-graph mode"):
        flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace, "NHD", True)


def test_bad_input(rng, fw, workspace):
    cascade = Cascade(rng, fw, LEVELS[0])
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace)
    heads = (HEADS, KV_HEADS, DIM, PAGE)
    qo, kv, ids, last = cascade.arrays
    with pytest.raises(ValueError, match="`qo_indptr_arr`: expected 2 arrays, one a level, got 1"):
        wrapper.plan(qo[:1], kv, ids, last, *heads)
    with pytest.raises(ValueError, match=r"`qo_indptr_arr\[0\]`: expected 0 .. 7 \(queries\), as the last level has, got 0 .. 6"):
        wrapper.plan([fw.tensor([0, 6], "int32"), qo[1]], kv, ids, last, *heads)
    with pytest.raises(ValueError, match=r"`paged_kv_last_page_len\[1\]`: request 0: expected 1 .. 4"):
        wrapper.plan(qo, kv, ids, [last[0], last[1] + 9], *heads)
    with pytest.raises(ValueError, match=r"`paged_kv_indices_arr\[1\]`: expected at least 7 page ids"):
        wrapper.plan(qo, kv, [ids[0], ids[1][:2]], last, *heads)
    with pytest.raises(RuntimeError, match=r"expected a plan\(\)"):
        wrapper.run(rows(rng, fw, 7), (cascade.k, cascade.v))


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_shared_prefix(rng, fw, workspace, kind, layout):
    begins, kv_len = ([0, 1, 2, 3], [3, 5, 9]) if kind == "decode" else ([0, 3, 4, 7], [3, 5, 9])
    cascade = Cascade(rng, fw, [([0, begins[-1]], [13]), (begins, kv_len)])
    shared = [fw.tensor(pool[cascade.ids[0][0]].reshape(-1, KV_HEADS, DIM)[:13]) for pool in (cascade.k_np, cascade.v_np)]
    cache = (cascade.k, cascade.v)
    if layout == "HND":
        shared, cache = [fw.permute(x, 1, 0, 2) for x in shared], tuple(fw.permute(x, 0, 2, 1, 3) for x in cache)
    own = [array[1] for array in cascade.arrays]
    q = rows(rng, fw, begins[-1])
    if kind == "decode":
        wrapper = flashinfer.BatchDecodeWithSharedPrefixPagedKVCacheWrapper(workspace, layout)
        wrapper.begin_forward(*own[1:], HEADS, KV_HEADS, DIM, PAGE, data_type="float32")
        o = wrapper.forward(q, *shared, cache)
    else:
        wrapper = flashinfer.BatchPrefillWithSharedPrefixPagedKVCacheWrapper(workspace, layout)
        wrapper.begin_forward(*own, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
        o = wrapper.forward(q, *shared, cache, causal=True)
    wrapper.end_forward()
    close(fw.host(o), cascade.wanted(q, causal=kind == "prefill"))
