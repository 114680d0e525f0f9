"""Attention of one request: prefill, and decode of one query token."""

from __future__ import annotations

import functools

from .. import _core
from .._errors import UnsupportedError
from .._frameworks import dtype_name
from ._arrays import alibi_slopes, device_of, framework_of, indices, to_base2
from ._masks import packed_mask
from ._named_errors import named_errors
from ._plans import keep_if_captured, one_request
from ._scales import dequantized, scaled, scales_of
from ._wrapper import check_backend, check_layout, make_spec, refuse_nvfp4

_FP8 = ("e4m3", "e5m2")


def attend_one(
    q,
    k,
    v,
    layout,
    *,
    o_dtype,
    mask,
    causal,
    positions,
    sm_scale,
    window_left,
    cap,
    rope_scale,
    rope_theta,
    scales,
    return_lse,
    variant=None,
    params=None,
):
    """q [q_len, heads, dim]; k, v [kv_len, kv_heads, dim] (HND: heads first). scales: of q, k and v."""
    check_layout(layout)
    facts = [_core.shape_and_dtype(x, name) for x, name in ((q, "q"), (k, "k"), (v, "v"))]
    for (dims, _), name in zip(facts, "qkv"):
        if len(dims) != 3:
            raise ValueError(f"`{name}`: expected [tokens, heads, head_dim]{' (HND: heads first)' if name != 'q' else ''}, got {list(dims)}")
    (q_dims, q_dtype), (k_dims, kv_dtype), (v_dims, v_dtype) = facts
    if v_dtype != kv_dtype:
        raise ValueError(f"`v`: expected dtype {kv_dtype}, as k has, got {v_dtype}")
    kv_len, kv_heads = (k_dims[0], k_dims[1]) if layout == "NHD" else (k_dims[1], k_dims[0])
    q_scale, k_scale, v_scale = scales
    if q_dtype in _FP8:
        q, q_scale = dequantized(q, q_scale), None
    fused = scales_of(kv_dtype, kv_heads, q_scale, k_scale, v_scale)
    packed, begins = mask
    o = dtype_name(o_dtype) if o_dtype is not None else "bf16" if q_dtype in _FP8 else q_dtype
    heads = (q_dims[1], kv_heads, q_dims[2], v_dims[2], q_dtype, kv_dtype, o, None)
    spec = make_spec(heads, causal, window_left, cap, sm_scale, positions, rope_scale, rope_theta, packed is not None, False, fused.factor, variant)
    planned = one_request(spec, _core.gpu_of(q, "q"), q_dims[0], kv_len)
    extra = dict(fused.tensors)
    if packed is not None:
        extra["mask"], extra["mask_indptr"] = packed, begins
    if spec.alibi:
        extra["alibi_slopes"] = _slopes(q_dims[1], q)
    if params:
        extra["params"] = params
    keep_if_captured(planned, q)
    result = planned.engine.run(planned.plan, q, k, v, return_lse=return_lse, layout=layout, **extra)
    out, lse = result if return_lse else (result, None)
    if fused.out is not None:
        scaled(out, fused.out)
    return (out, to_base2(lse)) if return_lse else out


_kept_slopes: dict = {}  # a capture can't copy them from the host


def _slopes(heads: int, q):
    key = (framework_of(q), str(device_of(q)), heads)
    if key not in _kept_slopes:
        _kept_slopes[key] = alibi_slopes(heads, q)
    return _kept_slopes[key]


@named_errors
def single_prefill_with_kv_cache(
    q,
    k,
    v,
    scale_q=None,
    scale_k=None,
    scale_v=None,
    o_dtype=None,
    custom_mask=None,
    packed_custom_mask=None,
    causal=False,
    kv_layout="NHD",
    pos_encoding_mode="NONE",
    use_fp16_qk_reduction=False,
    sm_scale=None,
    window_left=-1,
    logits_soft_cap=None,
    rope_scale=None,
    rope_theta=None,
    backend="auto",
    return_lse=False,
    kv_cache_sf=None,
    k_scale=None,
    v_scale=None,
):
    """Attention of one request.

    q  [q_len, num_qo_heads, head_dim]; k, v [kv_len, num_kv_heads, head_dim] (HND: heads first)
    scale_q, scale_k, scale_v   of fp8 tensors: float32, one a head; k_scale, v_scale: numbers
    custom_mask   bool [q_len, kv_len], True: keep; packed_custom_mask: its bits, little bit order. A mask stands in for `causal`
    Returns out [q_len, num_qo_heads, head_dim_v], or (out, lse float32 [q_len, num_qo_heads], base 2).
    """
    refuse_nvfp4(kv_cache_sf)
    check_backend(backend)
    q_dims, k_dims = _core.shape_and_dtype(q, "q")[0], _core.shape_and_dtype(k, "k")[0]
    mask = None, None
    if custom_mask is not None or packed_custom_mask is not None:
        kv_len = k_dims[0 if check_layout(kv_layout) == "NHD" else -2]
        if custom_mask is not None and custom_mask.ndim == 2 and tuple(custom_mask.shape) != (q_dims[0], kv_len):
            raise ValueError(f"`custom_mask`: expected [{q_dims[0]}, {kv_len}], got {list(custom_mask.shape)}")
        lengths = (indices([n], "q") for n in (q_dims[0], kv_len))
        mask = packed_mask(custom_mask, packed_custom_mask, *lengths, q)
    return attend_one(
        q,
        k,
        v,
        kv_layout,
        o_dtype=o_dtype,
        mask=mask,
        causal=causal,
        positions=pos_encoding_mode,
        sm_scale=sm_scale,
        window_left=window_left,
        cap=logits_soft_cap,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
        scales=(scale_q, _both(scale_k, k_scale), _both(scale_v, v_scale)),
        return_lse=return_lse,
    )


