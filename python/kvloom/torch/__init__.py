"""kvloom inside torch.compile: registered operators, whose functions have the names and arguments of kvloom's own.

    import kvloom.torch

    step = kvloom.torch.Step(kvloom.Engine(spec, max_requests=64, max_query_tokens=4096))

    @torch.compile(fullgraph=True)
    def layer(q, k, v, k_cache, v_cache, slots):
        kvloom.torch.append_kv(k, v, k_cache, v_cache, slots=slots)
        return step.run(q, k_cache, v_cache)

    step.plan(kv_len, qo_indptr, block_table=table)      # outside: what differs from step to step is in no graph
    layer(q, k, v, k_cache, v_cache, slots)

Tensors are torch's. Shapes may be dynamic. What an operator writes (out, lse, caches, x) is in its schema. Forward only: results carry no gradient.
"""

from __future__ import annotations

import typing

import torch

import kvloom

from . import _ops  # noqa: F401  registers the operators
from ._keywords import dims_of, outputs, packed
from ._step import Step


def attention(
    q,
    k,
    v,
    *,
    qo_indptr=None,
    kv_indptr=None,
    kv_len=None,
    pages=None,
    list_indptr=None,
    block_table=None,
    q_pos0=None,
    q_pos=None,
    prefix=None,
    layout: str = "NHD",
    causal: bool = False,
    window_left: int = -1,
    window_right: int = -1,
    sm_scale: float = 0.0,
    soft_cap: float = 0.0,
    alibi_slopes=None,
    sink=None,
    mask=None,
    mask_indptr=None,
    rope: kvloom.Rope | None = None,
    variant: kvloom.Variant | str | None = None,
    params: dict | None = None,
    reduction: typing.Literal["softmax", "sum"] = "softmax",
    sigmoid_bias: float = 0.0,
    q_scale=None,
    k_scale=None,
    v_scale=None,
    out=None,
    lse=None,
    return_lse: bool = False,
    o_dtype: torch.dtype | None = None,
):
    """kvloom.attention, traced by torch.compile; o_dtype is a torch.dtype, default that of q (fp8: bfloat16).

    It plans at every call: with lengths on a GPU that waits for them, and it is captured in no CUDA graph. Layers that share a step share the
    plan of a Step. Not here: `matrix` (Step.plan_sparse) and `options` (an Engine's, of a Step).
    """
    rows, heads, _ = dims_of(q, "q", "[tokens, heads, head_dim]")
    if not isinstance(v, torch.Tensor) or v.dim() < 1:
        raise TypeError(f"`v`: expected a torch.Tensor [tokens, heads, head_dim], got {type(v).__name__}")
    if o_dtype is None:
        o_dtype = torch.bfloat16 if q.dtype in (torch.float8_e4m3fn, torch.float8_e5m2) else q.dtype
    out, lse = outputs(q, (rows, heads, v.shape[-1]), o_dtype, out, lse, return_lse)
    keywords = packed(
        {
            "qo_indptr": qo_indptr,
            "kv_indptr": kv_indptr,
            "kv_len": kv_len,
            "pages": pages,
            "list_indptr": list_indptr,
            "block_table": block_table,
            "q_pos0": q_pos0,
            "q_pos": q_pos,
            "prefix": prefix,
            "layout": layout,
            "causal": causal,
            "window_left": window_left,
            "window_right": window_right,
            "sm_scale": sm_scale,
            "soft_cap": soft_cap,
            "alibi_slopes": alibi_slopes,
            "sink": sink,
            "mask": mask,
            "mask_indptr": mask_indptr,
            "rope": rope,
            "variant": variant,
            "params": params,
            "reduction": reduction,
            "sigmoid_bias": sigmoid_bias,
            "q_scale": q_scale,
            "k_scale": k_scale,
            "v_scale": v_scale,
        }
    )
    torch.ops.kvloom.attention(q, k, v, out, lse, *keywords)
    return out if lse is None else (out, lse)


def append_kv(
    k_new,
    v_new,
    k,
    v,
    *,
    request=None,
    pos=None,
    rope_pos=None,
    pages=None,
    list_indptr=None,
    block_table=None,
    slots=None,
    layout: str = "NHD",
    rope: kvloom.Rope | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
) -> None:
    """kvloom.append_kv, traced by torch.compile; writes k and v, which may be views of one tensor."""
    keywords = packed(
        {
            "request": request,
            "pos": pos,
            "rope_pos": rope_pos,
            "pages": pages,
            "list_indptr": list_indptr,
            "block_table": block_table,
            "slots": slots,
            "layout": layout,
            "rope": rope,
            "k_scale": k_scale,
            "v_scale": v_scale,
        }
    )
    torch.ops.kvloom.append_kv(k_new, v_new, k, v, *keywords)


def merge_states(o_a, lse_a, o_b, lse_b, *, out=None, lse=None):
    """kvloom.merge_states, traced by torch.compile. Returns (out, lse)."""
    out, lse = outputs(o_a, dims_of(o_a, "o_a", "[rows, heads, head_dim]"), o_a.dtype, out, lse, True)
    torch.ops.kvloom.merge_states(o_a, lse_a, o_b, lse_b, out, lse)
    return out, lse


def merge_states_n(o, lse, *, out=None, lse_out=None):
    """kvloom.merge_states_n, traced by torch.compile. Returns (out, lse)."""
    rows, _, heads, dim = dims_of(o, "o", "[rows, states, heads, head_dim]")
    out, lse_out = outputs(o, (rows, heads, dim), o.dtype, out, lse_out, True)
    torch.ops.kvloom.merge_states_n(o, lse, None, out, lse_out)
    return out, lse_out


def merge_states_ragged(o, lse, indptr, *, out=None, lse_out=None):
    """kvloom.merge_states_ragged, traced by torch.compile; indptr is a tensor where o is. Returns (out, lse)."""
    _, heads, dim = dims_of(o, "o", "[total, heads, head_dim]")
    (ends,) = dims_of(indptr, "indptr", "[rows + 1]")
    out, lse_out = outputs(o, (ends - 1, heads, dim), o.dtype, out, lse_out, True)
    torch.ops.kvloom.merge_states_n(o, lse, indptr, out, lse_out)
    return out, lse_out


def apply_rope(x, pos, rope: kvloom.Rope) -> None:
    """kvloom.apply_rope, traced by torch.compile; writes x."""
    torch.ops.kvloom.apply_rope(x, pos, *packed({"rope": rope}))


__all__ = ["append_kv", "apply_rope", "attention", "merge_states", "merge_states_n", "merge_states_ragged", "Step"]
