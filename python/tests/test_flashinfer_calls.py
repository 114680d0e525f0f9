"""kvloom.flashinfer: functions of one call (page tables, variants of one request, RoPE with fp8), the older MLA decode, names that engines import."""

import kvloom
import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, PAGE, Pages, attention, rows
from reference import close
from test_flashinfer_mixed import VARIANT
from test_flashinfer_mla import Latent

KV_LEN = [9, 4, 33]


def table_of(pages):
    table = np.zeros((len(pages.kv_len), 12))
    for row, ids in zip(table, pages.ids_of):
        row[: len(ids)] = ids
    return pages.fw.tensor(table, "int32"), pages.fw.tensor(pages.kv_len, "int32")


def wanted(fw, q, pages, q_len, **features):
    begins, q = np.cumsum([0, *q_len]), fw.host(q)
    parts = [attention(q[begins[r] : begins[r + 1]], *pages.keys(r), **features) for r in range(len(q_len))]
    return [np.concatenate(x) for x in zip(*parts)]


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("q_len", [1, 3])
def test_decode_by_tables(rng, fw, workspace, layout, q_len):
    pages = Pages(rng, fw, KV_LEN, layout)
    q, sink = rows(rng, fw, 3 * q_len), rng.standard_normal(HEADS).astype(np.float32)
    features = {"causal": q_len > 1, "sm_scale": 0.3, "window_left": 7, "sink": sink}
    o_wanted, lse_wanted = wanted(fw, q, pages, [q_len] * 3, **features)
    named = {"kv_layout": layout, "q_len_per_req": q_len, "window_left": 7, "sinks": fw.tensor(sink)}
    args = ((pages.k, pages.v), workspace, *table_of(pages), 33, 0.3, 2.0)
    o, lse = flashinfer.trtllm_batch_decode_with_kv_cache(q, *args, return_lse=True, **named)
    close(fw.host(o) / 2, o_wanted)
    close(fw.host(lse), lse_wanted)
    close(fw.host(flashinfer.xqa_batch_decode_with_kv_cache(q, *args, **named)) / 2, o_wanted)
    one = fw.tensor(np.stack([np.asarray(pages.k), np.asarray(pages.v)], 1))
    out = fw.empty((3 * q_len, HEADS, DIM))
    named["sinks"] = [named["sinks"]]
    assert flashinfer.decode.trtllm_batch_decode_with_kv_cache(q, one, *args[1:], out=out, o_scale=4.0, **named) is out
    close(fw.host(out) * 2, o_wanted)


@pytest.mark.parametrize("causal", [False, True])
def test_prefill_by_tables(rng, fw, workspace, causal):
    pages = Pages(rng, fw, KV_LEN, "HND")
    q_len = [3, 4, 1]
    begins = fw.tensor(np.cumsum([0, *q_len]), "int32")
    q = rows(rng, fw, 8)
    o = flashinfer.prefill.trtllm_batch_context_with_kv_cache(
        q, (pages.k, pages.v), workspace, *table_of(pages), 4, 33, 0.3, 1.0, 3, begins, begins, causal=causal
    )
    expected = wanted(fw, q, pages, q_len, causal=causal, sm_scale=0.3)[0]
    close(fw.host(o), expected)
    varying = flashinfer.trtllm_batch_decode_with_kv_cache(
        q, (pages.k, pages.v), workspace, *table_of(pages), 33, 0.3, cum_seq_lens_q=begins, max_q_len=4
    )
    close(fw.host(varying), wanted(fw, q, pages, q_len, causal=True, sm_scale=0.3)[0])


