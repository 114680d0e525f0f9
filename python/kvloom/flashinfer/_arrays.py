"""Integer arrays, and the little work on tensors that surrounds a run, alike for NumPy, torch and CuPy. Imports none of them by itself: who hands
over an array has imported its framework; lists alone become arrays of NumPy, or of torch."""

from __future__ import annotations

import functools
import importlib
import math
import sys

from .. import _frameworks
from .._frameworks import dtype_name

LOG2_E = math.log2(math.e)


_of_type: dict[type, str] = {}  # a look at a type's bases costs more than all else here


def framework_of(x) -> str:
    """_frameworks.framework_of."""
    name = _of_type.get(type(x))
    if name is None:
        name = _of_type[type(x)] = _frameworks.framework_of(x)
    return name


@functools.cache
def numpy_or_none():
    try:
        return importlib.import_module("numpy")
    except ImportError:
        return None


def module_of(x):
    """The module of x's framework: numpy, torch or cupy."""
    name = framework_of(x)
    if name not in ("numpy", "torch", "cupy"):
        raise TypeError(f"expected a tensor of torch, NumPy or CuPy, got {type(x).__name__}")
    return sys.modules[name]


def is_torch(x) -> bool:
    return framework_of(x) == "torch"


def on_gpu(x) -> bool:
    return framework_of(x) == "cupy" or is_torch(x) and x.is_cuda


def device_of(x):
    """x.device of torch; "cpu" of NumPy."""
    return x.device if is_torch(x) else "cuda" if framework_of(x) == "cupy" else "cpu"


def _any_framework():
    if numpy_or_none() is not None:
        return numpy_or_none()
    try:
        return importlib.import_module("torch")
    except ImportError:
        pass
    raise TypeError("lists of integers want NumPy or torch: install one of them, or give arrays")


def cast(x, name: str):
    """x as a dtype by its long name ("int64", "float32"); x itself where it has that already."""
    if is_torch(x):
        return x.to(getattr(module_of(x), name))
    return x if x.dtype == name else x.astype(name)


@functools.cache
def _is_integer(dtype) -> bool:
    return "int" in str(dtype)


def indices(x, name: str, rank: int = 1):
    """x, integers [n], where it is; a list becomes an array on the host."""
    if isinstance(x, (list, tuple, range)):
        xp = _any_framework()
        try:
            x = xp.asarray(list(x), dtype=xp.int32)
        except (TypeError, ValueError, OverflowError) as e:
            raise TypeError(f"`{name}`: expected integers, got {x!r}: {e}") from None
    if x is None or not hasattr(x, "dtype"):
        raise TypeError(f"`{name}`: expected an int32 array [{'n' if rank == 1 else 'n, m'}], got {type(x).__name__}")
    if not _is_integer(x.dtype):
        raise TypeError(f"`{name}`: expected int32 (or int64), got {x.dtype}; convert it")
    if x.ndim != rank:
        raise ValueError(f"`{name}`: expected {rank} dimension{'s' if rank > 1 else ''}, got {list(x.shape)}")
    return x


def host(x):
    """x on the host, as NumPy's where there is NumPy: its small operations take a fraction of torch's time. A copy from a GPU waits for it."""
    if is_torch(x):
        x = x.cpu() if x.is_cuda else x
        return x.numpy() if numpy_or_none() is not None else x
    return x.get() if on_gpu(x) else x


def placed(x, like):
    """x where `like` is, in its framework; x itself if it is there. A copy to a GPU is put into the current stream and not waited for."""
    if is_torch(like):
        if is_torch(x) and x.device == like.device:
            return x
        torch = module_of(like)
        return (x if isinstance(x, torch.Tensor) else torch.as_tensor(x)).to(like.device, non_blocking=like.is_cuda)
    if framework_of(like) == "cupy":
        return module_of(like).asarray(x)
    return x.numpy() if is_torch(x) else x


def copied(x):
    return x.copy() if hasattr(x, "copy") else x.clone() if hasattr(x, "clone") else x


def arange(n: int, like, dtype: str = "int32"):
    xp = module_of(like)
    if is_torch(like):
        return xp.arange(n, dtype=getattr(xp, dtype), device=like.device)
    return xp.arange(n, dtype=dtype)


def zeros(shape, like, dtype: str):
    xp = module_of(like)
    if is_torch(like):
        return xp.zeros(shape, dtype=getattr(xp, dtype), device=like.device)
    return xp.zeros(shape, dtype=dtype)


def repeat(x, counts):
    """Every x[i] counts[i] times."""
    return module_of(x).repeat_interleave(x, counts) if is_torch(x) else module_of(x).repeat(x, counts)


def concatenate(parts, axis: int = 0):
    return module_of(parts[0]).concatenate(parts, axis)


def indptr_of(lengths):
    """[0, lengths[0], lengths[0] + lengths[1], ...], int64."""
    wide = cast(lengths, "int64")
    return concatenate([zeros((1,), wide, "int64"), wide.cumsum(0)])


def contiguous(x):
    return x.contiguous() if is_torch(x) else module_of(x).ascontiguousarray(x)


def write_front(buffer, x, name: str):
    """buffer[: len(x)] = x, and that part of it. The buffers that CUDA graphs read are filled so."""
    if len(x) > len(buffer):
        raise ValueError(
            f"`{name}`: expected at most the {len(buffer)} entries of the wrapper's buffer, got {len(x)}; make the wrapper with a larger one"
        )
    part = buffer[: len(x)]
    if is_torch(buffer):
        part.copy_(x if is_torch(x) else module_of(buffer).as_tensor(x), non_blocking=True)
    else:
        part[...] = host(x) if framework_of(buffer) == "numpy" else placed(x, buffer)
    return part


def address(x) -> int:
    if is_torch(x):
        return x.data_ptr()
    if framework_of(x) == "cupy":
        return x.data.ptr
    return x.__array_interface__["data"][0]


def as_bytes(x, name: str):
    """A flat uint8 view of x."""
    if not hasattr(x, "dtype") or not hasattr(x, "reshape"):
        raise TypeError(f"`{name}`: expected a uint8 tensor, got {type(x).__name__}")
    flat = x.reshape(-1)
    return flat.view(module_of(x).uint8)


def to_base2(lse):
    """The natural logarithm as FlashInfer's base 2, in place."""
    lse *= LOG2_E
    return lse


def alibi_slopes(heads: int, like):
    """float32 [heads] where `like` is: 2^(-8 i / n) for the first n heads, the largest power of two; between them for the others."""
    n = 1 << (heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)] + [2.0 ** (-4.0 * (2 * i + 1) / n) for i in range(heads - n)]
    xp = module_of(like)
    if is_torch(like):
        return xp.tensor(slopes, dtype=xp.float32, device=like.device)
    return xp.asarray(slopes, dtype="float32")


def dtype_of(tensor) -> str:
    return dtype_name(tensor.dtype)
