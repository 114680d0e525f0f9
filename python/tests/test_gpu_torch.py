"""kvloom.torch on a GPU (KVLOOM_TEST_GPU=1 says that there is one): compiled code, streams, CUDA graphs."""

import os

import numpy as np
import pytest

import kvloom
import reference
from reference import close

if os.environ.get("KVLOOM_TEST_GPU") != "1":
    pytest.skip("no GPU is promised (KVLOOM_TEST_GPU=1)", allow_module_level=True)

import torch  # noqa: E402

import kvloom.torch as kt  # noqa: E402

# What torch's own compilers warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::FutureWarning:torch", "ignore::UserWarning:torch")

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
GPU = {"device": "cuda", "dtype": torch.bfloat16}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)
    torch._dynamo.reset()


def host(x):
    return x.float().cpu().numpy()


class Layer:
    """Appends a step's keys to a cache whose K and V are halves of each page, and attends."""

    def __init__(self):
        spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="bf16", page_size=PAGE, causal=True)
        self.step = kt.Step(kvloom.Engine(spec, max_requests=8, max_query_tokens=256, backend="cuda"))
        self.cache = torch.zeros(40, PAGE, KV_HEADS, 2, DIM, **GPU)
        self.table = torch.randperm(40)[:16].reshape(2, 8).int()
        self.pages = self.table.cuda()
        self.kv_len = np.zeros(2, int)
        self.known = [[], []]

    def run(self, q, k, v, slots):
        keys, values = self.cache[..., 0, :], self.cache[..., 1, :]
        kt.append_kv(k * 2, v, keys, values, slots=slots)
        return self.step.run(q + 1, keys, values, pages=self.pages)

    def next(self, q_len):
        """Plans a step; q, k, v, slots of it, on the GPU."""
        n = sum(q_len)
        request = [r for r in range(2) for _ in range(q_len[r])]
        pos = [int(self.kv_len[r]) + i for r in range(2) for i in range(q_len[r])]
        self.kv_len += q_len
        slots = torch.empty(n, dtype=torch.int64)
        kvloom.append_slots(slots, request=request, pos=pos, page_size=PAGE, num_pages=40, block_table=self.table)
        self.step.plan(self.kv_len, np.cumsum([0, *q_len]), block_table=self.table)
        q, k, v = (torch.randn(n, h, DIM, **GPU) for h in (HEADS, KV_HEADS, KV_HEADS))
        for i, r in enumerate(request):
            self.known[r].append((host(k[i] * 2), host(v[i])))
        return q, k, v, slots.cuda()

    def check(self, q, q_len, out):
        for r, (begin, n) in enumerate(zip(np.cumsum([0, *q_len]), q_len)):
            keys = [np.stack([kv[i] for kv in self.known[r]]) for i in range(2)]
            close(host(out[begin : begin + n]), reference.attention(host(q[begin : begin + n] + 1), *keys, causal=True)[0], "bf16", "cuda")


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compiled(backend):
    layer = Layer()
    run = torch.compile(layer.run, fullgraph=True, backend=backend, dynamic=True)
    for q_len in ([20, 7], [1, 1], [3, 1]):
        tensors = layer.next(q_len)
        layer.check(tensors[0], q_len, run(*tensors))


def test_graph_of_compiled_code():
    layer = Layer()
    run = torch.compile(layer.run, fullgraph=True)
    run(*layer.next([20, 7]))
    static = layer.next([1, 1])
    run(*static)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        layer.step.plan(layer.kv_len, block_table=layer.table)
    key = layer.step.planned.graph_key
    with torch.cuda.graph(graph, stream=stream):
        out = run(*static)
    for _ in range(3):
        with torch.cuda.stream(stream):
            tensors = layer.next([1, 1])
            assert layer.step.planned.graph_key == key
            for to, x in zip(static, tensors):
                to.copy_(x)
            graph.replay()
        stream.synchronize()
        layer.check(tensors[0], [1, 1], out)


def test_graph_that_plans():
    """Step.plan_on_device before a compiled layer, both in one graph: lengths, slots and page ids are written, nothing is planned on the host."""
    spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="bf16", page_size=PAGE, causal=True)
    step = kt.Step(kvloom.Engine(spec, max_requests=8, max_query_tokens=256, backend="cuda", policy="stream"))
    cache = torch.randn(40, PAGE, KV_HEADS, 2, DIM, **GPU)
    table = torch.randperm(40, device="cuda")[:16].reshape(2, 8).int()
    kv_len = torch.tensor([20, 7], dtype=torch.int32, device="cuda")
    q = torch.randn(2, HEADS, DIM, **GPU)

    @torch.compile(fullgraph=True)
    def layer(q):
        return step.run(q * 2, cache[..., 0, :], cache[..., 1, :])

    step.plan_on_device(kv_len, block_table=table)
    layer(q)
    torch.cuda.synchronize()
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=stream):
        step.plan_on_device(kv_len, block_table=table)
        out = layer(q)
    for lengths in ([21, 8], [128, 1], [64, 65]):
        kv_len.copy_(torch.tensor(lengths))
        q.normal_()
        graph.replay()
        step.check()
        for r, n in enumerate(lengths):
            keys = [host(cache[table[r].long()][..., i, :]).reshape(-1, KV_HEADS, DIM)[:n] for i in range(2)]
            close(host(out[r : r + 1]), reference.attention(host(q[r : r + 1] * 2), *keys, causal=True)[0], "bf16", "cuda")
    kv_len.copy_(torch.tensor([5, -5]))
    graph.replay()
    with pytest.raises(ValueError, match="kv_len: request 1: got -5"):
        step.check()
    assert out.isnan().all()


def test_graphs_that_torch_makes_by_itself():
    """mode="reduce-overhead": what depends on a plan stays between its graphs, so that a next step is the next plan's."""
    layer = Layer()
    run = torch.compile(layer.run, mode="reduce-overhead")
    for q_len in ([20, 7], *[[1, 1]] * 6):
        tensors = layer.next(q_len)
        torch.compiler.cudagraph_mark_step_begin()
        layer.check(tensors[0], q_len, run(*tensors))


def test_attention_plans_from_lengths_on_the_gpu():
    q, k, v = (torch.randn(n, h, DIM, **GPU) for n, h in ((9, HEADS), (30, KV_HEADS), (30, KV_HEADS)))
    lengths = [torch.tensor(x, dtype=torch.int32, device="cuda") for x in ([0, 4, 9], [0, 10, 30])]

    def f(q, k, v, qo_indptr, kv_indptr):
        return kt.attention(q, k, v, qo_indptr=qo_indptr, kv_indptr=kv_indptr, causal=True)

    out = torch.compile(f, fullgraph=True)(q, k, v, *lengths)
    for a, b, c, d in ((0, 4, 0, 10), (4, 9, 10, 30)):
        close(host(out[a:b]), reference.attention(host(q[a:b]), host(k[c:d]), host(v[c:d]), causal=True)[0], "bf16", "cuda")