def words_of(kept, q_len):
    """Packed rows of XQA's draft masks: uint16 words, two for every 32 draft tokens; kept: bool [rows, most draft tokens]."""
    wide = np.zeros((len(kept), -(-max(q_len) // 32) * 32), bool)
    wide[:, : kept.shape[1]] = kept
    return np.packbits(wide, axis=1, bitorder="little").view(np.uint16)


@pytest.mark.parametrize("kind", ["causal", "full", "tree"])
@pytest.mark.parametrize("q_len", [[4, 4, 4], [3, 0, 33], [2, 1, 0]])
def test_masks_of_draft_tokens(rng, fw, workspace, kind, q_len):
    """A row for every query token; of each request its own columns count, whatever stands behind them."""
    pages = Pages(rng, fw, [9, 4, 40])
    begins, most = np.cumsum([0, *q_len]), max(q_len)
    row = np.concatenate([np.arange(n) for n in q_len])[:, None]
    own = np.arange(most)[None] < np.repeat(q_len, q_len)[:, None]
    tree = rng.random((len(row), most)) < 0.4
    kept = {"causal": np.arange(most) <= row, "full": np.ones_like(own), "tree": tree | (np.arange(most) == row)}[kind] & own
    q, sink = rows(rng, fw, len(row)), rng.standard_normal(HEADS).astype(np.float32)
    options = {"sinks": fw.tensor(sink), "mask": fw.tensor(words_of(kept | ~own, q_len), "uint16")}
    features = {"sm_scale": 0.3, "sink": sink}
    parts = []
    for r, n in enumerate(q_len):
        mask = np.ones((n, pages.kv_len[r]), bool)
        mask[:, pages.kv_len[r] - n :] = kept[begins[r] : begins[r + 1], :n]
        parts.append(attention(fw.host(q)[begins[r] : begins[r + 1]], *pages.keys(r), keep=mask, **features)[0])
    args = ((pages.k, pages.v), workspace, *table_of(pages), 40, 0.3, 1.0)
    got = flashinfer.xqa_batch_decode_with_kv_cache(q, *args, q_len_per_req=most, q_cu_seq_lens=fw.tensor(begins, "int32"), **options)
    close(fw.host(got), np.concatenate(parts))
    if len(set(q_len)) == 1:
        options["mask"] = options["mask"].reshape((3, most, -1))
        close(fw.host(flashinfer.trtllm_batch_decode_with_kv_cache(q, *args, kv_layout="NHD", q_len_per_req=most, **options)), np.concatenate(parts))


def test_tables_refuse(rng, fw, workspace):
    pages = Pages(rng, fw, KV_LEN)
    table, lengths = table_of(pages)
    q, cache = rows(rng, fw, 3), (pages.k, pages.v)

    def call(q=q, cache=cache, table=table, lengths=lengths, **options):
        return flashinfer.xqa_batch_decode_with_kv_cache(q, cache, workspace, table, lengths, 33, 0.3, **options)

    with pytest.raises(ValueError, match="`query`: expected 6 rows, 3 requests of q_len_per_req = 2, got 3"):
        call(q_len_per_req=2)
    with pytest.raises(ValueError, match=r"`block_tables`: expected \[3, entries\]"):
        call(table=table[:2])
    with pytest.raises(ValueError, match="`seq_lens`: expected at most 8 tokens, those of block_tables' rows, got 33"):
        call(table=table[:, :2])
    drafts, words = {"q": rows(rng, fw, 6), "q_len_per_req": 2}, np.full((6, 2), 3, np.uint16)
    with pytest.raises(TypeError, match="`mask`: expected uint16 .*, got .*int32"):
        call(mask=table, **drafts)
    with pytest.raises(ValueError, match=r"`mask`: expected 6 rows of words, one for every row of query, got \[5, 2\]"):
        call(mask=fw.tensor(words[:5], "uint16"), **drafts)
    with pytest.raises(ValueError, match="`mask`: expected 20 bits a row or more, .* got 16"):
        call(q=rows(rng, fw, 60), q_len_per_req=20, mask=fw.tensor(np.zeros((60, 1)), "uint16"))
    with pytest.raises(ValueError, match="`seq_lens`: request 1: expected 5 tokens or more, its draft tokens, got 4"):
        call(q=rows(rng, fw, 15), q_len_per_req=5, mask=fw.tensor(np.full((15, 2), 5), "uint16"))
    with pytest.raises(kvloom.UnsupportedError, match="`query`: expected f16 or bf16, got e4m3"):
        call(q=rows(rng, fw, 3, "float8_e4m3fn"))
    with pytest.raises(kvloom.UnsupportedError, match="`kv_cache_sf`"):
        call(kv_cache_sf=1)
    with pytest.raises(ValueError, match=r"`kv_cache`: expected \(k, v\), or one tensor \[pages, 1 or 2, ..\]"):
        call(cache=pages.k)


def test_a_variant_of_one_request(rng, fw):
    facts = ("float32",) * 3 + (DIM, DIM, ["slope"], ["float"], ["offset", "sm_scale"], ["double"] * 2, "Slanted", VARIANT)
    module = flashinfer.jit.gen_customize_single_prefill_module("fa2", "slanted", *facts).build_and_load()
    q, k, v = rows(rng, fw, 7), *(rows(rng, fw, 20, heads=KV_HEADS) for _ in "kv")
    slope = rng.random(HEADS).astype(np.float32)
    features = {"sm_scale": 0.3, "logit": lambda s, h, i, j: s + slope[h] * (j - i) + 0.5}
    run = flashinfer.prefill.single_prefill_with_kv_cache_with_jit_module
    for mode, causal in ((0, False), (flashinfer.utils.MaskMode.CAUSAL.value, True)):
        for got, expected in zip(
            run(module, q, k, v, fw.tensor(slope), 0.5, 0.3, mask_mode=mode, return_lse=True),
            attention(fw.host(q), fw.host(k), fw.host(v), causal=causal, **features),
        ):
            close(fw.host(got), expected)
    module = flashinfer.jit.gen_customize_single_decode_module("slanted", *facts).build_and_load()
    o, lse = flashinfer.decode.single_decode_with_kv_cache_with_jit_module(module, q[6], k, v, fw.tensor(slope), 0.5, 0.3, return_lse=True)
    expected = attention(fw.host(q)[6:], fw.host(k), fw.host(v), **features)
    close(fw.host(o), expected[0][0])
    close(fw.host(lse), expected[1][0])
    with pytest.raises(TypeError, match="expected 3 positional arguments behind v, slope, offset, sm_scale, got 1"):
        run(module, q, k, v, 0.3)
    with pytest.raises(kvloom.UnsupportedError, match="variant 'FlashSigmoid': expected a variant of kvloom, got a CUDA source"):
        flashinfer.jit.gen_customize_single_decode_module("x", *facts[:-2], "FlashSigmoid", "struct FlashSigmoid : AttentionVariantBase {};")


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("is_neox", [False, True])
def test_rope_and_fp8_into_pages(rng, fw, latent, is_neox):
    """Turned, multiplied by the scale, rounded to fp8; keys are rotary dims, then the others."""
    tokens, rope, nope, heads = 5, 16, 32, 2
    angle = rng.random((20, rope // 2)) * 6
    table = fw.tensor(np.concatenate([np.cos(angle), np.sin(angle)], 1))
    pos = np.array([3, 4, 5, 0, 1])
    q_rope, q_nope = rows(rng, fw, tokens, "float16", 4, rope), rows(rng, fw, tokens, "float16", 4, nope)
    k_rope, k_nope = rows(rng, fw, tokens, "float16", heads, rope), rows(rng, fw, tokens, "float16", heads, nope)
    if latent:
        k_rope, k_nope = k_rope[:, 0], k_nope[:, 0]
    fp8 = fw.dtype("float8_e4m3fn")

    def turned(x, scale):
        x = fw.host(x).copy()
        cos, sin = np.cos(angle)[pos][:, None], np.sin(angle)[pos][:, None]
        y = x if x.ndim == 3 else x[:, None]
        first, second = (slice(0, rope // 2), slice(rope // 2, rope)) if is_neox else (slice(0, rope, 2), slice(1, rope, 2))
        a, b = y[..., first].copy(), y[..., second].copy()
        y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
        return x * scale

    def same(got, expected):
        got, expected = fw.host(got), np.asarray(expected)
        assert got.shape == expected.shape and np.abs(got - expected).max() <= np.abs(expected).max() * 2.0**-4  # e4m3: 3 bits of mantissa
        assert np.abs(got - expected).mean() <= np.abs(expected).mean() * 0.04

    function = flashinfer.rope.mla_rope_quantize_fp8 if latent else flashinfer.rope.rope_quantize_fp8
    results = function(q_rope, k_rope, q_nope, k_nope, table, fw.tensor(pos, "int32"), is_neox, fp8, 2.0, 0.5)
    expected = [turned(q_rope, 2.0), turned(k_rope, 0.5), 2.0 * fw.host(q_nope), 0.5 * fw.host(k_nope)]
    for got, x in zip(results, expected):
        assert got.dtype == fw.tensor([0], "float8_e4m3fn").dtype
        same(got, x)
    big = fw.tensor(np.full((tokens, 4, nope), 6e4), "float16")
    assert np.isfinite(fw.host(function(q_rope, k_rope, big, k_nope, table, fw.tensor(pos, "int32"), is_neox, fp8, 2.0)[2])).all()  # clipped

    shapes = [(4, PAGE, nope), (4, PAGE, rope)] if latent else [(4, PAGE, heads, rope + nope), (4, PAGE, heads, nope)]
    caches = tuple(fw.tensor(np.zeros(s), "float8_e4m3fn") for s in shapes)
    v = None if latent else k_nope
    where = [fw.tensor(x, "int32") for x in ([2, 0, 1], [0, 2, 3], [0, 0, 0, 1, -1], [3, 4, 5, 0, 0])]
    q_r, q_n = flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
        q_rope, k_rope, q_nope, k_nope, v, table, fw.tensor(pos, "int32"), caches, *where, is_neox, fp8, 2.0, 0.5, PAGE
    )
    assert np.array_equal(fw.host(q_r), fw.host(results[0])) and np.array_equal(fw.host(q_n), fw.host(results[2]))
    for i, slot in enumerate([(2, 3), (0, 0), (0, 1), (1, 0)]):
        if latent:
            parts = [fw.host(results[3])[i], fw.host(results[1])[i]]
        else:
            parts = [np.concatenate([fw.host(results[1])[i], fw.host(results[3])[i]], -1), fw.host(results[3])[i]]
        for cache, part in zip(caches, parts):
            assert np.array_equal(fw.host(cache)[slot], part)
    assert not fw.host(caches[0])[1, 1:].any() and not fw.host(caches[0])[3].any()  # the token of request -1 is nowhere
    with pytest.raises(ValueError, match="`v`: expected"):
        flashinfer.rope.rope_quantize_fp8_append_paged_kv_cache(
            q_rope, k_rope, q_nope, k_nope, k_nope if latent else None, table, fw.tensor(pos, "int32"), caches, *where
        )


@pytest.mark.parametrize("graph", [False, True])
def test_older_latent_decode(rng, fw, workspace, graph):
    latent = Latent(rng, fw, "apart", kv_len=[9, 4, 7], q_len=[1, 1, 1], kpe=8)
    last = fw.tensor([1, 4, 3], "int32")
    buffers = [fw.tensor(np.zeros(n), "int32") for n in (4, 32, 3)] if graph else [None] * 3
    wrapper = flashinfer.BatchDecodeMlaWithPagedKVCacheWrapper(workspace, graph, True, *buffers)
    assert wrapper.use_tensor_cores and wrapper.is_cuda_graph_enabled == graph
    wrapper.plan(latent.tables[1], latent.tables[2], last, 6, 64, PAGE, 0.2, data_type="float32")
    o, lse = latent.run(wrapper, return_lse=True)
    for got, expected in zip((o, lse), latent.wanted(False)):
        close(fw.host(got), expected)
    wrapper.plan(latent.tables[1], latent.tables[2], last, 6, 64, PAGE, 0.2, logits_soft_cap=0.5, data_type="float32")
    assert np.abs(fw.host(latent.run(wrapper)) - fw.host(o)).max() > 1e-3


def test_names_of_utils(fw):
    import importlib

    utils = flashinfer.utils
    assert importlib.import_module("kvloom.flashinfer.utils") is utils
    assert [m.value for m in utils.MaskMode] == [0, 1, 2, 3] and utils.TensorLayout.HND.value == 1 and utils.PosEncodingMode["ALIBI"].value == 2
    assert [utils.next_positive_power_of_2(n) for n in (0, 1, 3, 8, 9)] == [1, 1, 4, 8, 16]
    held = utils.FP4Tensor(1, 2)
    assert (held.data, held.scale) == (1, 2)
    if fw.name == "torch":
        slopes = utils.get_alibi_slopes(6)
        assert slopes.tolist() == pytest.approx([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8, 2.0**-1, 2.0**-3])
        assert not utils.is_sm90a_supported("cpu")
        with pytest.raises(ValueError, match="`device`: expected a GPU, got cpu"):
            utils.get_compute_capability("cpu")


def test_plans_follow_what_runs_ask_for(rng, fw, workspace):
    """After forward asked for another scale than plan, the next plan is of that scale: a step is planned once, not twice."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)

    def step(**features):
        wrapper.begin_forward(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, data_type="float32", q_data_type="float32")
        planned = [spec.sm_scale for (spec, _), entry in wrapper._plans.planned.items() if entry.number == wrapper._plans.number]
        close(fw.host(wrapper.forward(q, (pages.k, pages.v), **features)), wanted(fw, q, pages, [1] * 3, sm_scale=features.get("sm_scale"))[0])
        return planned

    q, default = rows(rng, fw, 3), 1.0 / np.sqrt(DIM)
    assert step(sm_scale=0.3) == [default]
    assert step(sm_scale=0.3) == [0.3]
    assert step() == [0.3]
    assert step() == [default]
    for i in range(20):
        step(sm_scale=0.1 + i)
    assert len(wrapper._plans.planned) <= 8


def test_calls_of_one_request_share_an_engine(rng, fw):
    """However many lengths come: memory for partial results is an engine's, and there is one a Spec."""
    from kvloom import _engines
    from kvloom.flashinfer import _plans

    _engines.clear_engines()
    _plans._one.clear()
    k, v = (rows(rng, fw, 200, heads=KV_HEADS) for _ in "kv")
    for n in range(1, 100):
        q = rows(rng, fw, n)
        o = flashinfer.single_prefill_with_kv_cache(q, k[: 2 * n], v[: 2 * n])
    close(fw.host(o), attention(fw.host(q), fw.host(k)[:198], fw.host(v)[:198])[0])
    assert len(_engines._engines) == 1 and len(_plans._one) <= 64
    close(fw.host(flashinfer.single_prefill_with_kv_cache(q, k[:198], v[:198])), fw.host(o))
