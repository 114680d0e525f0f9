"""attention(): one step in one call."""

from __future__ import annotations

import dataclasses
import typing

from . import _core
from ._engine import Engine
from ._engines import engine_for
from ._frameworks import int_list, on_host, to_device
from ._sparse import BlockSparse
from ._spec import Capacity, Options, Rope, Spec, Variant


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
    matrix=None,
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
    rope: Rope | None = None,
    variant: Variant | str | None = None,
    params: dict | None = None,
    reduction: typing.Literal["softmax", "sum"] = "softmax",
    sigmoid_bias: float = 0.0,
    q_scale=None,
    k_scale=None,
    v_scale=None,
    out=None,
    lse=None,
    return_lse: bool = False,
    o_dtype=None,
    options: Options | None = None,
):
    """Attention of one step, where q is. Returns out, or (out, lse) where an LSE is wanted.

    q      [tokens, num_qo_heads, head_dim]
    k, v   without pages [kv tokens, num_kv_heads, head_dim] (HND: heads first): one request; several with
           qo_indptr [requests + 1], kv_indptr [requests + 1].
           With pages [pages, page_size, num_kv_heads, head_dim] (HND: heads before page_size), and kv_len [requests],
           block_table [requests, entries] or pages and list_indptr, and qo_indptr (None: one query token a request)
    matrix a BlockSparse, instead of lengths: k, v [columns, num_kv_heads, head_dim]
    out    [tokens, num_qo_heads, head_dim_vo]; lse fp32 [tokens, num_qo_heads]; made if not given

    Lengths and page tables are int32 or int64 arrays, or lists; those on a GPU are copied to the host, and page ids to where q is. On a GPU work goes
    into the framework's current stream. For step after step make an Engine yourself: it plans a step once for all layers.
    """
    (q_dims, q_dtype), (k_dims, kv_dtype), (v_dims, _) = _core.shape_and_dtype(q, "q"), _core.shape_and_dtype(k, "k"), _core.shape_and_dtype(v, "v")
    if len(q_dims) != 3:
        raise ValueError(f"`q`: expected [tokens, heads, head_dim], got {list(q_dims)}")
    paged = block_table is not None or pages is not None
    rank = 4 if paged else 3
    for name, dims in (("k", k_dims), ("v", v_dims)):
        if len(dims) != rank:
            wanted = "[pages, page_size, heads, head_dim]" if paged else "[tokens, heads, head_dim]"
            raise ValueError(f"`{name}`: expected {wanted}, got {list(dims)}")
    if not isinstance(layout, str) or layout not in ("NHD", "HND"):
        raise ValueError(f"`layout`: expected 'NHD' or 'HND', got {layout!r}")
    head_axis, token_axis = (-2, -3) if layout == "NHD" else (-3, -2)
    page_size = k_dims[token_axis] if paged else None
    if matrix is not None:
        if not isinstance(matrix, BlockSparse):
            raise TypeError(f"`matrix`: expected a kvloom.BlockSparse, got {type(matrix).__name__}")
        if paged or kv_len is not None or kv_indptr is not None:
            raise ValueError("`matrix`: expected it without `kv_len`, `kv_indptr` and pages, which it stands for")
        page_size = matrix.page_size
        k, v = matrix.as_pages(k, "k"), matrix.as_pages(v, "v")
    elif not paged:
        if kv_len is not None:
            raise ValueError("`kv_len`: expected it with pages only; without, give `kv_indptr`")
        list_indptr, kv_len, qo_indptr = _ragged(q_dims[0], k_dims[token_axis], qo_indptr, kv_indptr)
    spec = Spec(
        num_qo_heads=q_dims[1],
        num_kv_heads=k_dims[head_axis],
        head_dim=q_dims[2],
        head_dim_vo=v_dims[-1],
        dtype=q_dtype,
        kv_dtype=kv_dtype,
        o_dtype=o_dtype if o_dtype is not None or out is None else _core.shape_and_dtype(out, "out")[1],
        page_size=page_size,
        sm_scale=sm_scale,
        causal=causal,
        window_left=window_left,
        window_right=window_right,
        soft_cap=soft_cap,
        alibi=alibi_slopes is not None,
        custom_mask=mask is not None,
        sink=sink is not None,
        reduction=reduction,
        sigmoid_bias=sigmoid_bias,
        rope=rope,
        variant=variant,
    )
    if isinstance(spec.variant, Variant) and spec.variant.params:
        params = {**spec.variant.params, **(params or {})}
    lengths = {
        "qo_indptr": qo_indptr,
        "kv_len": kv_len,
        "pages": pages,
        "list_indptr": list_indptr,
        "block_table": block_table,
        "q_pos0": q_pos0,
        "q_pos": q_pos,
        "prefix": prefix,
    }
    tensors = {
        "out": out,
        "lse": lse,
        "return_lse": return_lse,
        "layout": layout,
        "alibi_slopes": alibi_slopes,
        "sink": sink,
        "mask": mask,
        "mask_indptr": mask_indptr,
        "q_scale": q_scale,
        "k_scale": k_scale,
        "v_scale": v_scale,
        "params": params or None,
    }
    device = _core.gpu_of(q, "q")
    if device is not None:
        return _on_gpu(spec, options, device, matrix, q, k, v, lengths, tensors)
    return _core.attention(spec, options or Options(), matrix, q, k, v, **lengths, **tensors)


def _on_gpu(spec, options, device, matrix, q, k, v, lengths, tensors):
    """A kept engine's step: an engine for the CPU is made in no time, one for a GPU is not, and work belongs into the framework's stream."""
    tokens = _core.shape_and_dtype(q, "q")[0][0]
    if matrix is not None:
        requests, ids = matrix.num_requests, matrix.pages
    else:
        ids = lengths["block_table"] if lengths["block_table"] is not None else lengths["pages"]
        lengths = {name: on_host(x) for name, x in lengths.items()}
        requests = len(lengths["kv_len"])
    if options is None:
        engine = engine_for(spec, device, requests, tokens)
    else:
        options = dataclasses.replace(options, backend="cuda", device=device, levels="off")
        engine = Engine(spec, Capacity(max_requests=max(requests, 1), max_query_tokens=max(tokens, 1)), options)
    plan = engine.plan_sparse(matrix) if matrix is not None else engine.plan(**lengths)
    return engine.run(plan, q, k, v, pages=to_device(ids, q) if ids is not None else None, **tensors)


def _ragged(tokens: int, kv_tokens: int, qo_indptr, kv_indptr):
    """list_indptr, kv_len and qo_indptr of requests that lie one after the other."""
    if (qo_indptr is None) != (kv_indptr is None):
        given, missing = ("kv_indptr", "qo_indptr") if qo_indptr is None else ("qo_indptr", "kv_indptr")
        raise ValueError(f"`{missing}`: expected it beside `{given}`, got None")
    if qo_indptr is None:
        qo_indptr, kv_indptr = [0, tokens], [0, kv_tokens]
    begins = int_list(kv_indptr)
    if len(begins) != len(qo_indptr):
        raise ValueError(f"`kv_indptr`: expected {len(qo_indptr)} entries, as `qo_indptr` has, got {len(begins)}")
    return begins, [end - begin for begin, end in zip(begins, begins[1:])], qo_indptr
