"""Rotary positions of queries and keys."""

from __future__ import annotations

from .. import _core, _ops
from .._spec import Rope
from ._arrays import arange, cast, host, indices, is_torch, module_of, on_gpu, placed
from ._named_errors import named_errors
from ._rope_cache import apply_rope_with_cos_sin_cache, apply_rope_with_cos_sin_cache_inplace
from ._rope_quantize import mla_rope_quantize_fp8, rope_quantize_fp8, rope_quantize_fp8_append_paged_kv_cache


def _positions(indptr, offsets, tokens: int, like):
    """int32 [tokens], where `like` is: offsets[r] + i for token i of request r; 0 behind indptr[-1]."""
    begins, offsets = indices(indptr, "indptr"), placed(indices(offsets, "offsets"), like)
    if len(begins) == 0:
        raise ValueError("`indptr`: expected one entry more than requests, got none")
    if not on_gpu(begins):
        counts = host(begins)
        if counts[0] < 0 or (counts[1:] < counts[:-1]).any() or counts[-1] > tokens:
            raise ValueError(f"`indptr`: expected 0 .. {tokens} (the tokens of q), none below the one before, got {counts.tolist()[:8]}{' ..' if len(counts) > 8 else ''}")
    begins = placed(begins, like)
    if len(offsets) != len(begins) - 1:
        raise ValueError(f"`offsets`: expected {len(begins) - 1} entries, one a request of `indptr`, got {len(offsets)}")
    xp = module_of(like)
    token = arange(tokens, like, "int64")
    wide = cast(begins, "int64")
    request = (xp.searchsorted(wide, token, right=True) if is_torch(like) else xp.searchsorted(wide, token, side="right")) - 1
    known = (request >= 0) & (request < len(offsets))
    request = request.clip(0, max(len(offsets) - 1, 0))
    pos = cast(offsets, "int64")[request] + token - wide[request] if len(offsets) else token * 0
    return cast(xp.where(known, pos, pos * 0), "int32")


def _turn(x, pos, rope: Rope, name: str):
    """x [tokens, heads, dim], in place."""
    dims = _core.shape_and_dtype(x, name)[0]
    if len(dims) != 3 or dims[0] != len(pos):
        raise ValueError(f"`{name}`: expected [{len(pos)}, heads, head_dim], got {list(dims)}")
    _ops.apply_rope(x, pos if on_gpu(x) else host(pos), rope)


def _rope(rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor=0.0, high_freq_factor=0.0, old_context_len=8192) -> Rope:
    return Rope(
        mode="interleaved" if interleave else "half_split",
        rotary_dim=rotary_dim or 0,
        theta=10000.0 if rope_theta is None else float(rope_theta),
        scaling=1.0 if rope_scale is None else float(rope_scale),
        low_freq_factor=float(low_freq_factor),
        high_freq_factor=float(high_freq_factor),
        original_context=float(old_context_len),
    )


def _copies(*tensors):
    return [x.contiguous().clone() if is_torch(x) else x.copy() for x in tensors]


def _at(pos_ids, q):
    pos = placed(indices(pos_ids, "pos_ids"), q)
    return cast(pos, "int32")


def _in_place(q, k, pos, rope):
    for x, name in ((q, "q"), (k, "k")):
        _turn(x, pos, rope, name)


@named_errors
def apply_rope_inplace(q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4) -> None:
    """Turns q and k in place.

    q [tokens, num_qo_heads, head_dim], k [tokens, num_kv_heads, head_dim], fp32, fp16 or bf16
    indptr [requests + 1], offsets [requests], int32: token i of request r stands at offsets[r] + i; tokens behind indptr[-1] at 0. An indptr on the
                host that reaches beyond the tokens is refused; one on a GPU is not read by the host, and what of it lies beyond them is nobody's
    rotary_dim  dims that turn, the first ones; None: all. interleave: pairs (2i, 2i + 1), else (i, i + rotary_dim / 2)
    angle = pos * rope_theta^(-2 i / rotary_dim) / rope_scale
    """
    _in_place(q, k, _positions(indptr, offsets, q.shape[0], q), _rope(rotary_dim, interleave, rope_scale, rope_theta))


