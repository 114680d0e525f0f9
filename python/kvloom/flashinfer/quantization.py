"""Packing of masks into bits."""

from __future__ import annotations

from ._arrays import arange, cast, concatenate, host, indices, indptr_of, is_torch, module_of, placed, repeat, zeros
from ._named_errors import named_errors


def _weights(like, bitorder: str):
    if bitorder not in ("big", "little"):
        raise ValueError(f"`bitorder`: expected 'big' or 'little', got {bitorder!r}")
    values = [1 << (7 - i if bitorder == "big" else i) for i in range(8)]
    xp = module_of(like)
    return xp.tensor(values, dtype=xp.uint8, device=like.device) if is_torch(like) else xp.asarray(values, dtype="uint8")


def _pack(bits, bitorder: str):
    """bits [8 * n], 0 or 1, as uint8 [n]."""
    weights = _weights(bits, bitorder)
    return cast((cast(bits, "uint8").reshape(-1, 8) * weights).sum(1), "uint8")


def _flat_bits(x, name: str):
    if not hasattr(x, "reshape") or not hasattr(x, "dtype"):
        raise TypeError(f"`{name}`: expected a bool or uint8 tensor, got {type(x).__name__}")
    return cast((x.reshape(-1) != 0), "uint8")


@named_errors
def packbits(x, bitorder: str = "big"):
    """x, bool, as uint8 [ceil(n / 8)], where x is. bitorder "big": the first element is the highest bit; "little": the lowest."""
    bits = _flat_bits(x, "x")
    missing = -bits.shape[0] % 8
    if missing:
        bits = concatenate([bits, zeros((missing,), bits, "uint8")])
    return _pack(bits, bitorder)


def packed_segments(x, lengths, bitorder: str):
    """x, bool [sum of lengths], with every segment packed from a byte of its own. lengths: integers on the host. Returns uint8 and the bytes'
    indptr, int64 on the host."""
    bits = _flat_bits(x, "x")
    lengths = cast(lengths, "int64")
    begins, bytes_indptr = indptr_of(lengths), indptr_of((lengths + 7) // 8)
    if int(begins[-1]) != bits.shape[0]:
        raise ValueError(f"`x`: expected {int(begins[-1])} elements, the sum of the segments, got {bits.shape[0]}")
    if not bool((lengths % 8 != 0).any()):
        return _pack(bits, bitorder), bytes_indptr
    gaps = 8 * bytes_indptr[:-1] - begins[:-1]
    padded = zeros((8 * int(bytes_indptr[-1]),), bits, "uint8")
    where = arange(bits.shape[0], bits, "int64") + repeat(placed(gaps, bits), placed(lengths, bits))
    padded[where] = bits
    return _pack(padded, bitorder), bytes_indptr


@named_errors
def segment_packbits(x, indptr, bitorder: str = "big"):
    """Segments x[indptr[i] : indptr[i + 1]], each packed from a byte of its own. Returns uint8 and the bytes' indptr, int32, both where x is. An
    indptr on a GPU is copied to the host, which waits for it."""
    begins = host(indices(indptr, "indptr"))
    y, bytes_indptr = packed_segments(x, begins[1:] - begins[:-1], bitorder)
    return y, placed(cast(bytes_indptr, "int32"), y)


__all__ = ["packbits", "segment_packbits"]
