"""FlashInfer's scales of q, k and v as what a run of kvloom takes."""

from __future__ import annotations

import typing

from ._arrays import cast, contiguous, is_torch, module_of

_FP8 = ("e4m3", "e5m2")


class Scales(typing.NamedTuple):
    """factor: of sm_scale. tensors: k_scale and v_scale of fp8 tensors, for the engine. out: what the output is multiplied by, or None."""

    factor: float = 1.0
    tensors: dict = {}
    out: typing.Any = None


NONE = Scales()


def is_number(x) -> bool:
    return isinstance(x, (int, float))


def _number(x, name: str) -> float:
    """A float of a number or of an array of one; on a GPU that waits for it."""
    if is_number(x):
        return float(x)
    _check_one(x, name)
    return float(x.reshape(-1)[0])


def _check_one(x, name: str):
    size = 1
    for n in getattr(x, "shape", (0,)):
        size *= n
    if size != 1:
        raise ValueError(
            f"`{name}`: expected a number, or an array of one, got {list(getattr(x, 'shape', ())) or type(x).__name__}; only fp8 tensors have a scale a head"
        )


def _of_heads(x, heads: int, name: str):
    """float32 [heads] of an array [heads] or of one."""
    x = cast(x, "float32").reshape(-1)
    if x.shape[0] not in (1, heads):
        raise ValueError(f"`{name}`: expected [{heads}] (KV heads) or one number, got {list(x.shape)}")
    if x.shape[0] != heads:
        x = x.expand(heads) if is_torch(x) else module_of(x).broadcast_to(x, (heads,))
    return contiguous(x)


def scales_of(kv_dtype: str, kv_heads: int, q_scale, k_scale, v_scale) -> Scales:
    """q_scale, k_scale multiply logits, v_scale the output; those of fp8 K and V are fused, and may be one a KV head."""
    if q_scale is None and k_scale is None and v_scale is None:
        return NONE
    factor = 1.0 if q_scale is None else _number(q_scale, "q_scale")
    if kv_dtype in _FP8:
        tensors = {}
        for name, scale in (("k_scale", k_scale), ("v_scale", v_scale)):
            if scale is not None:
                tensors[name] = float(scale) if is_number(scale) else _of_heads(scale, kv_heads, name)
        return Scales(factor, tensors)
    if k_scale is not None:
        factor *= _number(k_scale, "k_scale")
    if is_number(v_scale) and v_scale == 1.0:
        v_scale = None
    elif v_scale is not None and not is_number(v_scale):
        _check_one(v_scale, "v_scale")
    return Scales(factor, {}, v_scale)


def dequantized(q, scale):
    """q, fp8 [tokens, heads, dim], as bf16: value * scale. `scale`: a number, [heads], or None."""
    if is_torch(q):
        torch = module_of(q)
        wide = q.to(torch.float32)
        if scale is not None:
            wide = wide * (scale if is_number(scale) else scale.to(torch.float32).reshape(-1, 1))
        return wide.to(torch.bfloat16)
    import ml_dtypes

    wide = q.astype("float32")
    if scale is not None:
        wide = wide * (scale if is_number(scale) else scale.astype("float32").reshape(-1, 1))
    return wide.astype(ml_dtypes.bfloat16)


def scaled(out, factor):
    """out * factor, in place where the factor is a number."""
    if is_number(factor):
        out *= factor
        return out
    if is_torch(out):
        out.copy_(out.float() * factor.float())
        return out
    out[...] = (out.astype("float32") * factor).astype(out.dtype)
    return out
