"""kvloom.flashinfer on a GPU, with torch's tensors: KVLOOM_TEST_GPU=1 says that there is one. What wrappers compute is tested on the CPU; here: tables and
page ids on the device, CUDA graphs, streams, workspaces, and the operations that run there."""

import os

import numpy as np
import pytest

import kvloom.flashinfer as flashinfer
import reference
from reference import close

if os.environ.get("KVLOOM_TEST_GPU") != "1":
    pytest.skip("no GPU is promised (KVLOOM_TEST_GPU=1)", allow_module_level=True)

import torch  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
GPU = {"device": "cuda", "dtype": torch.bfloat16}
BF16 = {"q_data_type": torch.bfloat16}
LN2 = np.log(2.0)


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


@pytest.fixture
def workspace():
    return torch.empty(64 << 20, dtype=torch.uint8, device="cuda")


def host(x):
    return x.double().cpu().numpy()


def ints(x, device="cuda"):
    return torch.tensor(list(x), dtype=torch.int32, device=device)


class Pages:
    """A pool, requests of some lengths with shuffled pages, and their tables on the device."""

    def __init__(self, kv_len, dim=DIM, layout="NHD", pool=96, kv_heads=KV_HEADS):
        counts = [-(-n // PAGE) for n in kv_len]
        begins = np.cumsum([0, *counts])
        ids = torch.randperm(pool)[: begins[-1]].numpy()
        self.kv_len, self.ids_of, self.kv_heads = kv_len, [ids[a:b] for a, b in zip(begins, begins[1:])], kv_heads
        shape = (pool, 2, PAGE, kv_heads, dim) if layout == "NHD" else (pool, 2, kv_heads, PAGE, dim)
        self.cache, self.layout = torch.randn(shape, **GPU), layout
        self.tables = [ints(begins), ints(ids), ints(n - (c - 1) * PAGE if c else 0 for n, c in zip(kv_len, counts))]

    def keys(self, r):
        halves = host(self.cache)[self.ids_of[r]]
        if self.layout == "HND":
            halves = halves.swapaxes(2, 3)
        return [halves[:, i].reshape(-1, self.kv_heads, halves.shape[-1])[: self.kv_len[r]] for i in range(2)]


def check(got, q, pages, q_len, lse=None, **features):
    begins, q = np.cumsum([0, *q_len]), host(q)
    parts = [reference.attention(q[a:b], *pages.keys(r), **features) for r, (a, b) in enumerate(zip(begins, begins[1:]))]
    close(host(got), np.concatenate([o for o, _ in parts]), "bf16", "cuda")
    if lse is not None:
        wanted = np.concatenate([x for _, x in parts]) / LN2
        finite = np.isfinite(wanted)
        assert np.array_equal(np.isfinite(host(lse)), finite)
        assert np.abs(host(lse) - wanted)[finite].max() < 3e-3


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_decode(workspace, layout):
    pages = Pages([100, 1, 0, 333], layout=layout)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, layout)
    wrapper.plan(*pages.tables, HEADS, KV_HEADS, DIM, PAGE, window_left=64, **BF16)
    q = torch.randn(4, HEADS, DIM, **GPU)
    o, lse = wrapper.run(q, pages.cache, return_lse=True, k_scale=1.0, v_scale=1.0)
    assert o.device == q.device and o.dtype == q.dtype
    check(o, q, pages, [1] * 4, lse, window_left=64)
    sink = torch.randn(HEADS, device="cuda")
    check(wrapper.run(q, pages.cache, sinks=sink), q, pages, [1] * 4, window_left=64, sink=host(sink))


def graph_buffers(batch, pages=96):
    return {
        "paged_kv_indptr_buffer": torch.zeros(batch + 1, dtype=torch.int32, device="cuda"),
        "paged_kv_indices_buffer": torch.zeros(pages, dtype=torch.int32, device="cuda"),
        "paged_kv_last_page_len_buffer": torch.zeros(batch, dtype=torch.int32, device="cuda"),
    }


def captured(run):
    run()  # kernels are loaded before the capture
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


@pytest.mark.parametrize("replanned_by", ["plan", "fast_decode_plan", "_cached_module"])
def test_decode_in_a_graph(workspace, replanned_by):
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, use_cuda_graph=True, use_tensor_cores=True, **graph_buffers(4))
    first = Pages([100, 40, 7, 333])
    heads = (HEADS, KV_HEADS, DIM, PAGE)
    wrapper.plan(*first.tables, *heads, **BF16)
    q, cache = torch.randn(4, HEADS, DIM, **GPU), first.cache.clone()
    graph, o = captured(lambda: wrapper.run(q, cache))
    graph.replay()
    check(o, q, first, [1] * 4)
    for lengths in ([200, 1, 64, 0], [5, 500, 33, 90]):
        pages = Pages(lengths)
        cache.copy_(pages.cache)
        q.copy_(torch.randn_like(q))
        if replanned_by == "plan":
            wrapper.plan(*pages.tables, *heads, **BF16)
        else:
            for buffer, x in zip((wrapper._paged_kv_indptr_buf, wrapper._paged_kv_indices_buf, wrapper._paged_kv_last_page_len_buf), pages.tables):
                buffer[: len(x)].copy_(x)
            if replanned_by == "fast_decode_plan":
                flashinfer.fast_decode_plan(wrapper, *pages.tables, *heads, **BF16, global_override_indptr_cpu=pages.tables[0].cpu())
            else:
                ws = (wrapper._float_workspace_buffer, wrapper._int_workspace_buffer, wrapper._pin_memory_int_workspace_buffer)
                tables = (torch.arange(5, dtype=torch.int32), pages.tables[0].cpu(), ints(lengths, "cpu"))
                wrapper._cached_module.plan(*ws, *tables, 4, 4, HEADS, KV_HEADS, PAGE, True, DIM, DIM, False, -1, -1, False, 0, 0)
        graph.replay()
        torch.cuda.synchronize()
        check(o, q, pages, [1] * 4)


