"""kvloom.flashinfer: decode, against float64."""

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, PAGE, Pages, attention, rows
from reference import close

KV_LEN = [9, 0, 4, 33]


def wanted(q, pages, **features):
    q = pages.fw.host(q)
    per = q.shape[0] // len(pages.kv_len)
    parts = [attention(q[r * per : (r + 1) * per], *pages.keys(r), **features) for r in range(len(pages.kv_len))]
    return [np.concatenate(x) for x in zip(*parts)]


def test_single(rng, fw):
    for layout in ("NHD", "HND"):
        q, k, v = rows(rng, fw, 1)[0], *(rows(rng, fw, 50, heads=KV_HEADS) for _ in "kv")
        expected, expected_lse = attention(fw.host(q)[None], fw.host(k), fw.host(v), window_left=20, soft_cap=5.0, sm_scale=0.4)
        if layout == "HND":
            k, v = (fw.permute(x, 1, 0, 2) for x in (k, v))
        features = {"kv_layout": layout, "window_left": 20, "logits_soft_cap": 5.0, "sm_scale": 0.2, "q_scale": 4.0, "k_scale": 0.5, "v_scale": 3.0}
        o, lse = flashinfer.single_decode_with_kv_cache(q, k, v, return_lse=True, **features)
        assert tuple(o.shape) == (HEADS, DIM) and tuple(lse.shape) == (HEADS,)
        close(fw.host(o), 3.0 * expected[0])
        close(fw.host(lse), expected_lse[0])


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("form", ["pair", "one tensor"])
def test_batch(rng, fw, workspace, layout, form):
    pages = Pages(rng, fw, KV_LEN, layout)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, layout)
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=fw.dtype("float32"))
    cache = (pages.k, pages.v)
    if form == "one tensor":
        cache = fw.tensor(np.stack([np.asarray(pages.k), np.asarray(pages.v)], 1))
    q = rows(rng, fw, 4)
    o, lse = wrapper.run(q, cache, return_lse=True)
    for got, expected in zip((o, lse), wanted(q, pages)):
        close(fw.host(got), expected)
    out, other = fw.empty((4, HEADS, DIM)), fw.empty((4, HEADS))
    again = wrapper.run(q, cache, out=out, lse=other, return_lse=True)
    assert again[0] is out and again[1] is other
    close(fw.host(other), fw.host(lse))
    assert wrapper.run_return_lse(q, cache)[1].shape == lse.shape


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_default_dtypes(rng, fw, workspace, dtype):
    pages = Pages(rng, fw, KV_LEN, dtype=dtype)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    named = {} if dtype == "float16" else {"q_data_type": fw.dtype(dtype)}
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, **named)
    q = rows(rng, fw, 4, dtype)
    o = wrapper.run(q, (pages.k, pages.v))
    assert o.dtype == q.dtype
    close(fw.host(o), wanted(q, pages)[0], "f16" if dtype == "float16" else "bf16")


@pytest.mark.parametrize("scales", ["numbers", "one a head"])
def test_fp8_cache(rng, fw, workspace, scales):
    pages = Pages(rng, fw, KV_LEN, dtype="float8_e4m3fn")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(
        pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=fw.dtype("float16"), kv_data_type=fw.dtype("float8_e4m3fn")
    )
    k_scale, v_scale = (0.5, 2.0) if scales == "numbers" else (np.array([0.5, 0.25]), np.array([2.0, 3.0]))
    q = rows(rng, fw, 4, "float16")
    given = (k_scale, v_scale) if scales == "numbers" else (fw.tensor(k_scale), fw.tensor(v_scale))
    o = wrapper.run(q, (pages.k, pages.v), q_scale=1.5, k_scale=given[0], v_scale=given[1])
    pages.k_np, pages.v_np = pages.k_np * 1.5 * np.reshape(k_scale, (-1, 1)), pages.v_np * np.reshape(v_scale, (-1, 1))
    close(fw.host(o), wanted(q, pages)[0], "f16")


