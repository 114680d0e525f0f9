"""The package on a GPU, with torch's tensors: KVLOOM_TEST_GPU=1 says that there is one. What the kernels compute is tested elsewhere; here: streams,
devices, page ids, graphs, lifetimes."""

import os

import numpy as np
import pytest

import kvloom
import reference
from kvloom.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache
from reference import close

if os.environ.get("KVLOOM_TEST_GPU") != "1":
    pytest.skip("no GPU is promised (KVLOOM_TEST_GPU=1)", allow_module_level=True)

import torch  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
GPU = {"device": "cuda", "dtype": torch.bfloat16}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def host(x):
    return x.float().cpu().numpy()


def qkv(n, m):
    return [torch.randn(s, **GPU) for s in ((n, HEADS, DIM), (m, KV_HEADS, DIM), (m, KV_HEADS, DIM))]


def make_engine(policy="automatic", **fields):
    spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="bf16", page_size=PAGE, causal=True, **fields)
    return kvloom.Engine(spec, max_requests=8, max_query_tokens=256, backend="cuda", policy=policy)


def attend(q, pools, pages, kv_len):
    keys = [host(p)[pages].reshape(-1, KV_HEADS, DIM)[:kv_len] for p in pools]
    return reference.attention(host(q), *keys, causal=True)


def test_attention():
    q, k, v = qkv(40, 100)
    o, lse = kvloom.attention(q, k, v, causal=True, return_lse=True)
    assert o.device == q.device and o.dtype == q.dtype
    wanted, wanted_lse = reference.attention(*map(host, (q, k, v)), causal=True)
    close(host(o), wanted, "bf16", "cuda")
    assert np.abs(host(lse) - wanted_lse).max() < 2e-3


