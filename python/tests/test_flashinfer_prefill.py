"""kvloom.flashinfer: prefill of one request, paged and ragged batches, against float64."""

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, PAGE, Pages, attention, rows
from reference import close

Q_LEN, KV_LEN = [3, 0, 7, 1, 2], [9, 6, 7, 33, 0]
QO = np.cumsum([0, *Q_LEN])


def wanted(q, keys, q_len=Q_LEN, **features):
    """keys(r): k, v of request r; features: numbers, or lists with one a request."""
    begins = np.cumsum([0, *q_len])
    parts = [
        attention(q[begins[r] : begins[r + 1]], *keys(r), **{n: f[r] if isinstance(f, list) else f for n, f in features.items()})
        for r in range(len(q_len))
    ]
    return [np.concatenate(x) for x in zip(*parts)]


FEATURES = [
    {},
    {"causal": True},
    {"causal": True, "window_left": 4},
    {"window_left": 4},
    {"logits_soft_cap": 3.0, "sm_scale": 0.3},
    {"pos_encoding_mode": "ROPE_LLAMA", "causal": True},
    {"pos_encoding_mode": "ALIBI", "causal": True},
]


def in_reference_words(features, keys):
    import reference

    words = dict(features)
    words["soft_cap"] = words.pop("logits_soft_cap", 0.0)
    mode = words.pop("pos_encoding_mode", "NONE")
    if mode == "ALIBI":
        words["slopes"] = 2.0 ** (-2.0 * np.arange(1, HEADS + 1))
    if mode != "ROPE_LLAMA":
        return words, keys, lambda q, r: q

    def turned(r):
        k, v = keys(r)
        return reference.rope(k, range(len(k))), v

    return words, turned, lambda q, r: reference.rope(q, np.arange(len(q)) + len(keys(r)[0]) - len(q))


def check(fw, q, got, keys, features, q_len=Q_LEN, dtype="f32"):
    words, turned, turn = in_reference_words(features, keys)
    begins = np.cumsum([0, *q_len])
    q = np.concatenate([turn(fw.host(q)[a:b], r) for r, (a, b) in enumerate(zip(begins, begins[1:]))])
    for x, expected in zip(got, wanted(q, turned, q_len, **words)):
        close(fw.host(x), expected, dtype)


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_paged(rng, fw, workspace, layout, features):
    pages = Pages(rng, fw, KV_LEN, layout)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, layout)
    wrapper.plan(fw.tensor(QO, "int32"), pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32", **features)
    q = rows(rng, fw, QO[-1])
    tolerance = "f16" if "pos_encoding_mode" in features else "f32"
    check(fw, q, wrapper.run(q, (pages.k, pages.v), return_lse=True), pages.keys, features, dtype=tolerance)


def ragged(rng, fw, kv_len=KV_LEN, dim=DIM, dim_vo=None, dtype="float32"):
    begins = np.cumsum([0, *kv_len])
    k, v = (fw.tensor(rng.standard_normal((begins[-1], KV_HEADS, d), dtype=np.float32), dtype) for d in (dim, dim_vo or dim))
    return k, v, fw.tensor(begins, "int32"), lambda r: [fw.host(x)[begins[r] : begins[r + 1]] for x in (k, v)]


@pytest.mark.parametrize("features", FEATURES)
def test_ragged(rng, fw, workspace, features):
    k, v, indptr, keys = ragged(rng, fw)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace)
    wrapper.plan(fw.tensor(QO, "int32"), indptr, HEADS, KV_HEADS, DIM, q_data_type=fw.dtype("float32"), **features)
    q = rows(rng, fw, QO[-1])
    tolerance = "f16" if "pos_encoding_mode" in features else "f32"
    check(fw, q, wrapper.run(q, k, v, return_lse=True), keys, features, dtype=tolerance)


def test_ragged_with_two_head_dims_and_layout(rng, fw, workspace):
    k, v, indptr, keys = ragged(rng, fw, dim=48, dim_vo=32)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "HND")
    wrapper.plan(fw.tensor(QO, "int32"), indptr, HEADS, KV_HEADS, 48, 32, causal=True, q_data_type="float32")
    q = rows(rng, fw, QO[-1], dim=48)
    check(fw, q, wrapper.run_return_lse(q, *(fw.permute(x, 1, 0, 2) for x in (k, v))), keys, {"causal": True})


