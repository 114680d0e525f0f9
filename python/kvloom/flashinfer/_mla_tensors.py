"""MLA's two parts of queries and keys, as the one head dim that kernels read."""

from __future__ import annotations

from ._arrays import address, arange, cast, concatenate, is_torch, module_of, repeat


def _item(x) -> int:
    return x.element_size() if is_torch(x) else x.itemsize


def _strides(x):
    """In elements."""
    return x.stride() if is_torch(x) else tuple(s // x.itemsize for s in x.strides)


def _wider(x, dim: int):
    """x [.., d] as [.., dim], over what lies behind its rows."""
    shape = (*x.shape[:-1], dim)
    if is_torch(x):
        return x.as_strided(shape, x.stride())
    return module_of(x).lib.stride_tricks.as_strided(x, shape, x.strides)


def _memory(x):
    """What keeps x's memory: views of one tensor have the same."""
    if is_torch(x):
        return x.untyped_storage().data_ptr()
    while getattr(x, "base", None) is not None:
        x = x.base
    return id(x)


def adjacent(a, b):
    """[.., da + db] over both where b's rows lie right behind a's, as slices of one tensor do; else None."""
    if a.dtype != b.dtype or a.shape[:-1] != b.shape[:-1] or 0 in a.shape:
        return None
    sa, sb = _strides(a), _strides(b)
    da, db = a.shape[-1], b.shape[-1]
    if sa != sb or sa[-1] != 1 or address(b) != address(a) + da * _item(a) or _memory(a) != _memory(b):
        return None
    inner = min((s for s, n in zip(sa[:-1], a.shape[:-1]) if n > 1), default=da + db)
    return _wider(a, da + db) if inner >= da + db else None


def joined(a, b):
    """a [.., da] and b [.., db] as [.., da + db]: in place where they lie side by side, else a copy."""
    both = adjacent(a, b)
    return both if both is not None else concatenate([a, b], -1)


def queries(q_nope, q_pe, pe_factor: float):
    """[tokens, heads, ckv + kpe]; pe_factor: how much larger the scale of kpe is than that of ckv."""
    if q_pe is None or q_pe.shape[-1] == 0:
        return q_nope
    if pe_factor == 1.0:
        return joined(q_nope, q_pe)
    wide = cast(q_pe, "float32") * pe_factor
    return concatenate([q_nope, wide.to(q_pe.dtype) if is_torch(q_pe) else wide.astype(q_pe.dtype)], -1)


def in_use(ids, ckv, kpe, scale_arr, kpe_scale, dtype):
    """The pages `ids` of both caches side by side, as new pages [len(ids), page_size, ckv + kpe]. With scale_arr float32 [pages, page_size, blocks] the
    values: ckv times the scale of its block, kpe times kpe_scale, as `dtype` of q."""
    wide = cast(ids, "int64")
    parts = [ckv[wide]] + ([kpe[wide]] if kpe is not None and kpe.shape[-1] else [])
    if scale_arr is not None:
        blocks = scale_arr[wide]
        size = ckv.shape[-1] // blocks.shape[-1]
        flat = repeat(blocks.reshape(-1), size).reshape(parts[0].shape) if not is_torch(blocks) else blocks.repeat_interleave(size, -1)
        parts = [cast(parts[0], "float32") * flat, *(cast(p, "float32") * kpe_scale for p in parts[1:])]
        parts = [p.to(dtype) if is_torch(p) else p.astype(dtype) for p in parts]
    return concatenate(parts, -1) if len(parts) > 1 else parts[0]


def counting(ids):
    """[0, 1, ..], as many as ids and where they are."""
    return arange(len(ids), ids)
