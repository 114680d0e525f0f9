"""Objects die in any order, threads share them, and Ctrl-C comes through."""

import gc
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import numpy as np
import pytest

import kvloom
import reference
from reference import close

f32 = np.float32


def make():
    engine = kvloom.Engine(kvloom.Spec(num_qo_heads=2, head_dim=32, page_size=4), max_requests=4, max_query_tokens=16, backend="cpu")
    table = np.array([[2, 0], [1, 3]])
    return {"engine": engine, "table": table, "plan": engine.plan([6, 5], block_table=table)}


@pytest.mark.parametrize("order", list(itertools.permutations(["engine", "table", "plan"])))
def test_any_order(order):
    objects = make()
    for name in order:
        del objects[name]
        gc.collect()
        if "plan" in objects:
            assert objects["plan"].total_tokens == 2 and objects["plan"].svg() and objects["plan"].graph_key
        if "engine" in objects:
            assert objects["engine"].explain()


def test_page_ids_outlive_their_owner(rng):
    """A plan keeps the ids that run reads, whether an array of the caller's or a list."""
    k, v = (rng.standard_normal((9, 4, 2, 32), dtype=f32) for _ in "kv")
    q = rng.standard_normal((1, 2, 32), dtype=f32)
    engine = make()["engine"]
    wanted = reference.attention(q, k[[7, 4, 8]].reshape(12, 2, 32)[:10], v[[7, 4, 8]].reshape(12, 2, 32)[:10])[0]
    for pages in ([7, 4, 8], np.array([7, 4, 8]), np.array([7, 0, 4, 0, 8, 0])[::2]):
        plan = engine.plan([10], pages=pages, list_indptr=[0, 3])
        del pages
        gc.collect()
        junk = [np.full(3, -1) for _ in range(100)]
        close(engine.run(plan, q, k, v), wanted)
        del junk


def test_workspace_outlives_its_owner():
    spec, fields = kvloom.Spec(num_qo_heads=2, head_dim=32, page_size=4), {"max_requests": 4, "max_query_tokens": 16, "backend": "cpu"}
    size = kvloom.workspace_size(spec, **fields)
    memory = np.zeros(size + 64, np.uint8)
    memory = memory[-memory.ctypes.data % 64 :][:size]
    alive = weakref.ref(memory.base)
    engine = kvloom.Engine(spec, **fields, workspace=memory)
    plan = engine.plan([6], block_table=np.array([[0, 1]]))
    del memory
    gc.collect()
    k = np.ones((2, 4, 2, 32), f32)
    assert np.allclose(engine.run(plan, np.ones((1, 2, 32), f32), k, k), 1)
    del engine
    gc.collect()
    assert alive() is not None  # the plan holds the engine
    del plan
    gc.collect()
    assert alive() is None


def test_tensors_are_not_kept():
    objects = make()
    q, k = np.zeros((2, 2, 32), f32), np.zeros((4, 4, 2, 32), f32)
    counts = sys.getrefcount(q), sys.getrefcount(k)
    for _ in range(10):
        objects["engine"].run(objects["plan"], q, k, k)
        with pytest.raises(ValueError):
            objects["engine"].run(objects["plan"], q, k, k[:1])
    assert counts == (sys.getrefcount(q), sys.getrefcount(k))


def test_nothing_leaks():
    objects = make()
    q, k, out = np.zeros((2, 2, 32), f32), np.zeros((4, 4, 2, 32), f32), np.zeros((2, 2, 32), f32)
    engine = objects["engine"]

    def step():
        plan = engine.plan([6, 5], block_table=objects["table"])
        engine.run(plan, q, k, k, out=out)
        kvloom.attention(q, k[0], k[1])

    def resident():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for _ in range(500):
        step()
    before = resident()
    for _ in range(3000):
        step()
    assert resident() - before < 3 << 20, "a kilobyte a step"