def test_ragged_scales_count(rng, fw, workspace):
    k, v, indptr, keys = ragged(rng, fw)
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace)
    wrapper.plan(fw.tensor(QO, "int32"), indptr, HEADS, KV_HEADS, DIM, q_data_type="float32", sm_scale=0.5)
    q = rows(rng, fw, QO[-1])
    o = wrapper.run(q, k, v, q_scale=0.5, k_scale=3.0, v_scale=6.0, o_scale=2.0)
    close(fw.host(o) / 3.0, wanted(fw.host(q), keys, sm_scale=0.75)[0])


def test_ragged_as_sglang_calls_it(rng, fw, workspace):
    """Nothing at plan, everything at forward; then the prefix, merged in."""
    k, v, indptr, keys = ragged(rng, fw, [3, 4, 7, 1, 2])
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", backend="auto")
    qo = fw.tensor(QO, "int32")
    wrapper.begin_forward(qo, indptr, HEADS, KV_HEADS, DIM, q_data_type="float32")
    q = rows(rng, fw, QO[-1])
    own = wrapper.forward_return_lse(q, k, v, causal=True, sm_scale=0.3, logits_soft_cap=4.0)
    check(fw, q, own, keys, {"causal": True, "sm_scale": 0.3, "logits_soft_cap": 4.0})
    pages = Pages(rng, fw, KV_LEN)
    prefix = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", backend="fa2")
    prefix.begin_forward(
        qo, pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32", kv_data_type="float32", custom_mask=None
    )
    before = prefix.forward_return_lse(q, (pages.k, pages.v), causal=False, sm_scale=0.3, logits_soft_cap=4.0)
    merged = flashinfer.cascade.merge_state(*own, *before)
    both = [[np.concatenate(x) for x in zip(pages.keys(r), keys(r))] for r in range(5)]
    keep = [np.concatenate([np.ones((n, m), bool), np.tri(n, s, s - n, dtype=bool)], 1) for n, m, s in zip(Q_LEN, KV_LEN, [3, 4, 7, 1, 2])]
    for x, expected in zip(merged, wanted(fw.host(q), lambda r: both[r], keep=keep, sm_scale=0.3, soft_cap=4.0)):
        close(fw.host(x), expected)


@pytest.mark.parametrize("form", ["bool", "packed"])
def test_custom_masks_come_and_go(rng, fw, workspace, form):
    """A mask stands in for causal, and a plan without one has none left of the step before: paged and ragged."""
    masks = [rng.random((n, m)) < 0.6 for n, m in zip(Q_LEN, KV_LEN)]
    flat = fw.tensor(np.concatenate([m.ravel() for m in masks]), "bool")
    given = {"custom_mask": flat}
    if form == "packed":
        bits = np.concatenate([np.packbits(m.ravel(), bitorder="little") for m in masks])
        given = {"packed_custom_mask": fw.tensor(bits, "uint8")}
    pages = Pages(rng, fw, KV_LEN)
    k, v, indptr, keys = ragged(rng, fw)
    q, qo = rows(rng, fw, QO[-1]), fw.tensor(QO, "int32")
    paged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
    contiguous = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace)
    for mask, words in ((given, {"keep": masks}), ({}, {"causal": True})):
        paged.plan(qo, pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type="float32", **mask)
        contiguous.plan(qo, indptr, HEADS, KV_HEADS, DIM, causal=True, q_data_type="float32", **mask)
        for got, of in ((paged.run(q, (pages.k, pages.v), return_lse=True), pages.keys), (contiguous.run(q, k, v, return_lse=True), keys)):
            for x, expected in zip(got, wanted(fw.host(q), of, **words)):
                close(fw.host(x), expected)


def test_items_behind_one_prompt(rng, fw, workspace):
    """Multi-item scoring: a token sees the prompt and its item; a delimiter the prompt alone."""
    prefix, items = [4, 2], [[0, 1, 2, 3, 0, 1, 2, 0], [0, 1, 0, 1, 0]]
    q_len, kv_len = [10, 5], [12, 7]
    padded = np.array([x + [0] * (9 - len(x)) for x in items])
    pages = Pages(rng, fw, kv_len)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
    wrapper.plan(
        fw.tensor([0, 10, 15], "int32"),
        pages.indptr,
        pages.indices,
        pages.last,
        HEADS,
        KV_HEADS,
        DIM,
        PAGE,
        causal=True,
        q_data_type="float32",
        prefix_len_ptr=fw.tensor(prefix, "int32"),
        token_pos_in_items_ptr=fw.tensor(padded.ravel(), "int32"),
        token_pos_in_items_len=9,
        max_item_len_ptr=fw.tensor([3, 1], "int32"),
    )
    keep = []
    for n, m, p, of in zip(q_len, kv_len, prefix, items):
        mask = np.zeros((n, m), bool)
        for i in range(m - n, m):
            for j in range(i + 1):
                mask[i - m + n, j] = i < p or j < p or j > i - of[i - p]
        keep.append(mask)
    q = rows(rng, fw, 15)
    for x, expected in zip(wrapper.run(q, (pages.k, pages.v), return_lse=True), wanted(fw.host(q), pages.keys, q_len, keep=keep)):
        close(fw.host(x), expected)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("features", FEATURES)
