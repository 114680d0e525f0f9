"""What planning on the device refuses: on the host at once, on the device by NaN and check(). On the driver without a GPU (fake_gpu.py)."""

import os
import random

import numpy as np
import pytest

import kvloom
from exporters import CUDA, Versioned, from_bf16

if "KVLOOM_TEST_FAKE_DRIVER" not in os.environ:
    pytest.skip("KVLOOM_TEST_FAKE_DRIVER names no driver (./run test gives it)", allow_module_level=True)

from fake_step import HEADS, KV_LEN, Q_LEN, SIZES, TOKENS, indptr, make_engine  # noqa: E402
from fake_step import cache, default_stream, engine, gpu, rows  # noqa: E402, F401  fixtures
from test_garbage import BAG, EXPECTED  # noqa: E402


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
        (there(kv_len=np.array([5, 3, 1])), ValueError, r"`block_table`: expected \[3 lists, entries\].*got \[2, \d+\]"),
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
        ({"block_table": None}, ValueError, "`block_table`: expected it, or `pages` with `list_indptr`"),
        ({"block_table": None, **there(pages=np.zeros((2, 9), int)[:, :3])}, ValueError, "`pages`: expected a contiguous array, got strides"),
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
