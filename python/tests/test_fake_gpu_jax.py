"""What JAX's arrays on a GPU want, on a driver without one (fake_gpu.py) and without JAX: by where a type comes from. With both: test_gpu_jax.py."""

import ctypes
import os
import sys
import types

import numpy as np
import pytest

import kvloom
import reference
from exporters import Versioned, from_bf16
from reference import close

if "KVLOOM_TEST_FAKE_DRIVER" not in os.environ:
    pytest.skip("KVLOOM_TEST_FAKE_DRIVER names no driver (./run test gives it)", allow_module_level=True)

from fake_step import DIM, HEADS, KV_HEADS, KV_LEN, REQUESTS, SIZES, TOKENS, indptr, make_engine  # noqa: E402
from fake_step import cache, default_stream, engine, gpu, rows  # noqa: E402, F401  fixtures
from fake_step import Q_LEN  # noqa: E402

GPU = type("Device", (), {"platform": "gpu"})()


class ArrayImpl(Versioned):
    """A DeviceArray as JAX hands its own over; asked by version it says that nobody may write it."""

    def __init__(self, array):
        super().__init__(array.array, array.device, read_only=True, code=array.tensor.code)
        self.kept = array

    def __dlpack__(self, *, max_version=None, **wanted):
        wanted = {"stream": None, **wanted}
        asked.append(wanted["stream"])
        self.read_only = max_version is not None
        return super().__dlpack__(max_version=(1, 0), **wanted)

    def devices(self):
        return {GPU}

    def read(self):
        return self.kept.read()


ArrayImpl.__module__ = "jaxlib.stand_in"
asked = []


@pytest.fixture(autouse=True)
def jax(gpu, monkeypatch):
    """The functions of jax.numpy that outputs are made with."""

    def empty(shape, dtype, device):
        assert device is GPU
        return ArrayImpl(gpu.put(np.zeros(shape, {"bfloat16": np.uint16, "float32": np.float32}[dtype])))

    def arange(size, dtype, device):
        made = ArrayImpl(gpu.put(np.arange(size, dtype=dtype)))
        made.block_until_ready = lambda: made
        return made

    monkeypatch.setitem(sys.modules, "jax", types.SimpleNamespace(numpy=types.SimpleNamespace(empty=empty, arange=arange)))
    asked.clear()


def now(gpu, array):
    """What lies there, whatever is still to be done in streams."""
    got = np.empty(array.array.shape, array.array.dtype)
    gpu.call("cuMemcpyDtoH_v2", ctypes.c_void_p(got.ctypes.data), ctypes.c_void_p(array.array.ctypes.data), ctypes.c_size_t(got.nbytes))
    return got


def test_runs_are_done_when_they_return(gpu, engine, cache, rows):
    """In a stream that waits for no other, of which JAX would know nothing."""
    q, q_there, out = rows
    stream = gpu.stream()
    plan = engine.plan(KV_LEN, indptr([4] * 4), block_table=cache.table)
    pages = gpu.put(cache.table.astype(np.int32))
    engine.run(plan, q_there, cache.k, cache.v, pages=pages, out=out, stream=stream)
    assert not now(gpu, out).any()  # of frameworks with streams it is not
    gpu.synchronize(stream)
    cache.check(q, from_bf16(now(gpu, out)), [4] * 4, KV_LEN)
    out.write(np.zeros_like(now(gpu, out)))
    for jax_q, jax_kv, jax_pages in ((True, True, True), (True, False, False), (False, True, False), (False, False, True)):
        args = [(ArrayImpl if of_jax else lambda x: x)(x) for x, of_jax in ((q_there, jax_q), (cache.k, jax_kv), (cache.v, jax_kv), (pages, jax_pages))]
        engine.run(plan, *args[:3], pages=args[3], out=out, stream=stream)
        cache.check(q, from_bf16(now(gpu, out)), [4] * 4, KV_LEN)
        out.write(np.zeros_like(now(gpu, out)))
    made, lse = engine.run(plan, ArrayImpl(q_there), ArrayImpl(cache.k), ArrayImpl(cache.v), pages=ArrayImpl(pages), stream=stream, return_lse=True)
    assert type(made) is ArrayImpl and type(lse) is ArrayImpl and lse.array.shape == (TOKENS, HEADS)
    cache.check(q, from_bf16(now(gpu, made)), [4] * 4, KV_LEN)
    assert asked and set(asked) == {None}  # -1, no synchronisation, is the address of a stream to JAX, and what is late there is no stream's


def test_nothing_of_jax_is_written(gpu, engine, cache, rows):
    _, q_there, out = rows
    plan = engine.plan(KV_LEN, indptr([4] * 4), block_table=cache.table)
    with pytest.raises(ValueError, match="`out`: .*may not be written"):
        engine.run(plan, ArrayImpl(q_there), cache.k, cache.v, pages=gpu.put(cache.table.astype(np.int32)), out=ArrayImpl(out))
    with pytest.raises(ValueError, match="`k`: expected a tensor that may be written"):
        kvloom.append_kv(ArrayImpl(q_there), None, ArrayImpl(cache.k), None, slots=gpu.put(np.arange(TOKENS)))
    assert not out.read().any()


def test_lengths_on_the_gpu(gpu, engine, cache, rows):
    q, q_there, _ = rows
    table = ArrayImpl(gpu.put(cache.table.astype(np.int32)))
    plan = engine.plan_on_device(ArrayImpl(gpu.put(np.array(KV_LEN, np.int32))), ArrayImpl(gpu.put(indptr(Q_LEN).astype(np.int32))), block_table=table, **SIZES)
    out = engine.run(plan, ArrayImpl(q_there), ArrayImpl(cache.k), ArrayImpl(cache.v))
    engine.check(plan)
    cache.check(q, from_bf16(out.read()), Q_LEN, KV_LEN)
    engine.replan_on_device(plan, ArrayImpl(gpu.put(np.array(KV_LEN, np.int32))), block_table=table)  # qo_indptr: JAX's own 0, 1, ..
    out = engine.run(plan, ArrayImpl(q_there.view(np.s_[:REQUESTS])), ArrayImpl(cache.k), ArrayImpl(cache.v))
    cache.check(q, from_bf16(out.read()), [1] * REQUESTS, KV_LEN)
    assert set(asked) == {None}