@pytest.mark.parametrize("where", ["cuda", "cpu"])
def test_attention_over_pages(where):
    q, pools = torch.randn(2, HEADS, DIM, **GPU), [torch.randn(9, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.tensor([[3, 8], [1, 2]], device=where)
    o = kvloom.attention(q, *pools, kv_len=torch.tensor([20, 31], device=where), block_table=table, causal=True)
    for r, n in enumerate([20, 31]):
        close(host(o)[r : r + 1], attend(q[r : r + 1], pools, table[r].cpu().numpy(), n)[0], "bf16", "cuda")


def test_steps():
    engine, pools = make_engine(), [torch.randn(40, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.randperm(40)[:24].reshape(3, 8).int()
    on_gpu = table.cuda()
    plan = engine.plan([1, 1, 1], block_table=table)
    for q_len, kv_len in (([70, 30, 1], [70, 33, 100]), ([1, 1, 1], [71, 34, 101]), ([1, 0, 20], [72, 34, 121])):
        indptr = np.cumsum([0, *q_len])
        engine.replan(plan, kv_len, indptr, block_table=table)
        q = torch.randn(int(indptr[-1]), HEADS, DIM, **GPU)
        out = torch.empty_like(q)
        assert engine.run(plan, q, *pools, out=out, pages=on_gpu) is out
        for r in range(3):
            rows = slice(indptr[r], indptr[r + 1])
            close(host(out)[rows], attend(q[rows], pools, table[r].numpy(), kv_len[r])[0], "bf16", "cuda")


def test_the_current_stream_is_taken():
    engine, pools = make_engine(), [torch.randn(9, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.tensor([[3, 8]], dtype=torch.int32)
    plan, pages = engine.plan([30], block_table=table), table.cuda()
    q = torch.zeros(1, HEADS, DIM, **GPU)
    engine.run(plan, q, *pools, pages=pages)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    for explicit in (False, True):
        late = torch.randn(1, HEADS, DIM, **GPU)
        torch.cuda.synchronize()
        q.zero_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            torch.cuda._sleep(200_000_000)  # q changes a tenth of a second from now, in this stream
            q.copy_(late)
            if not explicit:
                out = engine.run(plan, q, *pools, pages=pages)
        if explicit:
            out = engine.run(plan, q, *pools, pages=pages, stream=stream)
        stream.synchronize()
        close(host(out), attend(late, pools, [3, 8], 30)[0], "bf16", "cuda")


def test_graph():
    engine, pools = make_engine(), [torch.randn(40, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.randperm(40)[:16].reshape(2, 8).int()
    pages, q, out = table.cuda(), torch.randn(2, HEADS, DIM, **GPU), torch.empty(2, HEADS, DIM, **GPU)
    plan = engine.plan([50, 20], block_table=table)
    engine.run(plan, q, *pools, out=out, pages=pages)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    plan.upload(stream)
    key = plan.graph_key
    with torch.cuda.graph(graph, stream=stream):
        engine.run(plan, q, *pools, out=out, pages=pages)
    for kv_len in ([51, 21], [52, 100]):
        engine.replan(plan, kv_len, block_table=table)
        assert plan.graph_key == key
        q.normal_()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            plan.upload(stream)
            graph.replay()
        stream.synchronize()
        for r in range(2):
            close(host(out)[r : r + 1], attend(q[r : r + 1], pools, table[r].numpy(), kv_len[r])[0], "bf16", "cuda")


def check_rows(q, out, pools, table, q_len, kv_len):
    """Rows of `out` against REF; rows behind the last request are nobody's."""
    begin = 0
    for r, (n, m) in enumerate(zip(q_len, kv_len)):
        if n > 0:
            close(host(out[begin : begin + n]), attend(q[begin : begin + n], pools, table[r].cpu().numpy(), m)[0], "bf16", "cuda")
        begin += n


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_plan_and_layers_in_one_graph(dtype):
    """Lengths stay on the GPU: the graph plans at every replay, and only what arrays hold changes."""
    engine, pools = make_engine("stream"), [torch.randn(40, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.randperm(40, device="cuda")[:32].reshape(4, 8).to(dtype)
    kv_len, ends = torch.ones(4, dtype=dtype, device="cuda"), torch.arange(5, dtype=dtype, device="cuda")
    q, out = torch.randn(12, HEADS, DIM, **GPU), torch.empty(12, HEADS, DIM, **GPU)
    step = {"kv_len": kv_len, "qo_indptr": ends, "block_table": table, "num_tokens": 12, "max_q_len": 8}
    plan = engine.plan_on_device(**step)
    engine.run(plan, q, *pools, out=out)
    engine.check(plan)
    torch.cuda.synchronize()
    graph, stream, key = torch.cuda.CUDAGraph(), torch.cuda.Stream(), plan.graph_key
    with torch.cuda.graph(graph, stream=stream):
        engine.replan_on_device(plan, **step)
        engine.run(plan, q, *pools, out=out)
        second = engine.run(plan, q * 2, *pools)
    assert plan.graph_key == key
    for q_len, lengths in (([1, 1, 1, 1], [128, 9, 1, 33]), ([8, 0, 3, 1], [40, 0, 100, 7]), ([4, 4, 4, 0], [4, 64, 128, 0])):
        kv_len.copy_(torch.tensor(lengths))
        ends.copy_(torch.tensor(np.cumsum([0, *q_len])))
        q.normal_()
        graph.replay()
        engine.check(plan)  # waits for the current stream, which is the replay's
        check_rows(q, out, pools, table, q_len, lengths)
        check_rows(q * 2, second, pools, table, q_len, lengths)
        assert f"{sum(n > 0 for n in q_len)} requests, {sum(q_len)} query tokens" in plan.explain()  # with query tokens


def test_decode_planned_on_the_gpu():
    """Without qo_indptr; two sizes of batch captured over one plan, replayed in turns."""
    engine, pools = make_engine("stream"), [torch.randn(40, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.randperm(40, device="cuda")[:32].reshape(4, 8).int()
    kv_len, q = torch.ones(4, dtype=torch.int32, device="cuda"), torch.randn(4, HEADS, DIM, **GPU)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        q.add_(0)
        with pytest.raises(ValueError, match="`qo_indptr`: got None in the capture of a graph; plan a step without it on this engine before"):
            engine.plan_on_device(kv_len, block_table=table)
    plan, graphs = engine.plan_on_device(kv_len, block_table=table), {}
    engine.run(plan, q, *pools)
    torch.cuda.synchronize()
    for n in (4, 2):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            engine.replan_on_device(plan, kv_len[:n], block_table=table[:n])
            graphs[n] = graph, engine.run(plan, q[:n], *pools)
    for n, lengths in ((4, [5, 128, 77, 16]), (2, [6, 9, 0, 0]), (4, [7, 10, 78, 17])):
        kv_len.copy_(torch.tensor(lengths))
        graph, out = graphs[n]
        graph.replay()
        torch.cuda.synchronize()
        check_rows(q, out, pools, table, [1] * n, lengths)
        engine.check(plan)


def test_lengths_on_the_gpu():
    """Upper bounds with positions; the current stream is taken; lengths that can't be planned."""
    engine, pools = make_engine("stream"), [torch.randn(40, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.randperm(40, device="cuda")[:16].reshape(2, 8)
    q, ends = torch.randn(5, HEADS, DIM, **GPU), torch.tensor([0, 1, 5], device="cuda")
    sizes = {"num_tokens": 5, "max_q_len": 4}
    first = torch.tensor([99, 26], dtype=torch.int32, device="cuda")
    plan = engine.plan_on_device(torch.full((2,), 8 * PAGE, device="cuda"), ends, block_table=table, q_pos0=first, **sizes)
    check_rows(q, engine.run(plan, q, *pools), pools, table, [1, 4], [100, 30])
    engine.check(plan)
    kv_len, late, stream = torch.tensor([1, 4], device="cuda"), torch.tensor([100, 30], device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # the lengths change a tenth of a second from now, in this stream
        kv_len.copy_(late)
        engine.replan_on_device(plan, kv_len, ends, block_table=table, **sizes)
        out = engine.run(plan, q, *pools)
        engine.check(plan)
    check_rows(q, out, pools, table, [1, 4], [100, 30])
    engine.replan_on_device(plan, torch.tensor([100, -30], device="cuda"), ends, block_table=table, **sizes)
    out, lse = engine.run(plan, q, *pools, return_lse=True)
    assert out.isnan().all() and lse.isnan().all()
    with pytest.raises(ValueError, match="kv_len: request 1: got -30"):
        engine.check(plan)
    with pytest.raises(ValueError, match=r"`kv_len`: expected integers on cuda:0, got \[2\] int64 on cpu; the GPU reads them: move them there"):
        engine.plan_on_device(torch.tensor([100, 30]), ends, block_table=table, **sizes)
    with pytest.raises(kvloom.UnsupportedError, match="options.policy: got auto, wanted stream"):
        make_engine().plan_on_device(kv_len, ends, block_table=table, **sizes)


def test_operations():
    a, b = [(torch.randn(5, 2, 64, **GPU), torch.randn(5, 2, device="cuda")) for _ in "ab"]
    o, lse = kvloom.merge_states(*a, *b)
    wanted = reference.merge([host(a[0]), host(b[0])], [host(a[1]), host(b[1])])
    close(host(o), wanted[0], "bf16")
    close(host(lse), wanted[1])
    pools = [torch.zeros(4, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    k, v = (torch.randn(3, KV_HEADS, DIM, **GPU) for _ in "kv")
    kvloom.append_kv(k, v, *pools, slots=torch.tensor([5, 40, -1], device="cuda"))
    assert torch.equal(pools[0].view(-1, KV_HEADS, DIM)[[5, 40]], k[:2]) and torch.equal(pools[1].view(-1, KV_HEADS, DIM)[[5, 40]], v[:2])
    x = torch.randn(3, KV_HEADS, DIM, **GPU)
    wanted = reference.rope(host(x), [0, 7, 100])
    kvloom.apply_rope(x, torch.tensor([0, 7, 100], dtype=torch.int32, device="cuda"), kvloom.Rope())
    close(host(x), wanted, "bf16")


def test_flash_attn():
    q, k, v = (torch.randn(2, n, h, DIM, **GPU) for n, h in ((7, HEADS), (20, KV_HEADS), (20, KV_HEADS)))
    out = flash_attn_func(q, k, v, causal=True)
    for b in range(2):
        close(host(out)[b], reference.attention(host(q)[b], host(k)[b], host(v)[b], causal=True)[0], "bf16", "cuda")
    lengths = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 7, 14], [0, 20, 40])]
    varlen = flash_attn_varlen_func(q.view(14, HEADS, DIM), k.view(40, KV_HEADS, DIM), v.view(40, KV_HEADS, DIM), *lengths, 7, 20, causal=True)
    assert torch.equal(varlen.view_as(out), out)
    pools = [torch.randn(9, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table, before = torch.tensor([[3, 8], [1, 2]], dtype=torch.int32, device="cuda"), torch.tensor([12, 25], dtype=torch.int32, device="cuda")
    out = flash_attn_with_kvcache(q[:, :2], *pools, k[:, :2], v[:, :2], cache_seqlens=before, block_table=table, causal=True)
    for b, n in enumerate([14, 27]):
        close(host(out)[b], attend(q[b, :2], pools, table[b].cpu().numpy(), n)[0], "bf16", "cuda")


def test_traced_variant():
    slopes, document = torch.rand(HEADS, device="cuda"), torch.arange(100, device="cuda", dtype=torch.int32) // 30
    variant = kvloom.variant(lambda s, b, h, i, j: s - slopes[h] * abs(i - j), lambda b, h, i, j: document[i] == document[j])
    q, k, v = qkv(100, 100)
    d, s = document.cpu().numpy(), slopes.cpu().numpy()
    wanted = reference.attention(*map(host, (q, k, v)), keep=d[:, None] == d, logit=lambda x, h, i, j: x - s[h] * abs(i - j))[0]
    close(host(kvloom.attention(q, k, v, variant=variant)), wanted, "bf16", "cuda")


def test_wrong_places():
    engine, pools = make_engine(), [torch.randn(9, PAGE, KV_HEADS, DIM, **GPU) for _ in "kv"]
    table = torch.tensor([[3, 8]], dtype=torch.int32)
    q = torch.randn(1, HEADS, DIM, **GPU)
    with pytest.raises(ValueError, match=r"`kv_len`: expected integers on cpu, got \[1\] int64 on cuda:0"):
        engine.plan(torch.tensor([30], device="cuda"), block_table=table)
    plan = engine.plan([30], block_table=table)
    with pytest.raises(ValueError, match=r"`q`: expected \[1, 8, 128\] bf16 on cuda:0, got \[1, 8, 128\] bf16 on cpu; move it there"):
        engine.run(plan, q.cpu(), *pools, pages=table.cuda())
    with pytest.raises(ValueError, match=r"`pages`: expected integers on cuda:0, got .* on cpu"):
        engine.run(plan, q, *pools, pages=table)
    with pytest.raises(ValueError, match="pages: got none, wanted the page ids in device memory"):
        engine.run(plan, q, *pools)
