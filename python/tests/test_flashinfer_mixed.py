"""kvloom.flashinfer: BatchAttention, sinks, prefill beside decode, against float64."""

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, PAGE, Pages, attention, rows
from reference import close

Q_LEN, KV_LEN = [1, 7, 0, 1, 3], [9, 7, 6, 33, 0]
QO = np.cumsum([0, *Q_LEN])


def wanted(fw, q, pages, q_len=Q_LEN, **features):
    begins, q = np.cumsum([0, *q_len]), fw.host(q)
    parts = [attention(q[begins[r] : begins[r + 1]], *pages.keys(r), **features) for r in range(len(q_len))]
    return [np.concatenate(x) for x in zip(*parts)]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("causal", [False, True])
def test_batch_attention(rng, fw, layout, causal):
    pages = Pages(rng, fw, KV_LEN, layout)
    wrapper = flashinfer.BatchAttention(layout)
    lengths = fw.tensor(KV_LEN, "int32")
    f32 = fw.dtype("float32")
    wrapper.plan(fw.tensor(QO, "int32"), pages.indptr, pages.indices, lengths, HEADS, KV_HEADS, DIM, DIM, PAGE, causal, 0.3, 4.0, f32, f32)
    q = rows(rng, fw, QO[-1])
    for got, expected in zip(wrapper.run(q, (pages.k, pages.v)), wanted(fw, q, pages, causal=causal, sm_scale=0.3, soft_cap=4.0)):
        close(fw.host(got), expected)  # the cap of plan holds where run names none
    o, _ = wrapper.run(q, (pages.k, pages.v), k_scale=2.0, v_scale=3.0, logits_soft_cap=2.0)
    close(fw.host(o) / 3, wanted(fw, q, pages, causal=causal, sm_scale=0.6, soft_cap=2.0)[0])


def test_batch_attention_defaults_and_refusals(rng, fw):
    pages = Pages(rng, fw, KV_LEN, dtype="bfloat16")
    wrapper = flashinfer.BatchAttention()
    q = rows(rng, fw, QO[-1], "bfloat16")
    with pytest.raises(RuntimeError, match=r"expected a plan\(\)"):
        wrapper.run(q, (pages.k, pages.v))
    args = (fw.tensor(QO, "int32"), pages.indptr, pages.indices)
    wrapper.plan(*args, fw.tensor(KV_LEN, "int32"), HEADS, KV_HEADS, DIM, DIM, PAGE)
    close(fw.host(wrapper.run(q, (pages.k, pages.v))[0]), wanted(fw, q, pages)[0], "bf16")
    with pytest.raises(ValueError, match="`kv_len_arr`: request 0: expected 0 .. 12, its pages' tokens, got 13"):
        wrapper.plan(*args, fw.tensor([13, *KV_LEN[1:]], "int32"), HEADS, KV_HEADS, DIM, DIM, PAGE)
    with pytest.raises(ValueError, match="`kv_indptr`, `kv_len_arr`: expected 6 and 5 entries"):
        wrapper.plan(*args, fw.tensor(KV_LEN[1:], "int32"), HEADS, KV_HEADS, DIM, DIM, PAGE)


@pytest.mark.parametrize("window_left", [-1, 4])
def test_sink_wrapper(rng, fw, workspace, window_left):
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchAttentionWithAttentionSinkWrapper(
        workspace, "NHD", q_data_type=fw.dtype("float32"), kv_data_type=fw.dtype("float32"), head_dim_qk=DIM, head_dim_vo=DIM, window_left=window_left
    )
    q, sink = rows(rng, fw, QO[-1]), rng.standard_normal(HEADS).astype(np.float32)
    for step in range(2):
        tables = (fw.tensor(QO, "int32"), pages.indptr, pages.indices, pages.last)
        wrapper.plan(*tables, HEADS, KV_HEADS, DIM, PAGE, causal=True, window_left=window_left, q_data_type="float32")
        expected = wanted(fw, q, pages, causal=True, window_left=window_left, sm_scale=0.3, sink=sink)
        for got, x in zip(wrapper.run(q, (pages.k, pages.v), fw.tensor(sink), 0.3, return_lse=True), expected):
            close(fw.host(got), x)
    with pytest.raises(TypeError, match="expected 2 positional arguments behind the cache, sink, sm_scale"):
        wrapper.run(q, (pages.k, pages.v))


def jit_args(name, declaration, tensors=(), scalars=("sm_scale",)):
    dtypes = ["float32"] * 3 + ["int32", DIM, DIM]
    return ["an_uri", *dtypes, list(tensors), ["float"] * len(tensors), list(scalars), ["double"] * len(scalars), name, declaration]


def test_known_declarations(rng, fw, workspace):
    pages = Pages(rng, fw, KV_LEN)
    tables = (fw.tensor(QO, "int32"), pages.indptr, pages.indices, pages.last)
    q, sink = rows(rng, fw, QO[-1]), rng.standard_normal(HEADS).astype(np.float32)
    for args, given, words in (
        (jit_args("AttentionSink", "struct AttentionSink", ["sink"]), (fw.tensor(sink), 0.3), {"sink": sink, "sm_scale": 0.3}),
        (jit_args("DefaultAttention<false, false, false, false>", "#include"), (0.3,), {"sm_scale": 0.3}),
    ):
        wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, backend="fa2", jit_args=args)
        wrapper.plan(*tables, HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type="float32")
        close(fw.host(wrapper.run(q, (pages.k, pages.v), *given)), wanted(fw, q, pages, causal=True, **words)[0])