def test_single(rng, fw, layout, features):
    q, k, v = rows(rng, fw, 7), *(rows(rng, fw, 20, heads=KV_HEADS) for _ in "kv")
    keys = [fw.host(k), fw.host(v)]
    if layout == "HND":
        k, v = (fw.permute(x, 1, 0, 2) for x in (k, v))
    got = flashinfer.single_prefill_with_kv_cache_return_lse(q, k, v, kv_layout=layout, **features)
    tolerance = "f16" if "pos_encoding_mode" in features else "f32"
    check(fw, q, got, lambda r: keys, features, [7], tolerance)


def test_single_mask_and_dtypes(rng, fw):
    q, k, v = rows(rng, fw, 7, "bfloat16"), *(rows(rng, fw, 20, "bfloat16", heads=KV_HEADS) for _ in "kv")
    mask = rng.random((7, 20)) < 0.5
    expected = attention(fw.host(q), fw.host(k), fw.host(v), keep=mask)[0]
    packed = flashinfer.packbits(fw.tensor(mask, "bool"), bitorder="little")
    for form in ({"custom_mask": fw.tensor(mask, "bool")}, {"packed_custom_mask": packed}):
        o = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True, **form)
        assert o.dtype == q.dtype
        close(fw.host(o), expected, "bf16")
    o = flashinfer.single_prefill_with_kv_cache(q, k, v, o_dtype=fw.dtype("float16"), v_scale=2.0, k_scale=0.5)
    close(fw.host(o) / 2, attention(fw.host(q), fw.host(k), fw.host(v), sm_scale=0.5 / np.sqrt(DIM))[0], "f16")


def test_single_fp8(rng, fw):
    q, k, v = (fw.tensor(rng.standard_normal((n, h, DIM)), "float8_e4m3fn") for n, h in ((7, HEADS), (20, KV_HEADS), (20, KV_HEADS)))
    s_q, s_k, s_v = np.array([1, 2, 0.5, 4]), np.array([0.5, 1]), np.array([2.0, 0.25])
    o = flashinfer.single_prefill_with_kv_cache(q, k, v, *(fw.tensor(s) for s in (s_q, s_k, s_v)), o_dtype=fw.dtype("float16"), causal=True)
    inputs = (fw.host(x) * s[:, None] for x, s in ((q, s_q), (k, s_k), (v, s_v)))
    close(fw.host(o), attention(*inputs, causal=True)[0], "f16")


def test_strided_views(rng, fw, workspace):
    """K and V with strides of their own, q out of a packed projection."""
    pages = Pages(rng, fw, KV_LEN)
    wide = fw.tensor(np.zeros((pages.num_pages, 2 * PAGE, KV_HEADS, DIM)))
    wide[:, :PAGE] = pages.k
    packed = fw.tensor(rng.standard_normal((QO[-1], HEADS + 2, DIM)))
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
    wrapper.plan(fw.tensor(QO, "int32"), pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type="float32")
    o = wrapper.run(packed[:, :HEADS], (wide[:, :PAGE], pages.v))
    close(fw.host(o), wanted(fw.host(packed)[:, :HEADS], pages.keys, causal=True)[0])


def graph_buffers(fw, batch, pages=64, mask=0):
    sizes = {"qo_indptr_buf": batch + 1, "paged_kv_indptr_buf": batch + 1, "paged_kv_indices_buf": pages, "paged_kv_last_page_len_buf": batch}
    buffers = {name: fw.tensor(np.zeros(n), "int32") for name, n in sizes.items()}
    if mask:
        buffers |= {"custom_mask_buf": fw.tensor(np.zeros(mask), "uint8"), "mask_indptr_buf": fw.tensor(np.zeros(batch + 1), "int32")}
    return buffers