def test_a_wrapper_without_graph_mode_is_not_captured_unseen(workspace):
    pages = Pages([100, 40])
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(*pages.tables, HEADS, KV_HEADS, DIM, PAGE, **BF16)
    q = torch.randn(2, HEADS, DIM, **GPU)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        q.add_(0)
        with pytest.raises(ValueError, match="upload|captur"):
            wrapper.run(q, pages.cache)
    check(wrapper.run(q, pages.cache), q, pages, [1, 1])


@pytest.mark.parametrize("tables_on", ["cuda", "cpu"])
def test_paged_prefill(workspace, tables_on):
    pages, q_len = Pages([100, 40, 7, 333]), [30, 1, 7, 200]
    begins = ints(np.cumsum([0, *q_len]), tables_on)
    indptr, ids, last = pages.tables
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
    wrapper.plan(begins, indptr.to(tables_on), ids, last.to(tables_on), HEADS, KV_HEADS, DIM, PAGE, causal=True, logits_soft_cap=20.0, **BF16)
    q = torch.randn(sum(q_len), HEADS, DIM, **GPU)
    o, lse = wrapper.run(q, pages.cache, return_lse=True)
    check(o, q, pages, q_len, lse, causal=True, soft_cap=20.0)
    check(wrapper.forward(q, pages.cache, causal=False, sm_scale=0.05), q, pages, q_len, sm_scale=0.05)


def test_lengths_stay_on_the_host(workspace):
    """Until somebody reads them: by then the caller has written the next ones."""
    pages = Pages([100, 33])
    begins, ids, last = pages.tables[0].cpu(), pages.tables[1], pages.tables[2].cpu()
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(begins, ids, last, HEADS, KV_HEADS, DIM, PAGE, **BF16)
    begins.zero_()
    last.zero_()
    q = torch.randn(2, HEADS, DIM, **GPU)
    check(wrapper.run(q, pages.cache), q, pages, [1, 1])
    for got, wanted in ((wrapper._paged_kv_indptr_buf, pages.tables[0]), (wrapper._paged_kv_last_page_len_buf, pages.tables[2])):
        assert got.is_cuda and torch.equal(got, wanted)
    assert wrapper._qo_indptr_buf.tolist() == [0, 1, 2]


def test_masks_in_a_graph(workspace):
    q_len = [3, 5]
    sizes = {"qo_indptr_buf": 3, "paged_kv_indptr_buf": 3, "paged_kv_indices_buf": 96, "paged_kv_last_page_len_buf": 2, "mask_indptr_buf": 3}
    buffers = {name: torch.zeros(n, dtype=torch.int32, device="cuda") for name, n in sizes.items()}
    buffers["custom_mask_buf"] = torch.zeros(4096, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, use_cuda_graph=True, **buffers)
    q, cache, graph = torch.randn(8, HEADS, DIM, **GPU), None, None
    for lengths in ([50, 70], [20, 90]):
        pages = Pages(lengths)
        masks = [torch.rand(n, m) < 0.7 for n, m in zip(q_len, lengths)]
        flat = torch.cat([m.flatten() for m in masks]).cuda()
        wrapper.plan(ints([0, 3, 8]), *pages.tables, HEADS, KV_HEADS, DIM, PAGE, custom_mask=flat, **BF16)
        if graph is None:
            cache = pages.cache.clone()
            graph, o = captured(lambda: wrapper.run(q, cache))
        cache.copy_(pages.cache)
        graph.replay()
        torch.cuda.synchronize()
        parts = [reference.attention(host(q)[s], *pages.keys(r), keep=masks[r].numpy())[0] for r, s in enumerate((slice(0, 3), slice(3, 8)))]
        close(host(o), np.concatenate(parts), "bf16", "cuda")


