"""RoPE and fp8 in one call; and with the write into pages. Each is a few operations of the framework, not one kernel."""

from __future__ import annotations

from .. import _core
from ._arrays import cast, concatenate, is_torch, module_of
from ._named_errors import named_errors
from ._rope_cache import table_rows, turned
from .page import _append

_FP8 = {"e4m3": 448.0, "e5m2": 57344.0}


def _fp8_dtype(quantize_dtype, outputs, like):
    if quantize_dtype is None:
        quantize_dtype = next((x.dtype for x in outputs if x is not None), None)
    if quantize_dtype is None:
        quantize_dtype = "float8_e4m3fn"
    if isinstance(quantize_dtype, str):
        if is_torch(like):
            return getattr(module_of(like), quantize_dtype)
        import ml_dtypes

        return module_of(like).dtype(getattr(ml_dtypes, quantize_dtype))
    return quantize_dtype


def _quantized(wide, scale: float, dtype, out):
    """wide * scale, clipped to what `dtype` holds, into out or a new tensor."""
    if is_torch(wide):
        most = module_of(wide).finfo(dtype).max
        x = (wide * scale).clamp(-most, most).to(dtype)
    else:
        import ml_dtypes

        most = float(ml_dtypes.finfo(dtype).max)
        x = (wide * scale).clip(-most, most).astype(dtype)
    if out is None:
        return x
    out[...] = x.reshape(tuple(out.shape))
    return out


def _heads(x):
    """[tokens, heads, dim] of a tensor that may have no heads (MLA)."""
    return x[:, None] if x.ndim == 2 else x


def _nothing(like):
    return like[..., :0]


@named_errors
def rope_quantize_fp8(
    q_rope,
    k_rope,
    q_nope,
    k_nope,
    cos_sin_cache,
    pos_ids,
    is_neox=True,
    quantize_dtype=None,
    quant_scale_q=1.0,
    quant_scale_kv=1.0,
    q_rope_out=None,
    k_rope_out=None,
    q_nope_out=None,
    k_nope_out=None,
    enable_pdl=False,
    backend="cuda",
):
    """Turns the rotary parts and quantises all four: stored value = value * quant_scale.

    q_rope [tokens, num_qo_heads, rope_dim], q_nope [tokens, num_qo_heads, dim] or None; k_rope, k_nope the same of KV heads, or without that dimension (MLA)
    cos_sin_cache float32 [max_position, rope_dim], pos_ids [tokens]; quantize_dtype: float8_e4m3fn (default) or float8_e5m2
    Returns (q_rope, k_rope, q_nope, k_nope), the outputs that were given or new ones.
    """
    cos, sin = table_rows(cos_sin_cache, pos_ids, q_rope)
    dtype = _fp8_dtype(quantize_dtype, (q_rope_out, k_rope_out, q_nope_out, k_nope_out), q_rope)
    results = []
    for x, name, scale, out in ((q_rope, "q_rope", quant_scale_q, q_rope_out), (k_rope, "k_rope", quant_scale_kv, k_rope_out)):
        if _core.shape_and_dtype(x, name)[0][0] != cos.shape[0]:
            raise ValueError(f"`{name}`: expected {cos.shape[0]} tokens, as pos_ids has, got {x.shape[0]}")
        wide = turned(_heads(x), cos, sin, is_neox).reshape(tuple(x.shape))
        results.append(_quantized(wide, scale, dtype, out))
    for x, like, scale, out in ((q_nope, q_rope, quant_scale_q, q_nope_out), (k_nope, k_rope, quant_scale_kv, k_nope_out)):
        results.append(_quantized(cast(x if x is not None else _nothing(like), "float32"), scale, dtype, out))
    return tuple(results)


@named_errors
def mla_rope_quantize_fp8(
    q_rope,
    k_rope,
    q_nope,
    k_nope,
    cos_sin_cache,
    pos_ids,
    is_neox=True,
    quantize_dtype=None,
    quant_scale_q=1.0,
    quant_scale_kv=1.0,
    q_rope_out=None,
    k_rope_out=None,
    q_nope_out=None,
    k_nope_out=None,
    enable_pdl=False,
):
    """rope_quantize_fp8 with keys that have no heads."""
    outputs = (q_rope_out, k_rope_out, q_nope_out, k_nope_out)
    return rope_quantize_fp8(q_rope, k_rope, q_nope, k_nope, cos_sin_cache, pos_ids, is_neox, quantize_dtype, quant_scale_q, quant_scale_kv, *outputs)


@named_errors
def rope_quantize_fp8_append_paged_kv_cache(
    q_rope,
    k_rope,
    q_nope,
    k_nope,
    v,
    cos_sin_cache,
    pos_ids,
    paged_kv_cache,
    kv_indices,
    kv_indptr,
    batch_indices,
    positions,
    is_neox=True,
    quantize_dtype=None,
    quant_scale_q=1.0,
    quant_scale_kv=1.0,
    page_size=16,
    kv_layout="NHD",
    q_rope_out=None,
    q_nope_out=None,
    enable_pdl=False,
):
    """rope_quantize_fp8, then keys and values into their pages; a token of request -1 is skipped.

    v [tokens, num_kv_heads, head_dim], or None for MLA (k_rope [tokens, dim])
    paged_kv_cache  (k, v) pages of [rope_dim + dim] keys, or for MLA (ckv_cache, kpe_cache) [pages, page_size, dim]; dtype quantize_dtype
    Returns (q_rope, q_nope).
    """
    latent = k_rope.ndim == 2
    if latent != (v is None):
        raise ValueError(
            f"`v`: expected {'None, keys without heads are MLA' if latent else 'a tensor, as keys have heads'}, got {'None' if v is None else 'a tensor'}"
        )
    caches = tuple(paged_kv_cache)
    if len(caches) != 2:
        raise ValueError(f"`paged_kv_cache`: expected two tensors, got {len(caches)}")
    dtype = _fp8_dtype(quantize_dtype, (q_rope_out, q_nope_out), q_rope)
    for x in caches:
        if x.dtype != dtype:
            raise ValueError(f"`paged_kv_cache`: expected dtype {dtype}, as quantize_dtype says, got {x.dtype}")
    scales = (quant_scale_q, quant_scale_kv)
    q_r, k_r, q_n, k_n = rope_quantize_fp8(
        q_rope, k_rope, q_nope, k_nope, cos_sin_cache, pos_ids, is_neox, dtype, *scales, q_rope_out=q_rope_out, q_nope_out=q_nope_out
    )
    where = (batch_indices, positions, kv_indices, kv_indptr)
    # Written as float32: the library converts to the pages' dtype, which holds these values exactly.
    if latent:
        _append(cast(k_n, "float32")[:, None], cast(k_r, "float32")[:, None], caches[0][:, :, None], caches[1][:, :, None], *where, "NHD")
    else:
        keys = concatenate([cast(k_r, "float32"), cast(k_n, "float32")], -1)
        values = _quantized(cast(v, "float32"), quant_scale_kv, dtype, None)
        _append(keys, cast(values, "float32"), *caches, *where, kv_layout)
    return q_r, q_n