def test_graph_mode(rng, fw, workspace):
    buffers = graph_buffers(fw, 5, mask=256)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, use_cuda_graph=True, **buffers)
    for step, q_len in enumerate(([3, 0, 7, 1, 2], [1, 1, 1, 1, 1], [4, 4, 4, 0, 1])):
        qo = np.cumsum([0, *q_len])
        pages = Pages(rng, fw, [9, 6, 7, 33, 3])
        masks = [rng.random((n, m)) < 0.6 for n, m in zip(q_len, pages.kv_len)]
        flat = fw.tensor(np.concatenate([m.ravel() for m in masks] + [np.ones(50 * step)]), "bool")  # a buffer may be longer than the step's mask
        wrapper.plan(
            fw.tensor(qo, "int32"), pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, custom_mask=flat, q_data_type="float32"
        )
        assert wrapper._custom_mask_buf is buffers["custom_mask_buf"] and wrapper._qo_indptr_buf is buffers["qo_indptr_buf"]
        assert np.array_equal(fw.host(buffers["qo_indptr_buf"]), qo)
        q = rows(rng, fw, qo[-1])
        close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(fw.host(q), pages.keys, q_len, keep=masks)[0])
    assert wrapper._max_total_num_rows == 13
    with pytest.raises(ValueError, match="query tokens: expected at most 13"):
        wrapper.plan(
            fw.tensor([0, 10, 11, 12, 13, 14], "int32"), pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32"
        )
    plain = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, use_cuda_graph=True, **graph_buffers(fw, 5))
    with pytest.raises(ValueError, match="`custom_mask`: expected custom_mask_buf and mask_indptr_buf"):
        plain.plan(
            fw.tensor(qo, "int32"), pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, custom_mask=flat, q_data_type="float32"
        )


def test_ragged_graph_mode(rng, fw, workspace):
    buffers = {name: fw.tensor(np.zeros(6), "int32") for name in ("qo_indptr_buf", "kv_indptr_buf")}
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, use_cuda_graph=True, **buffers)
    for kv_len in (KV_LEN, [1, 2, 3, 4, 5]):
        k, v, indptr, keys = ragged(rng, fw, kv_len)
        wrapper.plan(fw.tensor(QO, "int32"), indptr, HEADS, KV_HEADS, DIM, q_data_type="float32")
        assert np.array_equal(fw.host(buffers["kv_indptr_buf"]), fw.host(indptr))
        q = rows(rng, fw, QO[-1])
        close(fw.host(wrapper.run(q, k, v)), wanted(fw.host(q), keys)[0])


def test_module_plan(rng, fw, workspace):
    """As SGLang's fast_prefill_plan does."""
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, use_cuda_graph=True, **graph_buffers(fw, 5))
    pages = Pages(rng, fw, KV_LEN)
    qo = fw.tensor(QO, "int32")
    wrapper.plan(qo, pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type="float32")
    pages = Pages(rng, fw, [4, 5, 6, 7, 8])
    wrapper._paged_kv_indices_buf[: len(pages.indices)] = pages.indices
    ws = (wrapper._float_workspace_buffer, wrapper._int_workspace_buffer, wrapper._pin_memory_int_workspace_buffer)
    lengths = fw.tensor([4, 5, 6, 7, 8], "int32")
    wrapper._plan_info = wrapper._cached_module.plan(
        *ws, qo, pages.indptr, lengths, int(QO[-1]), 5, HEADS, KV_HEADS, PAGE, True, DIM, DIM, True, 2, -1, False, 0, 0
    )
    q = rows(rng, fw, QO[-1])
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(fw.host(q), pages.keys, causal=True, window_left=2)[0])


def test_workspace_size_is_enough_and_not_more(rng, fw):
    pages = Pages(rng, fw, [900, 300])
    args = (fw.tensor([0, 8, 9], "int32"), pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE)
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(fw.empty((16,), "uint8"))
    size, ints = wrapper.workspace_size(*args, causal=True, q_data_type="float32", fixed_split_size=16)
    assert size > 16 and ints > 0 and wrapper._plan_info is None
    spec = wrapper._plans
    wrapper.reset_workspace_buffer(fw.empty((size,), "uint8"), fw.empty((ints,), "uint8"))
    wrapper.plan(*args, causal=True, q_data_type="float32", fixed_split_size=16)
    need = size + 16 - spec._align()  # wherever in memory the buffer begins
    assert spec._memory(need) is not None and spec._memory(need + 64) is None
    q = rows(rng, fw, 9)
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(fw.host(q), pages.keys, [8, 1], causal=True)[0])
