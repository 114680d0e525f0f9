"""Tensors of no framework: what DLPack's forms look like to a consumer, made with ctypes over NumPy arrays, wherever they claim to be."""

import ctypes

import numpy as np

CPU, CUDA = 1, 2


class Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    _fields_ = [("tensor", Tensor), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ManagedVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    ]


DESTRUCTOR = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]

_VERSIONED, _PLAIN = b"dltensor_versioned", b"dltensor"
_CODES = {"f": 2, "i": 0, "u": 1, "b": 6}


class Export:
    """What all forms share. `live`: capsules handed out and not yet destroyed."""

    live = 0

    def __init__(self, array, device=(CPU, 0), read_only=False, code=None, strides=True, byte_offset=0, version=(1, 1)):
        self.array, self.device, self.read_only, self.version = array, device, read_only, version
        n = array.ndim
        self._shape = (ctypes.c_int64 * n)(*array.shape)
        self._strides = (ctypes.c_int64 * n)(*(s // array.itemsize for s in array.strides))
        self.tensor = Tensor(
            array.ctypes.data - byte_offset,
            *device,
            n,
            _CODES[array.dtype.kind] if code is None else code,
            array.itemsize * 8,
            1,
            self._shape,
            self._strides if strides else None,
            byte_offset,
        )

    def _capsule(self, struct, name):
        def gone(_):
            Export.live -= 1
            _kept.pop(ctypes.addressof(struct), None)

        destructor = DESTRUCTOR(gone)
        _kept[ctypes.addressof(struct)] = (struct, destructor, self)
        Export.live += 1
        return _new(ctypes.addressof(struct), name, ctypes.cast(destructor, ctypes.c_void_p))


_kept = {}


class Versioned(Export):
    """__dlpack__ as of DLPack 1.0."""

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        self.asked = {"stream": stream, "max_version": max_version}
        if max_version is None:
            raise BufferError("wants max_version")
        return self._capsule(ManagedVersioned(*self.version, None, None, int(self.read_only), self.tensor), _VERSIONED)


class Unversioned(Export):
    """__dlpack__ as it was before: knows no max_version."""

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        self.asked = {"stream": stream}
        if self.read_only:
            raise BufferError("can't export a tensor that is read-only")
        return self._capsule(Managed(self.tensor, None, None), _PLAIN)


VIEW = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(Tensor))
STREAM = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Api(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed_from_object", ctypes.c_void_p),
        ("object_from_managed", ctypes.c_void_p),
        ("view", VIEW),
        ("stream", STREAM),
    ]


@VIEW
def _view(exporter, out):
    if exporter.read_only:
        return -1
    ctypes.memmove(out, ctypes.addressof(exporter.tensor), ctypes.sizeof(Tensor))
    Exchange.views += 1
    return 0


@STREAM
def _stream(device_type, device_id, out):
    out[0] = Exchange.stream
    return 0


_name = b"dlpack_exchange_api"  # a capsule keeps the address of its name
_api = Api(1, 3, None, None, None, None, _view, _stream)


class Exchange(Export):
    """A type with DLPack's table of C functions."""

    views = 0
    stream = 0x5EED0  # the one that it says it works in
    __dlpack_c_exchange_api__ = _new(ctypes.addressof(_api), _name, None)


def bf16(array):
    """float32 rounded to bfloat16 (ties to even), as its bits in uint16."""
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)