VARIANT = """
struct Slanted {
  struct Params {
    kvloom::Array<float, kvloom::dim::qo_heads> slope;
    float offset;
    KVLOOM_PARAMS(KVLOOM_PARAM(slope, 0.01, 0.5), KVLOOM_PARAM(offset, 0.0, 1.0))
  };
  static float logit(float score, const kvloom::Coord& c, const Params& p) { return score + p.slope(c.q_head) * float(c.kv_pos - c.q_pos) + p.offset; }
};
KVLOOM_VARIANT(Slanted)
"""


@pytest.mark.parametrize("kind", ["decode", "paged", "ragged"])
def test_a_variant_of_ones_own(rng, fw, workspace, kind):
    """kvloom's text stands where FlashInfer has a CUDA declaration; run takes its tensors and scalars by position."""
    args = jit_args("Slanted", VARIANT, ["slope"], ["offset", "sm_scale"])
    slope = rng.random(HEADS).astype(np.float32)
    given = (fw.tensor(slope), 0.5, 0.3)
    slanted = {"sm_scale": 0.3, "logit": lambda s, h, i, j: s + slope[h] * (j - i) + 0.5}
    kv_len = [9, 7, 6, 33, 2]
    pages = Pages(rng, fw, kv_len)
    if kind == "decode":
        wrapper, q = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, jit_args=args), rows(rng, fw, 5)
        wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
        o, expected = wrapper.run(q, (pages.k, pages.v), *given), wanted(fw, q, pages, [1] * 5, **slanted)[0]
    elif kind == "paged":
        wrapper, q = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, jit_args=args), rows(rng, fw, QO[-1])
        wrapper.plan(fw.tensor(QO, "int32"), pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, causal=True, q_data_type="float32")
        o, expected = wrapper.run(q, (pages.k, pages.v), *given), wanted(fw, q, pages, causal=True, **slanted)[0]
    else:
        wrapper, q = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace, jit_args=args), rows(rng, fw, QO[-1])
        wrapper.plan(fw.tensor(QO, "int32"), fw.tensor(np.cumsum([0, *kv_len]), "int32"), HEADS, KV_HEADS, DIM, q_data_type="float32")
        k, v = (fw.tensor(np.concatenate([pages.keys(r)[i] for r in range(5)])) for i in range(2))
        o, expected = wrapper.run(q, k, v, *given), wanted(fw, q, pages, **slanted)[0]
    close(fw.host(o), expected)


def test_pod(rng, fw, workspace):
    pages = Pages(rng, fw, [9, 4, 33])
    wrapper = flashinfer.PODWithPagedKVCacheWrapper(workspace)
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, data_type="float32", q_data_type="float32")
    q_p, k_p, v_p, q_d = rows(rng, fw, 7), *(rows(rng, fw, 20, heads=KV_HEADS) for _ in "kv"), rows(rng, fw, 3)
    expected_p, expected_d = attention(*map(fw.host, (q_p, k_p, v_p)), causal=True), wanted(fw, q_d, pages, [1] * 3)
    out_p, out_d = wrapper.run(q_p, k_p, v_p, q_d, (pages.k, pages.v), causal_p=True)
    close(fw.host(out_p), expected_p[0])
    close(fw.host(out_d), expected_d[0])
    both = wrapper.run(q_p, k_p, v_p, q_d, (pages.k, pages.v), causal_p=True, return_lse_p=True, return_lse_d=True)
    for got, expected in zip(both, (expected_p, expected_d)):
        for x, y in zip(got, expected):
            close(fw.host(x), y)


def test_batch_pod(rng, fw, workspace):
    pages_p, pages_d = Pages(rng, fw, [9, 12]), Pages(rng, fw, [5, 4, 33])
    wrapper = flashinfer.BatchPODWithPagedKVCacheWrapper(workspace)
    tables = [
        x
        for begins, pages in (([0, 3, 8], pages_p), ([0, 1, 2, 3], pages_d))
        for x in (fw.tensor(begins, "int32"), pages.indptr, pages.indices, pages.last)
    ]
    wrapper.plan(*tables, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    q_p, q_d, caches = rows(rng, fw, 8), rows(rng, fw, 3), [(p.k, p.v) for p in (pages_p, pages_d)]
    mask = [rng.random((n, m)) < 0.6 for n, m in ((3, 9), (5, 12))]
    flat = fw.tensor(np.concatenate([m.ravel() for m in mask]), "bool")
    for given in ({"causal_p": True}, {"custom_mask_p": flat}, {}):
        keep = mask if "custom_mask_p" in given else [None, None]
        parts = [
            attention(fw.host(q_p)[s], *pages_p.keys(r), causal="causal_p" in given, keep=keep[r]) for r, s in enumerate((slice(0, 3), slice(3, 8)))
        ]
        expected = [np.concatenate(x) for x in zip(*parts)], wanted(fw, q_d, pages_d, [1] * 3)
        got = wrapper.run(q_p, caches[0], q_d, caches[1], return_lse=True, **given)
        for a, b in zip(got, expected):
            for x, y in zip(a, b):
                close(fw.host(x), y)
        close(fw.host(wrapper.run(q_p, caches[0], q_d, caches[1], **given)[0]), expected[0][0])
