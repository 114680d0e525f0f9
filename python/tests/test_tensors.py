"""Every way that a tensor is taken, and that what was exported is given back."""

import array
import gc
import sys
import types

import ml_dtypes
import numpy as np
import pytest

import exporters
import kvloom
import reference
from exporters import CUDA, Exchange, Export, Unversioned, Versioned
from kvloom import _frameworks
from kvloom.flashinfer import _arrays
from reference import close


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((n, 2, 32), dtype=np.float32) for n in (5, 9, 9)]


@pytest.mark.parametrize("form", [Versioned, Unversioned, Exchange])
def test_dlpack(qkv, form):
    out, lse = np.zeros((5, 2, 32), np.float32), np.zeros((5, 2), np.float32)
    wanted, wanted_lse = reference.attention(*qkv)
    for _ in range(3):  # what was learned of the type is used the second time
        kvloom.attention(*map(form, qkv), out=form(out), lse=form(lse))
        close(out, wanted)
        close(lse, wanted_lse)
        out[:], lse[:] = 0, 0
    gc.collect()
    assert Export.live == 0  # nothing is kept beyond the call


@pytest.mark.parametrize("form", [Versioned, Unversioned, Exchange])
def test_strides_and_offsets(qkv, form):
    q, k, v = qkv
    wide = np.zeros((5, 6, 32), np.float32)
    wide[:, 1::3] = q
    wanted = reference.attention(q, k, v)[0]
    close(kvloom.attention(form(wide[:, 1::3]), form(k, strides=False), form(v, byte_offset=64), out=np.zeros((5, 2, 32), np.float32)), wanted)


def test_what_dlpack_is_asked(qkv):
    q = Versioned(qkv[0])
    kvloom.attention(q, *qkv[1:])
    assert q.asked == {"stream": None, "max_version": (1, 3)}
    q = Unversioned(qkv[0])
    kvloom.attention(q, *qkv[1:])
    assert q.asked == {"stream": None}
    q = Versioned(qkv[0], device=(CUDA, 0))
    with pytest.raises(ValueError):
        kvloom.attention(*qkv, out=q)
    assert q.asked["stream"] == -1  # on a GPU: no synchronisation, work is queued behind the framework's own


def test_exchange_comes_first(qkv):
    before = Exchange.views
    kvloom.attention(*map(Exchange, qkv), out=np.zeros((5, 2, 32), np.float32))
    assert Exchange.views >= before + 3


def test_read_only_inputs_and_outputs(qkv):
    for x in qkv:
        x.flags.writeable = False
    wanted = reference.attention(*qkv)[0]
    close(kvloom.attention(*qkv), wanted)
    close(kvloom.attention(*(Versioned(x, read_only=True) for x in qkv), out=np.zeros((5, 2, 32), np.float32)), wanted)
    out = np.zeros((5, 2, 32), np.float32)
    for refused in (Versioned(out, read_only=True), memoryview(bytes(4)).cast("f")):
        with pytest.raises(ValueError, match="`out`"):
            kvloom.attention(*qkv, out=refused)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="`out`: expected .* may not be written"):
        kvloom.attention(*qkv, out=out)
    assert not out.any()


def test_exporters_that_refuse(qkv):
    with pytest.raises(ValueError, match="`k`: its __dlpack__ refuses: can't export a tensor that is read-only"):
        kvloom.attention(qkv[0], Unversioned(qkv[1], read_only=True), qkv[2])
    with pytest.raises(ValueError, match="`k`: its framework does not hand it out: no reason given"):
        kvloom.attention(qkv[0], Exchange(qkv[1], read_only=True), qkv[2])
    with pytest.raises(ValueError, match="`q`: expected DLPack 1.x, got version 2.0"):
        kvloom.attention(Versioned(qkv[0], version=(2, 0)), *qkv[1:])

    class Talkative(Unversioned):
        def __dlpack__(self, **_):
            raise BufferError("Cannot pack tensors on meta\nException raised from there:\nframe #0: a_function + 0x9d")

    with pytest.raises(ValueError, match=r"`k`: .*: Cannot pack tensors on meta$"):  # a message is one line
        kvloom.attention(qkv[0], Talkative(qkv[1]), qkv[2])

    class Sloppy:
        def __dlpack__(self, **_):
            return "no capsule"

    with pytest.raises(TypeError, match="`q`: its __dlpack__ gives no tensor"):
        kvloom.attention(Sloppy(), *qkv[1:])


def test_bfloat16_by_dlpack(qkv):
    bits = [exporters.bf16(x) for x in qkv]
    out = np.zeros((5, 2, 32), np.uint16)
    kvloom.attention(*(Versioned(b, code=4) for b in bits), out=Exchange(out, code=4))
    close(exporters.from_bf16(out), reference.attention(*map(exporters.from_bf16, bits))[0], "bf16")
    again = kvloom.attention(*(b.view(ml_dtypes.bfloat16) for b in bits))
    assert np.array_equal(again.view(np.uint16), out)


