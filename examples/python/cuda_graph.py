"""Decode in CUDA graphs, with torch's tensors: a graph of all layers that serves every step. Once planned on the host before each replay, once planned
by the graph itself from lengths that never leave the GPU. Without a GPU it says so and does nothing."""

import sys
import time

try:
    import torch
except ImportError:
    torch = None

import kvloom

if torch is None or not torch.cuda.is_available():
    print("no torch with a GPU: nothing is captured")
    sys.exit()

REQUESTS, LAYERS, STEPS, HEADS, KV_HEADS, DIM, PAGE, ENTRIES = 32, 4, 20, 32, 8, 128, 16, 64
make = {"device": "cuda", "dtype": torch.bfloat16}
torch.manual_seed(7)
caches = [[torch.randn(REQUESTS * ENTRIES, PAGE, KV_HEADS, DIM, **make) for _ in "kv"] for _ in range(LAYERS)]
table = torch.randperm(REQUESTS * ENTRIES).reshape(REQUESTS, ENTRIES).int()
pages, q = table.cuda(), torch.randn(REQUESTS, HEADS, DIM, **make)
first = torch.randint(1, ENTRIES * PAGE - STEPS, (REQUESTS,), dtype=torch.int32)
spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=PAGE, dtype="bf16", causal=True)
sizes = {"max_requests": REQUESTS, "max_query_tokens": REQUESTS, "backend": "cuda"}


def model(engine, plan):
    """All layers; what one gives is asked by the next."""
    x = q
    for k_cache, v_cache in caches:
        x = engine.run(plan, x, k_cache, v_cache, pages=pages)
    return x


def planned_on_the_host():
    engine = kvloom.Engine(spec, **sizes)
    plan = engine.plan(first, block_table=table)
    model(engine, plan)  # kernels are loaded before the capture
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    plan.upload(stream)
    key = plan.graph_key
    with torch.cuda.graph(graph, stream=stream):
        out = model(engine, plan)

    def step(lengths):
        engine.replan(plan, lengths, block_table=table)
        assert plan.graph_key == key, "other kernels than the graph's: capture again"
        plan.upload(stream)
        with torch.cuda.stream(stream):
            graph.replay()
        stream.synchronize()
        return out

    return step


def planned_by_the_graph():
    engine = kvloom.Engine(spec, **sizes, policy="stream")
    there = first.cuda()
    plan = engine.plan_on_device(there, block_table=pages)
    model(engine, plan)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        engine.replan_on_device(plan, there, block_table=pages)
        out = model(engine, plan)

    def step(lengths):
        there.copy_(lengths)
        graph.replay()
        engine.check(plan)  # for the example: it waits, and would say what was wrong with the lengths
        return out

    return step


plain = kvloom.Engine(spec, **sizes)
for name, loop in (("planned on the host", planned_on_the_host()), ("planned by the graph", planned_by_the_graph())):
    worst, seconds = 0.0, 0.0
    for i in range(STEPS):
        q.normal_()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        out = loop(first + i)
        seconds += time.perf_counter() - begin
        worst = max(worst, float((out - model(plain, plain.plan(first + i, block_table=table))).abs().max()))
    print(f"{name}: {STEPS} steps of {LAYERS} layers, {1e6 * seconds / STEPS:.0f} us a step; at most {worst:.1e} from steps without a graph")
    assert worst < 3e-2
