"""Rotation by a table of cosines and sines, in float32."""

from __future__ import annotations

from ._arrays import cast, concatenate, indices, is_torch, placed
from ._named_errors import named_errors


def table_rows(cos_sin_cache, positions, like):
    """cos and sin, float32 [tokens, 1, rotary_dim / 2]."""
    if cos_sin_cache.ndim != 2 or cos_sin_cache.shape[1] % 2:
        raise ValueError(f"`cos_sin_cache`: expected [max_position, rotary_dim], got {list(cos_sin_cache.shape)}")
    if "float32" not in str(cos_sin_cache.dtype):
        raise ValueError(f"`cos_sin_cache`: expected float32, got {cos_sin_cache.dtype}; angles of long contexts need it")
    pos = cast(placed(indices(positions, "positions"), like), "int64")
    if not is_torch(like) or not like.is_cuda:
        if len(pos) and not 0 <= int(pos.min()) <= int(pos.max()) < cos_sin_cache.shape[0]:
            raise ValueError(
                f"`positions`: expected 0 .. {cos_sin_cache.shape[0] - 1}, rows of cos_sin_cache, got {int(pos.min())} .. {int(pos.max())}"
            )
    rows = cos_sin_cache[pos][:, None]
    half = rows.shape[-1] // 2
    return rows[..., :half], rows[..., half:]


def turned(x, cos, sin, is_neox: bool):
    """x [tokens, heads, dim] with its first rotary_dim dims turned, float32; the others as they are."""
    half = cos.shape[-1]
    if 2 * half > x.shape[-1]:
        raise ValueError(f"`cos_sin_cache`: expected a rotary_dim of at most {x.shape[-1]}, the head's, got {2 * half}")
    wide = cast(x, "float32")
    if is_neox:
        a, b = wide[..., :half], wide[..., half : 2 * half]
        return concatenate([a * cos - b * sin, b * cos + a * sin, wide[..., 2 * half :]], -1)
    a, b = wide[..., 0 : 2 * half : 2], wide[..., 1 : 2 * half : 2]
    pairs = [(a * cos - b * sin)[..., None], (b * cos + a * sin)[..., None]]
    mixed = concatenate(pairs, -1).reshape((*x.shape[:-1], 2 * half))
    return concatenate([mixed, wide[..., 2 * half :]], -1)


@named_errors
def apply_rope_with_cos_sin_cache_inplace(positions, query, key, head_size, cos_sin_cache, is_neox=True) -> None:
    """Turns query and key in place.

    positions [tokens]; query [tokens, num_qo_heads * head_size], key [tokens, num_kv_heads * head_size]
    cos_sin_cache  float32 [max_position, rotary_dim]: cosines, then sines. is_neox: pairs (i, i + rotary_dim / 2), else (2i, 2i + 1)
    """
    cos, sin = table_rows(cos_sin_cache, positions, query)
    for x, name in ((query, "query"), (key, "key")):
        if head_size <= 0 or x.ndim != 2 or x.shape[1] % head_size or x.shape[0] != cos.shape[0]:
            raise ValueError(f"`{name}`: expected [{cos.shape[0]}, heads * {head_size}], got {list(x.shape)}")
        heads = x.reshape((x.shape[0], x.shape[1] // head_size, head_size))
        out = turned(heads, cos, sin, is_neox).reshape(tuple(x.shape))
        if is_torch(x):
            x.copy_(out)
        else:
            x[...] = out.astype(x.dtype)


@named_errors
def apply_rope_with_cos_sin_cache(positions, query, key, head_size, cos_sin_cache, is_neox=True):
    """apply_rope_with_cos_sin_cache_inplace on copies, which it returns."""
    query, key = (x.clone() if is_torch(x) else x.copy() for x in (query, key))
    apply_rope_with_cos_sin_cache_inplace(positions, query, key, head_size, cos_sin_cache, is_neox)
    return query, key
