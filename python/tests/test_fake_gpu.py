"""Steps whose lengths stay on the GPU, on a driver without one (fake_gpu.py): in a process of its own, since the driver is looked for once."""

import gc
import itertools
import os
import threading
import weakref

import numpy as np
import pytest

import kvloom
import reference
from exporters import Exchange, bf16, from_bf16
from reference import close

if "KVLOOM_TEST_FAKE_DRIVER" not in os.environ:
    pytest.skip("KVLOOM_TEST_FAKE_DRIVER names no driver (./run test gives it)", allow_module_level=True)

from fake_step import DIM, HEADS, KV_HEADS, KV_LEN, PAGE, PAGES, Q_LEN, REQUESTS, SIZES, TOKENS, indptr, make_engine  # noqa: E402
from fake_step import cache, default_stream, engine, gpu, rows  # noqa: E402, F401  fixtures


def lists_of(gpu, cache, form, dtype):
    table = cache.table.astype(dtype)
    if form == "table":
        return {"block_table": gpu.put(table)}
    if form == "wide table":  # an engine's own, with columns that are no page ids
        wide = np.full((REQUESTS, 20), 99, dtype)
        wide[:, :15] = table
        return {"block_table": gpu.put(wide).view(np.s_[:, :15])}
    pages = np.concatenate([table[r, : -(-n // PAGE)] for r, n in enumerate(KV_LEN)])
    begins = indptr([-(-n // PAGE) for n in KV_LEN]).astype(dtype)
    return {"pages": gpu.put(pages), "list_indptr": gpu.put(begins if form == "pages" else begins[:-1])}


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
@pytest.mark.parametrize("form", ["table", "wide table", "pages", "pages without an end"])
def test_forms(gpu, engine, cache, rows, form, dtype):
    q, q_there, out = rows
    lists = lists_of(gpu, cache, form, dtype)
    plan = engine.plan_on_device(gpu.put(np.array(KV_LEN, dtype)), gpu.put(indptr(Q_LEN).astype(dtype)), **lists, **SIZES)
    assert plan.total_tokens == TOKENS and plan.num_requests == REQUESTS and plan.graph_key
    assert engine.run(plan, q_there, cache.k, cache.v, out=out) is out  # the ids that the plan was made from
    cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
    with pytest.raises(ValueError, match="call check"):
        plan.explain()
    assert engine.check(plan) is None
    assert "launch attend_memory" in plan.explain() and plan.svg() and plan.json() and bytes(plan)
    poisoned = np.full((TOKENS, HEADS, DIM), 0x7FC0, np.uint16)
    out.write(poisoned)
    engine.run(plan, q_there, cache.k, cache.v, out=out, pages=lists.get("pages") or lists["block_table"])
    cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
    assert np.array_equal(out.read()[sum(Q_LEN) :], poisoned[sum(Q_LEN) :])  # behind the last request nothing is touched


def test_bytes_of_the_host(gpu, engine, cache):
    """A step of one class is scheduled alike on both sides."""
    table = gpu.put(cache.table.astype(np.int32))
    there = engine.plan_on_device(gpu.put(np.array(KV_LEN)), gpu.put(np.arange(5)), block_table=table, num_tokens=4, max_q_len=1)
    engine.check(there)
    here = engine.plan(KV_LEN, block_table=cache.table)
    assert there.graph_key == here.graph_key and bytes(there) == bytes(here) and there.json() == here.json()
    engine.check(here)  # of the host's it does nothing


def test_ragged(gpu, rng):
    engine = make_engine(page_size=None)
    k, v = (from_bf16(bf16(rng.standard_normal((50, KV_HEADS, DIM), dtype=np.float32))) for _ in "kv")
    q = from_bf16(bf16(rng.standard_normal((3, HEADS, DIM), dtype=np.float32)))
    out = gpu.put_bf16(np.zeros_like(q))
    step = gpu.put(np.array([20, 30])), gpu.put(np.array([0, 1, 3]))
    sizes = {"list_indptr": gpu.put(np.array([0, 20, 50])), "num_tokens": 3, "max_q_len": 2}
    plan = engine.plan_on_device(*step, **sizes, kv_tokens=50)
    engine.run(plan, gpu.put_bf16(q), gpu.put_bf16(k), gpu.put_bf16(v), out=out)
    for a, b, c, d in ((0, 1, 0, 20), (1, 3, 20, 50)):
        close(from_bf16(out.read())[a:b], reference.attention(q[a:b], k[c:d], v[c:d], causal=True)[0], "bf16")
    with pytest.raises(TypeError, match="`kv_tokens`: expected an integer, got None; without pages it is the number of tokens"):
        engine.plan_on_device(*step, **sizes)
    engine.replan_on_device(plan, *step, **sizes, kv_tokens=49)
    with pytest.raises(ValueError, match="request 1"):
        engine.check(plan)


def test_decode(gpu, cache, rows, monkeypatch):
    """Without qo_indptr: one that is made once an engine, and stays."""
    engine = make_engine()
    q, q_there, out = rows
    table = gpu.put(cache.table.astype(np.int32))
    with pytest.raises(TypeError, match="`qo_indptr`: got None with lengths in a DeviceArray, .* for tensors of torch, CuPy and JAX alone"):
        engine.plan_on_device(gpu.put(np.array(KV_LEN)), block_table=table)
    made = []

    def ramp(like, device, size):
        made.append((device, size))
        return gpu.put(np.arange(size, dtype=np.int32))

    monkeypatch.setattr("kvloom._frameworks.ramp", ramp)
    plan = None
    for n in (4, 2, 3):
        step, lists = gpu.put(np.array(KV_LEN[:n])), {"block_table": table.view(np.s_[:n])}
        if plan is None:
            plan = engine.plan_on_device(step, **lists)
        else:
            engine.replan_on_device(plan, step, **lists)
        assert plan.total_tokens == plan.num_requests == n
        engine.run(plan, q_there.view(np.s_[:n]), cache.k, cache.v, out=out.view(np.s_[:n]))
        cache.check(q, from_bf16(out.read()), [1] * n, KV_LEN[:n])
    assert made == [(0, REQUESTS + 1)]
    # Sizes of batch captured over one plan, replayed in turns.
    kv_len, Exchange.stream = gpu.put(np.array(KV_LEN)), gpu.stream()
    graphs = {}
    for n in (4, 2):

        def work():
            engine.replan_on_device(plan, kv_len.view(np.s_[:n]), block_table=table.view(np.s_[:n]))
            engine.run(plan, q_there.view(np.s_[:n]), cache.k, cache.v, out=out.view(np.s_[:n]))

        graphs[n] = gpu.captured(Exchange.stream, work)
    for n, lengths in ((4, [5, 128, 77, 16]), (2, [6, 9, 0, 0]), (4, [7, 10, 78, 17])):
        kv_len.write(lengths)
        graphs[n]()
        cache.check(q, from_bf16(out.read()), [1] * n, lengths[:n])
        engine.check(plan)
        assert f"{n} requests, {n} query tokens" in plan.explain()
    assert made == [(0, REQUESTS + 1)]
    with pytest.raises(kvloom.CapacityError, match="`kv_len`: expected at most max_requests = 4 requests, got 5"):
        engine.replan_on_device(plan, gpu.put(np.array([1] * 5)), block_table=gpu.put(np.zeros((5, 15), int)))


def test_a_list_a_kv_head(gpu, engine, cache, rows, rng):
    q, q_there, out = rows
    tables, lengths = rng.permutation(PAGES).reshape(4, 15), [20, 50, 33, 100]
    arrays = gpu.put(np.array(lengths)), gpu.put(np.arange(3))
    plan = engine.plan_on_device(*arrays, block_table=gpu.put(tables), lists_per_kv_head=True, num_tokens=2, max_q_len=1)
    assert plan.num_requests == 2
    engine.run(plan, q_there.view(np.s_[:2]), cache.k, cache.v, out=out.view(np.s_[:2]))
    got = from_bf16(out.read())
    for i, n in enumerate(lengths):
        r, h = divmod(i, KV_HEADS)
        keys = [pool[tables[i]].reshape(-1, KV_HEADS, DIM)[:n, h : h + 1] for pool in cache.host]
        heads = np.s_[r : r + 1, h * HEADS // KV_HEADS : (h + 1) * HEADS // KV_HEADS]
        close(got[heads], reference.attention(q[heads], *keys, causal=True)[0], "bf16")


def test_upper_bounds(gpu, engine, cache, rows):
    q, q_there, out = rows
    table = cache.table.astype(np.int32)
    for r, n in enumerate(KV_LEN):
        table[r, -(-n // PAGE) :] = 2**31 - 1  # never read
    first = np.array(KV_LEN, np.int32) - np.array(Q_LEN, np.int32)
    plan = engine.plan_on_device(
        gpu.put(np.full(REQUESTS, 15 * PAGE)), gpu.put(indptr(Q_LEN)), block_table=gpu.put(table), q_pos0=gpu.put(first), **SIZES
    )
    engine.run(plan, q_there, cache.k, cache.v, out=out)
    cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
    engine.check(plan)


def test_plan_and_layers_in_one_graph(gpu, engine, cache, rows):
    """Only what arrays hold changes from replay to replay; the stream is that of the arrays' framework."""
    q, q_there, out = rows
    second = gpu.put_bf16(np.zeros_like(q))
    kv_len, ends = gpu.put(np.ones(REQUESTS, int)), gpu.put(np.arange(5))
    step = {"kv_len": kv_len, "qo_indptr": ends, "block_table": gpu.put(cache.table.astype(np.int32)), **SIZES}
    plan = engine.plan_on_device(**step)
    Exchange.stream = stream = gpu.stream()

    def work():
        engine.replan_on_device(plan, **step)
        for o in (out, second):
            engine.run(plan, q_there, cache.k, cache.v, out=o)

    launch = gpu.captured(stream, work)
    for q_len, lengths in (([1, 1, 1, 1], [60, 9, 1, 33]), (Q_LEN, KV_LEN), ([4, 0, 4, 0], [40, 0, 4, 7])):
        kv_len.write(lengths)
        ends.write(indptr(q_len))
        for o in (out, second):
            o.write(np.full((TOKENS, HEADS, DIM), 0x7FC0, np.uint16))
        launch()
        gpu.synchronize(stream)
        for o in (out, second):
            cache.check(q, from_bf16(o.read()), q_len, lengths)
        engine.check(plan)


def test_an_explicit_stream(gpu, engine, cache, rows):
    q, q_there, out = rows
    step = {"kv_len": gpu.put(np.array(KV_LEN)), "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table), **SIZES}
    plan, stream = engine.plan_on_device(**step), gpu.stream()

    def work():
        engine.replan_on_device(plan, **step, stream=stream)
        engine.run(plan, q_there, cache.k, cache.v, out=out, stream=stream)
        with pytest.raises(ValueError, match="check waits for the device"):
            engine.check(plan, stream)

    gpu.captured(stream, work)()
    engine.check(plan, stream)
    cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
    for wrong in ("s", 1.5, -1):
        with pytest.raises(TypeError, match="`stream`: expected None, an address as an integer"):
            engine.check(plan, wrong)


def test_a_plan_goes_from_side_to_side(gpu, engine, cache, rows):
    q, q_there, out = rows
    step = {"kv_len": gpu.put(np.array(KV_LEN)), "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table), **SIZES}
    plan, n = engine.plan(KV_LEN, indptr(Q_LEN), block_table=cache.table), sum(Q_LEN)
    for _ in range(2):
        engine.replan_on_device(plan, **step)
        plan.upload()  # nothing to do
        assert plan.total_tokens == TOKENS
        engine.run(plan, q_there, cache.k, cache.v, out=out)
        cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
        engine.replan(plan, KV_LEN, indptr(Q_LEN), block_table=cache.table)
        assert plan.total_tokens == n and plan.explain()
        out.write(np.zeros((TOKENS, HEADS, DIM), np.uint16))
        engine.run(plan, q_there.view(np.s_[:n]), cache.k, cache.v, out=out.view(np.s_[:n]), pages=step["block_table"])
        cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)


def test_any_order(gpu, cache, rows):
    """Engine, plan and arrays are dropped in any order."""
    q, q_there, out = rows
    for order in itertools.permutations(["engine", "plan", "step"]):
        step = {"kv_len": gpu.put(np.array(KV_LEN)), "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table)}
        objects = {"engine": make_engine(), "step": step}
        del step
        objects["plan"] = objects["engine"].plan_on_device(**objects["step"], **SIZES)
        objects["engine"].check(objects["plan"])
        for name in order:
            del objects[name]
            gc.collect()
            if "plan" in objects:
                assert objects["plan"].total_tokens == TOKENS and "query tokens" in objects["plan"].explain()
            if "plan" in objects and "engine" in objects:
                objects["engine"].run(objects["plan"], q_there, cache.k, cache.v, out=out)
                cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)


def test_threads_share_an_engine(gpu, cache, rows):
    """Each with a plan of its own; their calls take turns."""
    q, q_there, _ = rows
    engine, faults = make_engine(), []

    def work(seed):
        try:
            random_lengths = np.random.default_rng(seed)
            out, kv_len = gpu.put_bf16(np.zeros_like(q)), gpu.put(np.array(KV_LEN))
            step = {"kv_len": kv_len, "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table), **SIZES}
            plan = engine.plan_on_device(**step)
            for _ in range(20):
                lengths = random_lengths.integers(4, 240, REQUESTS)
                kv_len.write(lengths)
                engine.replan_on_device(plan, **step)
                engine.run(plan, q_there, cache.k, cache.v, out=out)
                engine.check(plan)
                cache.check(q, from_bf16(out.read()), Q_LEN, lengths)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not faults, faults


def test_arrays_live_as_long_as_their_step(gpu, engine, cache):
    def step():
        return {"kv_len": gpu.put(np.array(KV_LEN)), "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table)}

    first = step()
    alive = [weakref.ref(x) for x in first.values()]
    plan = engine.plan_on_device(**first, **SIZES)
    del first
    assert all(x() is not None for x in alive)
    with pytest.raises(kvloom.CapacityError):
        engine.replan_on_device(plan, **step(), num_tokens=99, max_q_len=4)
    assert all(x() is not None for x in alive)
    engine.replan_on_device(plan, **step(), **SIZES)
    assert all(x() is None for x in alive)


def test_step(gpu, cache):
    """kvloom.torch.Step, as far as no tensor of torch's is on a GPU."""
    pytest.importorskip("torch", reason="torch is not installed: pip install torch")
    import kvloom.torch

    step = kvloom.torch.Step(make_engine())
    with pytest.raises(ValueError, match=f"'{step.name}' has no plan yet; call its plan_on_device"):
        step.check()
    kv_len, lists = gpu.put(np.array(KV_LEN)), {"block_table": gpu.put(cache.table), **SIZES}
    plan = step.plan_on_device(kv_len, gpu.put(indptr(Q_LEN)), **lists)
    key = plan.graph_key
    step.check()
    assert "4 requests, 8 query tokens" in plan.explain()
    assert step.plan_on_device(kv_len, gpu.put(indptr([1, 1, 1, 1])), **lists) is plan is step.planned and plan.graph_key == key
    step.check()
    assert "4 requests, 4 query tokens" in plan.explain()
    kv_len.write([1, 2, -3, 4])
    step.plan_on_device(kv_len, gpu.put(indptr(Q_LEN)), **lists)
    with pytest.raises(ValueError, match="kv_len: request 2: got -3"):
        step.check()
