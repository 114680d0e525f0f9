"""Steps whose lengths stay on the GPU, on a driver without one (fake_gpu.py): in a process of its own, since the driver is looked for once."""

import os
import random
import weakref

import numpy as np
import pytest

import kvloom
import reference
from exporters import CUDA, Exchange, Versioned, bf16, from_bf16
from reference import close

if "KVLOOM_TEST_FAKE_DRIVER" not in os.environ:
    pytest.skip("KVLOOM_TEST_FAKE_DRIVER names no driver (./run test gives it)", allow_module_level=True)

from fake_gpu import FakeGpu  # noqa: E402
from test_garbage import BAG, EXPECTED  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE, PAGES, REQUESTS, TOKENS = 4, 2, 64, 16, 60, 4, 16
SPEC = {"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "dtype": "bf16", "causal": True}


@pytest.fixture(scope="session")
def gpu():
    made = FakeGpu()
    made.add_kernel("attend.any.bf16.d64.paged.causal", kvloom.Spec(**SPEC, page_size=PAGE))
    made.add_kernel("attend.any.bf16.d64.ragged.causal", kvloom.Spec(**SPEC))
    return made


@pytest.fixture(autouse=True)
def default_stream():
    Exchange.stream = 0
    yield
    Exchange.stream = 0x5EED0


def make_engine(page_size=PAGE, **fields):
    options = {"backend": "cuda", "policy": "stream", "max_requests": REQUESTS, "max_query_tokens": TOKENS, "max_kv_tokens": 4000, **fields}
    return kvloom.Engine(kvloom.Spec(**SPEC, page_size=page_size), **options)


@pytest.fixture
def engine(gpu):
    return make_engine()


class Cache:
    """K and V in pages on the device, and a table of [REQUESTS, 15] page ids, no page in two rows."""

    def __init__(self, gpu, rng):
        self.host = [from_bf16(bf16(rng.standard_normal((PAGES, PAGE, KV_HEADS, DIM), dtype=np.float32))) for _ in "kv"]
        self.k, self.v = map(gpu.put_bf16, self.host)
        self.table = rng.permutation(PAGES).reshape(REQUESTS, 15)

    def check(self, q, out, q_len, kv_len):
        """Rows of `out` against REF of the lengths."""
        begin = 0
        for r, (n, m) in enumerate(zip(q_len, kv_len)):
            keys = [pool[self.table[r]].reshape(-1, KV_HEADS, DIM)[:m] for pool in self.host]
            wanted = reference.attention(q[begin : begin + n], *keys, causal=True)[0]
            close(out[begin : begin + n], wanted, "bf16")
            begin += n


@pytest.fixture
def cache(gpu, rng):
    return Cache(gpu, rng)


@pytest.fixture
def rows(gpu, rng):
    """q as it is, q and out on the device, of as many rows as ever."""
    q = from_bf16(bf16(rng.standard_normal((TOKENS, HEADS, DIM), dtype=np.float32)))
    return q, gpu.put_bf16(q), gpu.put_bf16(np.zeros_like(q))


def indptr(lengths):
    return np.cumsum([0, *lengths])


Q_LEN, KV_LEN = [1, 2, 4, 1], [100, 70, 200, 30]
SIZES = {"num_tokens": TOKENS, "max_q_len": 4}


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
    with pytest.raises(TypeError, match="`qo_indptr`: got None with lengths in a DeviceArray, .* for tensors of torch and CuPy alone"):
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


@pytest.mark.parametrize(
    "change, error, text",
    [
        ({"kv_len": [100, -1, 200, 30]}, ValueError, "kv_len: request 1: got -1, wanted 0 to"),
        ({"kv_len": [100, 70, 2000, 30]}, ValueError, "request 2"),
        ({"kv_len": [100, 70, 241, 30]}, ValueError, "request 2"),
        ({"qo_indptr": [0, 2, 1, 3, 4]}, ValueError, "qo_indptr: request 1: got 1, wanted no decrease after 2"),
        ({"qo_indptr": [1, 2, 3, 4, 5]}, ValueError, "qo_indptr"),
        ({"qo_indptr": [0, 5, 6, 7, 8]}, kvloom.CapacityError, "request 0: got 5 query tokens, wanted at most"),
        ({"qo_indptr": [0, 4, 8, 12, 17]}, kvloom.CapacityError, "query tokens: got 17, wanted at most"),
    ],
)
def test_lengths_that_the_device_refuses(gpu, engine, cache, rows, change, error, text):
    q, q_there, out = rows
    host = {"kv_len": KV_LEN, "qo_indptr": indptr(Q_LEN)}
    step = {name: gpu.put(np.array(value)) for name, value in host.items()}
    lists = {"block_table": gpu.put(cache.table), **SIZES}
    plan = engine.plan_on_device(**step, **lists)
    lse = gpu.put(np.zeros((TOKENS, HEADS), np.float32))
    for name, value in change.items():
        step[name].write(value)
    engine.replan_on_device(plan, **step, **lists)
    engine.run(plan, q_there, cache.k, cache.v, out=out, lse=lse)
    assert np.isnan(from_bf16(out.read())).all() and np.isnan(lse.read()).all()
    with pytest.raises(error, match=text):
        engine.check(plan)
    with pytest.raises(ValueError, match="call check"):
        plan.json()
    for name, value in host.items():
        step[name].write(value)
    engine.replan_on_device(plan, **step, **lists)  # and a sound one is right again
    engine.run(plan, q_there, cache.k, cache.v, out=out)
    cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
    engine.check(plan)


def there(device=0, **arrays):
    return {name: Versioned(value, device=(CUDA, device)) for name, value in arrays.items()}


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"kv_len": None}, TypeError, "`kv_len`: expected the tokens of each request, got None"),
        ({"kv_len": [5, 3]}, ValueError, "`kv_len`: expected integers on cuda:0, got a list; the GPU reads them: move them there"),
        ({"kv_len": np.array([5, 3])}, ValueError, r"`kv_len`: expected integers on cuda:0, got \[2\] int64 on cpu; the GPU reads them: move"),
        (there(kv_len=np.array([5.0, 3.0])), TypeError, "`kv_len`: expected int32 or int64, got"),
        (there(1, kv_len=np.array([5, 3])), ValueError, r"`kv_len`: expected integers on cuda:0, got \[2\] int64 on cuda:1"),
        (there(kv_len=np.zeros(8, int)[::4]), ValueError, "`kv_len`: expected a contiguous array, got strides"),
        (there(kv_len=np.zeros((2, 4), int)[:, :1]), ValueError, "`kv_len`: expected a contiguous array, got strides"),
        (there(kv_len=np.array([5, 3])), ValueError, "kv_len: got host memory"),  # it says cuda, and is not
        (there(kv_len=np.array([5, 3, 1])), ValueError, r"`block_table`: expected \[3 lists, entries\], got 2 rows"),
        ({"qo_indptr": [0, 1, 2]}, ValueError, "`qo_indptr`: expected integers on cuda:0, got a list"),
        (there(qo_indptr=np.array([0, 1])), ValueError, "`qo_indptr`: expected 3 entries for 2 requests, got 2"),
        ({"num_tokens": None}, TypeError, "`num_tokens`: expected an integer, got None; beside `qo_indptr` it is the rows that q has"),
        ({"num_tokens": 2.5}, TypeError, "`num_tokens`: expected an integer, got 2.5"),
        ({"num_tokens": 2**70}, TypeError, "`num_tokens`: expected an integer"),
        ({"num_tokens": -1}, ValueError, "`num_tokens`: expected 0 to .*, got -1"),
        ({"num_tokens": TOKENS + 1}, kvloom.CapacityError, "num_tokens: got 17, wanted at most Capacity.max_query_tokens = 16"),
        ({"max_q_len": None}, TypeError, "`max_q_len`: expected an integer, got None; beside `qo_indptr` it is the most query tokens"),
        ({"max_q_len": 2**31}, ValueError, "`max_q_len`: expected 0 to 2147483647, got 2147483648"),
        ({"kv_tokens": 7}, ValueError, "`kv_tokens`: expected None with pages of 16 tokens, got 7"),
        ({"block_table": np.array([[0, 1], [2, 0]])}, ValueError, r"`block_table`: expected integers on cuda:0, got \[2, 2\] int64 on cpu"),
        (there(block_table=np.zeros(4, int)), ValueError, r"`block_table`: expected \[2 lists, entries\]"),
        (there(block_table=np.zeros((2, 4), int)[:, ::2]), ValueError, "`block_table`: expected a contiguous array, got strides"),
        (there(pages=np.zeros(3, int)), ValueError, "`block_table`: expected it alone"),
        ({"block_table": None}, ValueError, "list_indptr"),
        ({"block_table": None, **there(pages=np.zeros(3, int), list_indptr=np.array([0]))}, ValueError, "`list_indptr`: expected 2 or 3 entries"),
        (there(q_pos0=np.array([4, 2])), TypeError, "`q_pos0`: expected int32, got int64; convert it where it is"),
        (there(q_pos0=np.array([4], np.int32)), ValueError, "`q_pos0`: expected 2 entries, one for every request, got 1"),
        (there(prefix=np.zeros((2, 1), np.int32)), ValueError, "`prefix`: .*in 2 dimensions"),
        ({"prefix": [1, 2]}, ValueError, "`prefix`: expected integers on cuda:0, got a list"),
        ({"kv_position": "id"}, ValueError, "`kv_position`: expected 'linear', 'page_table' or 'page_id', got 'id'"),
        ({"lists_per_kv_head": True}, ValueError, "`block_table`|`qo_indptr`"),
        ({"lists_per_kv_head": 1}, TypeError, "`lists_per_kv_head`: expected True or False, got int"),
        ({"stream": "s"}, TypeError, "`stream`: expected None, an address as an integer"),
        ({"q_pos": [1, 2]}, TypeError, "`q_pos`: plan_on_device has no such argument; did you mean `q_pos0`"),
        ({"groups": []}, TypeError, "`groups`: plan_on_device has no such argument; there are: (plan, )?kv_len, qo_indptr, pages"),
    ],
)
def test_what_is_refused_at_once(gpu, engine, arguments, error, text):
    good = {"kv_len": gpu.put(np.array([5, 3])), "qo_indptr": gpu.put(np.array([0, 1, 2])), "block_table": gpu.put(np.array([[0, 1], [2, 0]]))}
    good |= {"num_tokens": 2, "max_q_len": 1}
    with pytest.raises(error, match=text):
        engine.plan_on_device(**{**good, **arguments})
    plan = engine.plan_on_device(**good)
    key = plan.graph_key
    with pytest.raises(error, match=text.replace("plan_on_device has", "replan_on_device has")):
        engine.replan_on_device(plan, **{**good, **arguments})
    engine.check(plan)  # the old step is still there
    assert plan.graph_key == key and plan.num_requests == 2