single_prefill_with_kv_cache_return_lse = functools.partial(single_prefill_with_kv_cache, return_lse=True)


def _both(a, b):
    return b if a is None else a if b is None else a * b


@named_errors
def single_decode_with_kv_cache(
    q,
    k,
    v,
    kv_layout="NHD",
    pos_encoding_mode="NONE",
    use_tensor_cores=False,
    q_scale=None,
    k_scale=None,
    v_scale=None,
    window_left=-1,
    logits_soft_cap=None,
    sm_scale=None,
    rope_scale=None,
    rope_theta=None,
    return_lse=False,
):
    """Attention of one query token.

    q  [num_qo_heads, head_dim]; k, v [kv_len, num_kv_heads, head_dim] (HND: heads first)
    Returns out [num_qo_heads, head_dim], or (out, lse float32 [num_qo_heads], base 2).
    """
    dims = _core.shape_and_dtype(q, "q")[0]
    if len(dims) != 2:
        raise ValueError(f"`q`: expected [num_qo_heads, head_dim], got {list(dims)}")
    result = attend_one(
        q[None],
        k,
        v,
        kv_layout,
        o_dtype=None,
        mask=(None, None),
        causal=False,
        positions=pos_encoding_mode,
        sm_scale=sm_scale,
        window_left=window_left,
        cap=logits_soft_cap,
        rope_scale=rope_scale,
        rope_theta=rope_theta,
        scales=(q_scale, k_scale, v_scale),
        return_lse=return_lse,
    )
    return (result[0][0], result[1][0]) if return_lse else result[0]


@named_errors
def single_prefill_with_kv_cache_with_jit_module(jit_module, q, k, v, *args, kv_layout="NHD", mask_mode=0, window_left=-1, return_lse=False):
    """single_prefill_with_kv_cache with a variant of one's own: jit_module is what gen_customize_single_prefill_module(...).build_and_load() gave; args
    its tensors, then its scalars. mask_mode 1: causal."""
    if mask_mode not in (0, 1):
        raise ValueError(f"`mask_mode`: expected 0 (none) or 1 (causal), got {mask_mode}; a mask of one's own is the variant's `keep`")
    names = jit_module.names()
    if len(args) != len(names):
        raise TypeError(f"expected {len(names)} positional arguments behind v, {', '.join(names) or 'none'}, got {len(args)}")
    params = dict(zip(names, args))
    sm_scale = params.pop("sm_scale", None)
    if jit_module.sink:
        raise UnsupportedError("`jit_module`: AttentionSink: expected a batch wrapper's jit_args; give sinks to a wrapper's run")
    return attend_one(
        q,
        k,
        v,
        kv_layout,
        o_dtype=None,
        mask=(None, None),
        causal=mask_mode == 1,
        positions="NONE",
        sm_scale=sm_scale,
        window_left=window_left,
        cap=None,
        rope_scale=None,
        rope_theta=None,
        scales=(None, None, None),
        return_lse=return_lse,
        variant=jit_module.variant,
        params=params or None,
    )


@named_errors
def single_decode_with_kv_cache_with_jit_module(jit_module, q, k, v, *args, kv_layout="NHD", window_left=-1, return_lse=False):
    """The same of one query token, q [num_qo_heads, head_dim]."""
    result = single_prefill_with_kv_cache_with_jit_module(
        jit_module, q[None], k, v, *args, kv_layout=kv_layout, window_left=window_left, return_lse=return_lse
    )
    return (result[0][0], result[1][0]) if return_lse else result[0]