def test_threads(rng):
    """Engines of their own, one engine for all, and plans that are replanned while others run."""
    k, v = (rng.standard_normal((40, 4, 2, 32), dtype=f32) for _ in "kv")
    shared, failures = make()["engine"], []

    def work(seed):
        try:
            mine = np.random.default_rng(seed)
            own = make()["engine"]
            for i in range(60):
                engine = (shared, own)[i % 2]
                table = mine.permutation(40)[:8].reshape(2, 4)
                kv_len = mine.integers(1, 17, 2)
                plan = engine.plan(kv_len, block_table=table)
                q = mine.standard_normal((2, 2, 32), dtype=f32)
                o = engine.run(plan, q, k, v)
                for r in range(2):
                    keys, values = (x[table[r]].reshape(16, 2, 32)[: kv_len[r]] for x in (k, v))
                    close(o[r : r + 1], reference.attention(q[r : r + 1], keys, values)[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures, failures


def test_replanning_under_a_run():
    """A run sees one step or the other, or is told; never a mixture."""
    objects = make()
    engine, plan = objects["engine"], objects["plan"]
    k = np.ones((4, 4, 2, 32), f32)
    stop = threading.Event()

    def replan():
        sizes = itertools.cycle([1, 2])
        while not stop.is_set():
            n = next(sizes)
            engine.replan(plan, [6] * n, block_table=objects["table"][:n])
            stop.wait(0.0001)

    thread = threading.Thread(target=replan)
    thread.start()
    for rows in np.random.default_rng(0).integers(1, 3, 2000):
        q = np.ones((rows, 2, 32), f32)
        try:
            assert np.allclose(engine.run(plan, q, k, k), 1)
        except ValueError as error:
            assert "`q`: expected" in str(error) or "another thread" in str(error)
    stop.set()
    thread.join()
    engine.replan(plan, [6, 5], block_table=objects["table"])
    assert np.allclose(engine.run(plan, np.ones((2, 2, 32), f32), k, k), 1)


def test_the_gil_is_released():
    """Python runs on while a long step does."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((6000, 2, 64), dtype=f32) for _ in "qkv")
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.05)
    start = time.perf_counter()
    kvloom.attention(q, k, v)
    end = time.perf_counter()
    done.set()
    thread.join()
    during = sum(start < t < end for t in ticks)
    assert during >= 3, (during, end - start)


def test_fork():
    """A process that was forked off has no threads of the pool's: it works by itself, with engines of before and of its own."""
    program = textwrap.dedent("""
        import os, signal
        import numpy as np, kvloom
        q = np.random.default_rng(0).standard_normal((300, 4, 64), dtype=np.float32)
        engine = kvloom.Engine(kvloom.Spec(num_qo_heads=4, head_dim=64), max_requests=1, max_query_tokens=300, backend="cpu")
        plan = engine.plan([300], [0, 300], list_indptr=[0])
        wanted = engine.run(plan, q, q, q)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            same = np.array_equal(engine.run(plan, q, q, q), wanted) and np.array_equal(kvloom.attention(q, q, q), kvloom.attention(q, q, q))
            del engine, plan
            os._exit(7 if same else 1)
        print(os.waitpid(child, 0)[1] >> 8, np.array_equal(engine.run(plan, q, q, q), wanted))
    """)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("7 True\n", "")


def test_ctrl_c():
    program = textwrap.dedent("""
        import numpy as np, kvloom, signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
        q = np.zeros((500, 2, 64), np.float32)
        print("ready", flush=True)
        try:
            while True:
                kvloom.attention(q, q, q)
        except KeyboardInterrupt:
            print("stopped", flush=True)
    """)
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.3)
    child.send_signal(signal.SIGINT)
    try:
        out, _ = child.communicate(timeout=30)
    finally:
        child.kill()
    assert out == "stopped\n" and child.returncode == 0


def test_exit_with_objects_alive():
    program = textwrap.dedent("""
        import numpy as np, kvloom
        engine = kvloom.Engine(kvloom.Spec(num_qo_heads=2, head_dim=32, page_size=4), max_requests=4, max_query_tokens=16)
        plan = engine.plan([6], block_table=np.array([[0, 1]]))
        cycle = [engine, plan]
        cycle.append(cycle)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