def test_buffers(qkv):
    wanted = reference.attention(*qkv)[0]
    views = [memoryview(x) for x in qkv]
    out = memoryview(bytearray(5 * 2 * 32 * 4)).cast("f", (5, 2, 32))
    assert kvloom.attention(*views, out=out) is out
    close(np.asarray(out), wanted)
    sink = array.array("f", [0.5, 1.5])
    close(kvloom.attention(*qkv, sink=sink), reference.attention(*qkv, sink=[0.5, 1.5])[0])
    indptr = array.array("i", [0, 5]), array.array("q", [0, 9])
    close(kvloom.attention(*qkv, qo_indptr=indptr[0], kv_indptr=indptr[1]), wanted)


def test_index_arrays(qkv):
    k, v = (x.reshape(9, 1, 2, 32) for x in qkv[1:])
    wanted = reference.attention(qkv[0][:1], qkv[1][[4, 2, 8]], qkv[2][[4, 2, 8]])[0]
    wide = np.array([4, -1, 2, -1, 8, -1])
    for pages in ([4, 2, 8], (4, 2, 8), np.array([4, 2, 8]), np.array([4, 2, 8], np.int32), wide[::2], Versioned(np.array([4, 2, 8], np.int32))):
        close(kvloom.attention(qkv[0][:1], k, v, kv_len=[3], pages=pages, list_indptr=[0, 3]), wanted)


def test_negative_and_zero_strides(qkv):
    q, k, v = qkv
    close(kvloom.attention(q, k[::-1], v[::-1]), reference.attention(q, k[::-1], v[::-1])[0])
    same = np.broadcast_to(k[:1], k.shape)
    close(kvloom.attention(q, same, v), reference.attention(q, same, v)[0])


def test_empty_tensors():
    q, k = np.zeros((0, 2, 32), np.float32), np.zeros((3, 2, 32), np.float32)
    assert kvloom.attention(q, k, k).shape == (0, 2, 32)
    o, lse = kvloom.attention(k, q, q, return_lse=True)
    assert not o.any() and np.all(lse == -np.inf)


class Array:
    """NumPy's, handed over as other frameworks hand over theirs."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **wanted):
        return self.array.__dlpack__(**wanted)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_types_of_jax_are_never_written(qkv):
    """By where a type comes from, so this needs no JAX: its arrays are immutable, and their __dlpack__ does not say so."""
    out = np.zeros((5, 2, 32), np.float32)
    kvloom.attention(*qkv, out=Array(out))
    close(out, reference.attention(*qkv)[0])
    Immutable = type("ArrayImpl", (Array,), {"__module__": "jaxlib.stand_in"})
    before = out.copy()
    with pytest.raises(ValueError, match="`out`: .*may not be written"):
        kvloom.attention(*qkv, causal=True, out=Immutable(out))
    assert np.array_equal(out, before)
    again = np.zeros_like(out)
    kvloom.attention(*(Immutable(x) for x in qkv), out=again)
    assert np.array_equal(again, before)


def test_jax(qkv):
    """Arrays that can't be written: inputs as they are, outputs made of NumPy's."""
    jax = pytest.importorskip("jax", reason="JAX is not installed")
    arrays = [jax.numpy.asarray(x) for x in qkv]
    wanted, wanted_lse = reference.attention(*qkv, causal=True)
    out, lse = kvloom.attention(*arrays, causal=True, return_lse=True)
    assert isinstance(out, jax.Array) and isinstance(lse, jax.Array)
    close(np.asarray(out), wanted)
    close(np.asarray(lse), wanted_lse)
    halves = [x.astype(jax.numpy.bfloat16) for x in arrays]
    out = kvloom.attention(*halves, causal=True)
    assert out.dtype == jax.numpy.bfloat16
    close(np.asarray(out, np.float32), reference.attention(*(np.asarray(x, np.float32) for x in halves), causal=True)[0], "bf16")
    mine = np.zeros((5, 2, 32), np.float32)
    assert kvloom.attention(*arrays, causal=True, out=mine) is mine
    close(mine, wanted)
    with pytest.raises(ValueError, match="`out`: .*may not be written"):
        kvloom.attention(*arrays, out=jax.numpy.zeros((5, 2, 32)))
    with pytest.raises(ValueError, match="`k`"):
        kvloom.append_kv(arrays[1], arrays[2], *[jax.numpy.zeros((3, 4, 2, 32))] * 2, slots=[0] * 9)


def test_types_of_cupy_are_made_by_cupy(qkv, monkeypatch):
    """By where a type comes from, so this needs no CuPy: outputs are its own, the stream is its current one. On a GPU: test_gpu_cupy.py."""
    ndarray = type("ndarray", (Array,), {"__module__": "cupy"})
    cuda = types.SimpleNamespace(get_current_stream=lambda: types.SimpleNamespace(ptr=1234))
    monkeypatch.setitem(sys.modules, "cupy", types.SimpleNamespace(empty=lambda shape, dtype: ndarray(np.empty(shape, dtype)), cuda=cuda))
    o, lse = kvloom.attention(*(ndarray(x) for x in qkv), return_lse=True)
    assert type(o) is ndarray and type(lse) is ndarray
    wanted, wanted_lse = reference.attention(*qkv)
    close(o.array, wanted)
    close(lse.array, wanted_lse)
    assert _frameworks.current_stream(o, 0) == 1234
    assert _arrays.on_gpu(o) and _arrays.device_of(o) == "cuda"