@named_errors
def apply_rope(q, k, indptr, offsets, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4):
    """apply_rope_inplace on copies, which it returns."""
    q, k = _copies(q, k)
    apply_rope_inplace(q, k, indptr, offsets, rotary_dim, interleave, rope_scale, rope_theta)
    return q, k


@named_errors
def apply_rope_pos_ids_inplace(q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4) -> None:
    """apply_rope_inplace with a position for every token: pos_ids [tokens], int32 or int64."""
    _in_place(q, k, _at(pos_ids, q), _rope(rotary_dim, interleave, rope_scale, rope_theta))


@named_errors
def apply_rope_pos_ids(q, k, pos_ids, rotary_dim=None, interleave=False, rope_scale=1, rope_theta=1e4):
    """apply_rope_pos_ids_inplace on copies, which it returns."""
    q, k = _copies(q, k)
    apply_rope_pos_ids_inplace(q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta)
    return q, k


@named_errors
def apply_llama31_rope_inplace(
    q,
    k,
    indptr,
    offsets,
    rotary_dim=None,
    interleave=False,
    rope_scale=8,
    rope_theta=5e5,
    low_freq_factor=1,
    high_freq_factor=4,
    old_context_len=8192,
) -> None:
    """apply_rope_inplace with Llama 3.1's frequencies: rope_scale divides those of long wavelengths."""
    rope = _rope(rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)
    _in_place(q, k, _positions(indptr, offsets, q.shape[0], q), rope)


@named_errors
def apply_llama31_rope(
    q,
    k,
    indptr,
    offsets,
    rotary_dim=None,
    interleave=False,
    rope_scale=8,
    rope_theta=5e5,
    low_freq_factor=1,
    high_freq_factor=4,
    old_context_len=8192,
):
    """apply_llama31_rope_inplace on copies, which it returns."""
    q, k = _copies(q, k)
    apply_llama31_rope_inplace(
        q, k, indptr, offsets, rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len
    )
    return q, k


@named_errors
def apply_llama31_rope_pos_ids_inplace(
    q,
    k,
    pos_ids,
    rotary_dim=None,
    interleave=False,
    rope_scale=8,
    rope_theta=5e5,
    low_freq_factor=1,
    high_freq_factor=4,
    old_context_len=8192,
) -> None:
    """apply_llama31_rope_inplace with a position for every token."""
    rope = _rope(rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len)
    _in_place(q, k, _at(pos_ids, q), rope)


@named_errors
def apply_llama31_rope_pos_ids(
    q,
    k,
    pos_ids,
    rotary_dim=None,
    interleave=False,
    rope_scale=8,
    rope_theta=5e5,
    low_freq_factor=1,
    high_freq_factor=4,
    old_context_len=8192,
):
    """apply_llama31_rope_pos_ids_inplace on copies, which it returns."""
    q, k = _copies(q, k)
    apply_llama31_rope_pos_ids_inplace(
        q, k, pos_ids, rotary_dim, interleave, rope_scale, rope_theta, low_freq_factor, high_freq_factor, old_context_len
    )
    return q, k


__all__ = [
    "apply_llama31_rope",
    "apply_llama31_rope_inplace",
    "apply_llama31_rope_pos_ids",
    "apply_llama31_rope_pos_ids_inplace",
    "apply_rope",
    "apply_rope_inplace",
    "apply_rope_pos_ids",
    "apply_rope_pos_ids_inplace",
    "apply_rope_with_cos_sin_cache",
    "apply_rope_with_cos_sin_cache_inplace",
    "mla_rope_quantize_fp8",
    "rope_quantize_fp8",
    "rope_quantize_fp8_append_paged_kv_cache",
]