def test_ragged_with_two_head_dims(workspace):
    begins = [0, 40, 100]
    q, k, v = (torch.randn(100, h, d, **GPU) for h, d in ((HEADS, 192), (KV_HEADS, 192), (KV_HEADS, 128)))
    wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace)
    wrapper.plan(ints(begins), ints(begins), HEADS, KV_HEADS, 192, 128, causal=True, **BF16)
    o = host(wrapper.run(q, k, v))
    for a, b in zip(begins, begins[1:]):
        close(o[a:b], reference.attention(host(q)[a:b], host(k)[a:b], host(v)[a:b], causal=True)[0], "bf16", "cuda")


def test_fp8_cache(workspace):
    pages = Pages([100, 40])
    exact = pages.cache.to(torch.float8_e4m3fn)
    pages.cache = exact.to(torch.bfloat16)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(*pages.tables, HEADS, KV_HEADS, DIM, PAGE, kv_data_type=torch.float8_e4m3fn, **BF16)
    q = torch.randn(2, HEADS, DIM, **GPU)
    o = wrapper.run(q, exact, k_scale=torch.tensor([0.5], device="cuda"), v_scale=2.0)
    check(o / 2, q, pages, [1, 1], sm_scale=0.5 * DIM**-0.5)


def test_cascade(workspace):
    pool = torch.randn(40, 2, PAGE, KV_HEADS, DIM, **GPU)
    ids, lengths = torch.randperm(40), [33, 1, 20]
    levels = ([ints([0, 3]), ints([0, 1, 2, 3])], [ints([0, 4]), ints([0, 3, 4, 6])], [ints(ids[:4]), ints(ids[4:10])], [ints([16]), ints([1, 1, 4])])
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, workspace)
    wrapper.plan(*levels, HEADS, KV_HEADS, DIM, PAGE, causal=True, window_left=70, **BF16)
    q = torch.randn(3, HEADS, DIM, **GPU)
    o, whole, at = host(wrapper.run(q, pool)), host(pool), 4
    for r, n in enumerate(lengths):
        used = -(-n // PAGE)
        keys = [np.concatenate([whole[x, i].reshape(-1, KV_HEADS, DIM) for x in (ids[:4], ids[at : at + used])])[: 64 + n] for i in range(2)]
        close(o[r : r + 1], reference.attention(host(q)[r : r + 1], *keys, causal=True, window_left=70)[0], "bf16", "cuda")
        at += used


@pytest.mark.parametrize("kept", ["together", "apart"])
def test_mla(workspace, kept):
    pool, heads, scale = torch.randn(40, PAGE, 576, **GPU), 16, 192**-0.5
    ckv, kpe = (pool[..., :512], pool[..., 512:]) if kept == "together" else (pool[..., :512].clone(), pool[..., 512:].clone())
    ids, kv_len = torch.randperm(40)[:10], [100, 33]
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(workspace)
    wrapper.plan(ints([0, 1, 2]), ints([0, 7, 10]), ints(ids), ints(kv_len), heads, 512, 64, PAGE, False, scale, torch.bfloat16, torch.bfloat16)
    q = torch.randn(2, heads, 576, **GPU)
    o, lse = wrapper.run(q[..., :512], q[..., 512:], ckv, kpe, return_lse=True, return_lse_base_on_e=True)
    for r, (rows, n) in enumerate(((ids[:7], 100), (ids[7:], 33))):
        k = host(pool)[rows].reshape(-1, 1, 576)[:n]
        wanted, wanted_lse = reference.attention(host(q)[r : r + 1], k, k[..., :512], sm_scale=scale)
        close(host(o)[r : r + 1], wanted, "bf16", "cuda")
        assert np.abs(host(lse)[r] - wanted_lse[0]).max() < 3e-3


def test_sparse(workspace):
    q, k, v = (torch.randn(n, h, DIM, **GPU) for n, h in ((64, HEADS), (96, KV_HEADS), (96, KV_HEADS)))
    there = torch.rand(4, 6) < 0.5
    keep = there.repeat_interleave(16, 0).repeat_interleave(16, 1).numpy()
    blocks = flashinfer.BlockSparseAttentionWrapper(workspace)
    indptr, columns = ints(np.cumsum([0, *there.sum(1)])), ints(there.nonzero()[:, 1])
    blocks.plan(indptr, columns, 64, 96, 16, 16, HEADS, KV_HEADS, DIM, o_data_type=torch.bfloat16, **BF16)
    wanted = reference.attention(host(q), host(k), host(v), keep=keep)[0]
    close(host(blocks.run(q, k, v)), wanted, "bf16", "cuda")
    variable = flashinfer.VariableBlockSparseAttentionWrapper(workspace)
    sizes = [ints([16] * n).repeat(KV_HEADS, 1) for n in (4, 6)]
    variable.plan(there.cuda().repeat(KV_HEADS, 1, 1), *sizes, HEADS, KV_HEADS, DIM, **BF16)
    o = variable.run(*(x.transpose(0, 1).contiguous() for x in (q, k, v)))
    close(host(o).swapaxes(0, 1), wanted, "bf16", "cuda")


def test_around_attention(workspace):
    """Appends, rotation and merges where the tensors are, in the current stream."""
    pages = Pages([20, 3])
    begins = ints([0, 20, 23])
    request, pos = flashinfer.get_batch_indices_positions(begins, flashinfer.get_seq_lens(pages.tables[0], pages.tables[2], PAGE), 24)
    k, v = (torch.randn(24, KV_HEADS, DIM, **GPU) for _ in "kv")
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        flashinfer.append_paged_kv_cache(k, v, request, pos, pages.cache, pages.tables[1], pages.tables[0], pages.tables[2])
    torch.cuda.current_stream().wait_stream(side)
    for r, s in enumerate((slice(0, 20), slice(20, 23))):
        for got, wanted in zip(pages.keys(r), (k, v)):
            assert np.array_equal(got, host(wanted)[s])
    turned, _ = flashinfer.apply_rope_pos_ids(k, v, pos)
    close(host(turned), reference.rope(host(k), pos.cpu().numpy()), "bf16")
    states = [(torch.randn(5, HEADS, DIM, **GPU), torch.randn(5, HEADS, device="cuda")) for _ in "ab"]
    merged, s = flashinfer.merge_state(*states[0], *states[1])
    wanted, wanted_s = reference.merge([host(o) for o, _ in states], [host(x) * LN2 for _, x in states])
    close(host(merged), wanted, "bf16")
    assert np.abs(host(s) - wanted_s / LN2).max() < 1e-4


def test_one_request_and_tables(workspace):
    q, k, v = (torch.randn(n, h, DIM, **GPU) for n, h in ((40, HEADS), (100, KV_HEADS), (100, KV_HEADS)))
    wanted = reference.attention(host(q), host(k), host(v), causal=True)[0]
    close(host(flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True)), wanted, "bf16", "cuda")
    close(host(flashinfer.single_decode_with_kv_cache(q[39], k, v)), wanted[39], "bf16", "cuda")
    graph, o = captured(lambda: flashinfer.single_decode_with_kv_cache(q[39], k, v))
    o.zero_()
    graph.replay()
    close(host(o), wanted[39], "bf16", "cuda")
    pages = Pages([100, 33])
    table = torch.zeros(2, 8, dtype=torch.int32, device="cuda")
    for row, ids in zip(table, pages.ids_of):
        row[: len(ids)] = ints(ids)
    q = torch.randn(2, HEADS, DIM, **GPU)
    o = flashinfer.xqa_batch_decode_with_kv_cache(q, pages.cache, workspace, table, ints([100, 33]), 100, DIM**-0.5)
    check(o, q, pages, [1, 1])


def test_batch_attention():
    pages, q_len = Pages([100, 40]), [30, 1]
    wrapper = flashinfer.BatchAttention()
    wrapper.plan(ints([0, 30, 31]), *pages.tables[:2], ints([100, 40]), HEADS, KV_HEADS, DIM, DIM, PAGE, causal=True)
    q = torch.randn(31, HEADS, DIM, **GPU)
    o, lse = wrapper.run(q, pages.cache)
    check(o, q, pages, q_len, lse, causal=True)