def test_engines_that_cannot(gpu, cache):
    step = {"kv_len": gpu.put(np.array(KV_LEN)), "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table), **SIZES}
    with pytest.raises(kvloom.UnsupportedError, match="options.policy: got auto, wanted stream"):
        make_engine(policy="automatic").plan_on_device(**step)
    with pytest.raises(kvloom.UnsupportedError, match=r"expected an engine that runs on a GPU \(backend=\"cuda\"\), got one without a device"):
        make_engine(cuda_arch="sm_90a").plan_on_device(**step)
    with pytest.raises(kvloom.UnsupportedError, match=r"expected an engine that runs on a GPU \(backend=\"cuda\"\), got one on the CPU"):
        make_engine(backend="cpu").plan_on_device(**step)
    plan = make_engine().plan_on_device(**step)
    other = make_engine()
    with pytest.raises(kvloom.MismatchError, match="`plan`: expected one that this engine made"):
        other.replan_on_device(plan, **step)
    with pytest.raises(kvloom.MismatchError, match="`plan`: expected one that this engine made"):
        other.check(plan)


def test_a_plan_goes_from_side_to_side(gpu, engine, cache, rows):
    q, q_there, out = rows
    step = {"kv_len": gpu.put(np.array(KV_LEN)), "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table), **SIZES}
    plan, n = engine.plan(KV_LEN, indptr(Q_LEN), block_table=cache.table), sum(Q_LEN)
    for _ in range(2):
        engine.replan_on_device(plan, **step)
        assert plan.total_tokens == TOKENS
        engine.run(plan, q_there, cache.k, cache.v, out=out)
        cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
        engine.replan(plan, KV_LEN, indptr(Q_LEN), block_table=cache.table)
        assert plan.total_tokens == n and plan.explain()
        out.write(np.zeros((TOKENS, HEADS, DIM), np.uint16))
        engine.run(plan, q_there.view(np.s_[:n]), cache.k, cache.v, out=out.view(np.s_[:n]), pages=step["block_table"])
        cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)


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


def test_garbage(gpu, engine, cache, rows):
    rng, (q, q_there, out) = random.Random(5), rows
    good = {"kv_len": gpu.put(np.array(KV_LEN)), "qo_indptr": gpu.put(indptr(Q_LEN)), "block_table": gpu.put(cache.table), **SIZES}
    optional = ["pages", "list_indptr", "q_pos0", "prefix", "kv_position", "lists_per_kv_head", "kv_tokens", "stream"]
    bag = BAG + [gpu.put(np.array(x)) for x in ([0, 5, 2], [[0, 1], [2, 3]], [2**40] * 4)]
    plan, refused = engine.plan_on_device(**good), {}
    for _ in range(1500):
        arguments = dict(good)
        for name in rng.sample([*good, *optional], rng.choice((1, 1, 2))):
            arguments[name] = rng.choice([x for x in bag if not isinstance(x, int)] if name == "stream" else bag)  # an address is the caller's word
        for call in (engine.plan_on_device, lambda **x: engine.replan_on_device(plan, **x)):
            try:
                call(**arguments)
            except EXPECTED as error:
                refused[type(error)] = refused.get(type(error), 0) + 1
    assert refused[ValueError] > 500 and refused[TypeError] > 500, refused
    engine.replan_on_device(plan, **good)
    engine.run(plan, q_there, cache.k, cache.v, out=out)
    cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