def test_fp8_queries(rng, fw, workspace):
    """q, k and v in fp8, with FlashInfer's positional scales, one a head."""
    pages = Pages(rng, fw, KV_LEN, dtype="float8_e4m3fn")
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    fp8 = fw.dtype("float8_e4m3fn")
    wrapper.plan(
        pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=fp8, kv_data_type=fp8, o_data_type=fw.dtype("float16")
    )
    q, s_q, s_k, s_v = rows(rng, fw, 4, "float8_e4m3fn"), np.array([1, 2, 0.5, 4]), np.array([0.5, 1]), np.array([2.0, 0.25])
    o = wrapper.run(q, (pages.k, pages.v), *(fw.tensor(s) for s in (s_q, s_k, s_v)))
    pages.k_np, pages.v_np = pages.k_np * s_k[:, None], pages.v_np * s_v[:, None]
    close(fw.host(o), wanted(fw.tensor(fw.host(q) * s_q[:, None]), pages)[0], "f16")


def test_speculative_queries_are_causal(rng, fw, workspace):
    pages = Pages(rng, fw, [9, 3, 4])
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, use_tensor_cores=True)
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32", q_len_per_req=3)
    q = rows(rng, fw, 9)
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(q, pages, causal=True)[0])
    with pytest.raises(ValueError, match="`q`: expected 9 rows, 3 requests of q_len_per_req = 3"):
        wrapper.run(q[:3], (pages.k, pages.v))


def test_what_forward_says_counts(rng, fw, workspace):
    """Scale, cap and window that plan did not know."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.begin_forward(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, data_type="float32", q_data_type="float32")
    q = rows(rng, fw, 4)
    for features in ({}, {"sm_scale": 0.5}, {"logits_soft_cap": 2.0, "window_left": 5}, {"sm_scale": 0.5}):
        o, lse = wrapper.forward_return_lse(q, (pages.k, pages.v), **features)
        named = {
            "sm_scale": features.get("sm_scale"),
            "soft_cap": features.get("logits_soft_cap", 0.0),
            "window_left": features.get("window_left", -1),
        }
        for got, expected in zip((o, lse), wanted(q, pages, **named)):
            close(fw.host(got), expected)
    assert wrapper.end_forward() is None
    close(fw.host(wrapper.run(q, (pages.k, pages.v), window_left=3)), wanted(q, pages, window_left=3, sm_scale=0.5)[0])


def test_lengths_may_be_overwritten_after_plan(rng, fw, workspace):
    """Engines write the next step into the same host arrays while layers of this one still come."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    lists, last = pages.indptr + 0, pages.last + 0
    wrapper.plan(lists, pages.indices, last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    lists[...], last[...] = 0, 1
    q = rows(rng, fw, 4)
    close(fw.host(wrapper.forward(q, (pages.k, pages.v), sm_scale=0.5)), wanted(q, pages, sm_scale=0.5)[0])


def test_positional_orders(rng, fw, workspace):
    """Engines pass plan's options by position, in the order of the release that they were written for."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    first = (pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, "NONE", 6, 4.0, "float32", "float32")
    q = rows(rng, fw, 4)
    expected = wanted(q, pages, window_left=6, soft_cap=4.0, sm_scale=0.3)[0]
    for rest in (
        (None, 0.3, None, None, True, None, None, None, False),  # before o_data_type
        (None, None, 0.3, None, None, True, None, None, None, False),
    ):
        wrapper.plan(*first, *rest)
        assert (wrapper._window_left, wrapper._logits_soft_cap, wrapper._sm_scale) == (6, 4.0, 0.3)
        close(fw.host(wrapper.run(q, (pages.k, pages.v))), expected)


@pytest.mark.parametrize("mode", ["ROPE_LLAMA", "ALIBI"])
def test_positions(rng, fw, workspace, mode):
    import reference

    pages = Pages(rng, fw, [9, 4, 33])
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    scaling = {"rope_scale": 2.0, "rope_theta": 500.0} if mode == "ROPE_LLAMA" else {}
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32", pos_encoding_mode=mode, **scaling)
    q = rows(rng, fw, 3)
    o = fw.host(wrapper.run(q, (pages.k, pages.v)))
    for r, n in enumerate(pages.kv_len):
        k, v = pages.keys(r)
        q_r = fw.host(q)[r : r + 1]
        if mode == "ROPE_LLAMA":
            q_r, k = (reference.rope(x, np.array(p) / 2.0, 500.0) for x, p in ((q_r, [n - 1]), (k, range(n))))
            expected = attention(q_r, k, v)[0]
        else:
            expected = attention(q_r, k, v, slopes=[2.0 ** (-2 * (i + 1)) for i in range(HEADS)])[0]
        close(o[r : r + 1], expected, "f16")


def graph_wrapper(fw, workspace, batch, pages=64, cls=flashinfer.BatchDecodeWithPagedKVCacheWrapper):
    buffers = [fw.tensor(np.zeros(n), "int32") for n in (batch + 1, pages, batch)]
    return cls(
        workspace,
        use_cuda_graph=True,
        paged_kv_indptr_buffer=buffers[0],
        paged_kv_indices_buffer=buffers[1],
        paged_kv_last_page_len_buffer=buffers[2],
    )


def test_graph_mode(rng, fw, workspace):
    """Plans go into the same buffers; a padded request has no pages."""
    wrapper = graph_wrapper(fw, workspace, 4)
    assert wrapper.is_cuda_graph_enabled and wrapper._fixed_batch_size == 4
    kept = wrapper._paged_kv_indices_buf
    for lengths in ([9, 4, 33, 0], [50, 1, 1, 7]):
        pages = Pages(rng, fw, lengths)
        wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
        assert wrapper._paged_kv_indices_buf is kept
        assert np.array_equal(fw.host(kept)[: len(pages.indices)], fw.host(pages.indices))
        assert np.array_equal(fw.host(wrapper._paged_kv_indptr_buf), fw.host(pages.indptr))
        q = rows(rng, fw, 4)
        close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(q, pages)[0])
    plan = wrapper._plans.planned[next(iter(wrapper._plans.planned))].plan
    pages = Pages(rng, fw, [1, 2, 3, 4])
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    assert wrapper._plans.planned[next(iter(wrapper._plans.planned))].plan is plan  # graphs read it
    small = Pages(rng, fw, [9, 4])
    with pytest.raises(ValueError, match="`last_page_len`: expected 4 requests, fixed in CUDA-graph mode"):
        wrapper.plan(small.indptr, small.indices, small.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    large = Pages(rng, fw, [999, 4, 1, 1])
    with pytest.raises(ValueError, match="`indices`: expected at most the 64 entries"):
        wrapper.plan(large.indptr, large.indices, large.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(q, pages)[0])  # the step before is still there


def test_graph_mode_replans_every_attention_in_use(rng, fw, workspace):
    """A graph may hold any attention that ran; what plan was told of and nobody ran costs nothing more."""
    wrapper = graph_wrapper(fw, workspace, 2)
    pages = Pages(rng, fw, [9, 4])
    tables = (pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE)
    q = rows(rng, fw, 2)

    def now_planned():
        return {spec.sm_scale for (spec, _), entry in wrapper._plans.planned.items() if entry.number == wrapper._plans.number}

    wrapper.plan(*tables, q_data_type="float32")
    wrapper.forward(q, (pages.k, pages.v), sm_scale=0.5)
    wrapper.forward(q, (pages.k, pages.v), sm_scale=0.25)
    wrapper.plan(*tables, q_data_type="float32")
    assert now_planned() == {0.5, 0.25} and len(wrapper._plans.planned) == 3
    wrapper.run(q, (pages.k, pages.v))
    wrapper.plan(*tables, q_data_type="float32")
    assert len(now_planned()) == 3


def test_cuda_graph_class(rng, fw, workspace):
    buffers = [fw.tensor(np.zeros(n), "int32") for n in (3, 64, 2)]
    wrapper = flashinfer.CUDAGraphBatchDecodeWithPagedKVCacheWrapper(workspace, *buffers, "HND")
    pages = Pages(rng, fw, [9, 4], "HND")
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    q = rows(rng, fw, 2)
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(q, pages)[0])


@pytest.mark.parametrize("page", [1, PAGE])
def test_fast_decode_plan(rng, fw, workspace, page):
    """As SGLang does: the caller writes the buffers, the plan reads an indptr on the host."""
    from functools import partial

    wrapper = graph_wrapper(fw, workspace, 2)
    pages = Pages(rng, fw, [9, 4], page=page)
    wrapper.begin_forward(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, page, data_type="float32", q_data_type="float32")
    wrapper.begin_forward = partial(flashinfer.fast_decode_plan, wrapper)
    pages = Pages(rng, fw, [21, 30], page=page)
    for buffer, x in (
        (wrapper._paged_kv_indptr_buf, pages.indptr),
        (wrapper._paged_kv_indices_buf, pages.indices),
        (wrapper._paged_kv_last_page_len_buf, pages.last),
    ):
        buffer[: len(x)] = x
    wrapper.begin_forward(
        wrapper._paged_kv_indptr_buf,
        wrapper._paged_kv_indices_buf,
        wrapper._paged_kv_last_page_len_buf,
        HEADS,
        KV_HEADS,
        DIM,
        page,
        data_type="float32",
        q_data_type="float32",
        global_override_indptr_cpu=pages.indptr,
    )
    q = rows(rng, fw, 2)
    cache = (pages.k[:, 0], pages.v[:, 0]) if page == 1 else (pages.k, pages.v)  # a pool of slots
    close(fw.host(wrapper.forward(q, cache, sm_scale=0.3, logits_soft_cap=0.0)), wanted(q, pages, sm_scale=0.3)[0])


@pytest.mark.parametrize("arguments", ["no tensor cores", 15, 16, 18, 19, 20])
def test_module_plans(rng, fw, workspace, arguments):
    """As vLLM does: _cached_module.plan by position, behind the wrapper's back."""
    wrapper = graph_wrapper(fw, workspace, 3)
    pages = Pages(rng, fw, [9, 0, 4])
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    pages = Pages(rng, fw, [21, 0, 30])
    for buffer, x in (
        (wrapper._paged_kv_indptr_buf, pages.indptr),
        (wrapper._paged_kv_indices_buf, pages.indices),
        (wrapper._paged_kv_last_page_len_buf, pages.last),
    ):
        buffer[: len(x)] = x
    ws = (wrapper._float_workspace_buffer, wrapper._int_workspace_buffer, wrapper._pin_memory_int_workspace_buffer)
    lengths = fw.tensor([21, 1, 30], "int32")  # FlashInfer's host formula makes 1 of an empty request's padded last page
    if arguments == "no tensor cores":
        args = (*ws, pages.indptr, 3, HEADS, KV_HEADS, PAGE, True, -1, 0.0, DIM, DIM, None, None)
    else:
        args = (*ws, fw.tensor(range(4), "int32"), pages.indptr, lengths, 3, 3, HEADS, KV_HEADS, PAGE, True, DIM, DIM, False, -1, -1, False, 0, 0)[
            :arguments
        ]
    wrapper._plan_info = wrapper._cached_module.plan(*args)
    q = rows(rng, fw, 3)
    o, lse = wrapper.run(q, (pages.k, pages.v), return_lse=True)
    for got, expected in zip((o, lse), wanted(q, pages)):
        close(fw.host(got), expected)
    with pytest.raises(TypeError, match="expected 15 to 20 arguments"):
        wrapper._cached_module.plan(1, 2)


@pytest.mark.parametrize("schedule", [{"fixed_split_size": 2}, {"disable_split_kv": True}])
def test_bits_do_not_depend_on_the_batch(rng, fw, workspace, schedule):
    pages = Pages(rng, fw, [900, 1300, 4], page=16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    q = rows(rng, fw, 3)
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, 16, q_data_type="float32", **schedule)
    together = fw.host(wrapper.run(q, (pages.k, pages.v)))
    close(together, wanted(q, pages)[0])
    for r in range(3):
        wrapper.plan(pages.indptr[r : r + 2], pages.indices, pages.last[r : r + 1], HEADS, KV_HEADS, DIM, 16, q_data_type="float32", **schedule)
        assert np.array_equal(fw.host(wrapper.run(q[r : r + 1], (pages.k, pages.v))), together[r : r + 1])


def test_exact_workspace(rng, fw):
    """An engine takes the caller's memory where it is enough, and else its own."""
    pages = Pages(rng, fw, [900, 300])
    args = (pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(fw.empty((0,), "uint8"))
    size, ints = wrapper.workspace_size(*args, q_data_type="float32")
    assert wrapper.workspace_size(
        *args, "NONE", -1, None, "float32", "float32", None, None, 0.3, None, None, None, None, 8
    ) == wrapper.workspace_size(*args, q_data_type="float32", fixed_split_size=8)  # FlashInfer's order has no non_blocking here
    q = rows(rng, fw, 2)
    results = []
    for n in (0, size, size + 100):
        wrapper.reset_workspace_buffer(fw.empty((n,), "uint8"), fw.empty((ints,), "uint8"))
        wrapper.plan(*args, q_data_type="float32")
        results.append(fw.host(wrapper.run(q, (pages.k, pages.v))))
    close(results[0], wanted(q, pages)[0])
    assert np.array_equal(results[0], results[1]) and np.array_equal(results[0], results[2])


def test_sinks(rng, fw, workspace):
    """Documented by FlashInfer's run, and followed here."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
    q, sink = rows(rng, fw, 4), rng.standard_normal(HEADS)
    close(fw.host(wrapper.run(q, (pages.k, pages.v), sinks=fw.tensor(sink))), wanted(q, pages, sink=sink.astype(np.float32))[0])
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(q, pages)[0])


def test_lists_and_tables_that_begin_elsewhere(rng, fw, workspace):
    """paged_kv_indptr need not start at 0: vLLM plans the back part of its batch so."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(
        [int(i) for i in pages.indptr[2:]], pages.indices, [int(i) for i in pages.last[2:]], HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32"
    )
    q = rows(rng, fw, 4)
    close(fw.host(wrapper.run(q[2:], (pages.k, pages.v))), wanted(q, pages)[0][2:])


def test_a_step_of_other_kernels_than_the_captured_is_refused(rng, fw, workspace):
    """A graph's launches are fixed: what a plan needs must be what was captured (on a GPU run notes it under capture)."""
    import kvloom

    wrapper = graph_wrapper(fw, workspace, 2)
    pages = Pages(rng, fw, [9, 4])
    tables = (pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE)
    wrapper.plan(*tables, q_data_type="float32")
    (entry,) = wrapper._plans.planned.values()
    entry.captured.add(entry.plan.graph_key)
    wrapper.plan(*tables, q_data_type="float32")
    with pytest.raises(kvloom.MismatchError, match="fixed_split_size, disable_split_kv: expected those of the CUDA graphs"):
        wrapper.plan(*tables, q_data_type="float32", disable_split_kv=True)
    wrapper.run(rows(rng, fw, 2), (pages.k, pages.v))
    entry.captured = {entry.plan.graph_key ^ 1}
    with pytest.raises(kvloom.MismatchError, match="other kernels than the CUDA graphs that were captured.*capture again"):
        wrapper.plan(*tables, q_data_type="float32")


def test_a_wrapper_goes_with_its_last_name(rng, fw, workspace):
    """It and its engines' memory, without waiting for the garbage collector."""
    import gc
    import weakref

    gc.disable()
    try:
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
        pages = Pages(rng, fw, [9, 4])
        wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type="float32")
        wrapper.run(rows(rng, fw, 2), (pages.k, pages.v))
        with pytest.raises(ValueError):
            wrapper.plan(pages.indptr, pages.indices, pages.last + PAGE, HEADS, KV_HEADS, DIM, PAGE)
        gone = weakref.ref(wrapper)
        del wrapper
        assert gone() is None
    finally:
        gc.enable()
