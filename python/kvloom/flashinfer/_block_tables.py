"""Functions of one call that take page tables: what FlashInfer has of TensorRT-LLM's interface and runs on Hopper by XQA.

They keep engines by what they are asked for. Lengths on a GPU are copied to the host, which waits for them, so these calls can't be captured: a wrapper in
CUDA-graph mode plans ahead. An LSE is in base 2."""

from __future__ import annotations

from .. import _core
from .._engines import engine_for
from .._errors import UnsupportedError
from .._frameworks import dtype_name
from .._spec import Spec
from ._arrays import cast, dtype_of, host, indices, is_torch, on_gpu, placed, to_base2
from ._masks import draft_mask, packed_mask
from ._named_errors import named_errors
from ._scales import is_number, scaled
from ._wrapper import check_layout, refuse_nvfp4

_FP8 = ("e4m3", "e5m2")


def _cache(kv_cache, layout: str):
    """k, v of a pair, or of one tensor [pages, 1 or 2, ..]."""
    if isinstance(kv_cache, (tuple, list)):
        return kv_cache
    if kv_cache.ndim != 5 or kv_cache.shape[1] not in (1, 2):
        raise ValueError(f"`kv_cache`: expected (k, v), or one tensor [pages, 1 or 2, ..] of 5 dimensions ({layout}), got {list(kv_cache.shape)}")
    return kv_cache[:, 0], kv_cache[:, kv_cache.shape[1] - 1]


def _scale(x, name: str) -> float:
    return float(x) if is_number(x) else float(x.reshape(-1)[0])


def attend(
    query,
    kv_cache,
    block_tables,
    seq_lens,
    *,
    layout,
    bmm1_scale,
    bmm2_scale,
    window_left,
    causal,
    q_len=None,
    cum_seq_lens_q=None,
    out=None,
    out_dtype=None,
    sinks=None,
    o_scale=1.0,
    lse=None,
    return_lse=False,
    mask=None,
):
    """query [tokens, heads, dim]; request r has q_len rows, or cum_seq_lens_q[r] .. cum_seq_lens_q[r + 1]. `mask`: draft_mask's, stands in for `causal`."""
    k, v = _cache(kv_cache, check_layout(layout))
    (q_dims, q_dtype), (k_dims, kv_dtype) = _core.shape_and_dtype(query, "query"), _core.shape_and_dtype(k, "kv_cache")
    if len(q_dims) != 3 or len(k_dims) != 4:
        raise ValueError(f"`query`, `kv_cache`: expected [tokens, heads, head_dim] and pages of 4 dimensions, got {list(q_dims)} and {list(k_dims)}")
    kv_len = host(cast(indices(seq_lens, "seq_lens"), "int64"))
    requests = len(kv_len)
    if cum_seq_lens_q is not None:
        begins = host(indices(cum_seq_lens_q, "cum_seq_lens_q"))
    else:
        if q_dims[0] != requests * q_len:
            raise ValueError(f"`query`: expected {requests * q_len} rows, {requests} requests of q_len_per_req = {q_len}, got {q_dims[0]}")
        begins = range(0, requests * q_len + 1, q_len) if q_len else [0] * (requests + 1)
    if block_tables.ndim != 2 or block_tables.shape[0] != requests:
        raise ValueError(f"`block_tables`: expected [{requests}, entries], got {list(block_tables.shape)}")
    page_size, kv_heads = (k_dims[1], k_dims[2]) if layout == "NHD" else (k_dims[2], k_dims[1])
    if int(kv_len.max() if requests else 0) > block_tables.shape[1] * page_size:
        raise ValueError(
            f"`seq_lens`: expected at most {block_tables.shape[1] * page_size} tokens, those of block_tables' rows, got {int(kv_len.max())}"
        )
    q_lens, kept = [int(b) - int(a) for a, b in zip(begins[:-1], begins[1:])], None
    if mask is not None and max(q_lens, default=0) > 1:  # of one row a request it says nothing
        causal, kept = draft_mask(mask, q_lens, kv_len.tolist())
    scale_out = _scale(bmm2_scale, "bmm2_scale") / (1.0 if o_scale is None else float(o_scale))
    if q_dtype in _FP8:
        raise UnsupportedError(f"`query`: expected f16 or bf16, got {q_dtype}; keep queries in 16 bits, keys and values may be fp8")
    o = dtype_name(out.dtype) if out is not None else dtype_name(out_dtype) if out_dtype is not None else q_dtype
    spec = Spec(
        num_qo_heads=q_dims[1],
        num_kv_heads=kv_heads,
        head_dim=q_dims[2],
        head_dim_vo=v.shape[-1],
        dtype=q_dtype,
        kv_dtype=kv_dtype,
        o_dtype=o,
        page_size=page_size,
        sm_scale=_scale(bmm1_scale, "bmm1_scale"),
        causal=causal,
        window_left=-1 if window_left is None else max(int(window_left), -1),
        sink=sinks is not None,
        custom_mask=kept is not None,
    )
    device = _core.gpu_of(query, "query")
    table = placed(block_tables, query)
    ids_there = on_gpu(table)
    engine = engine_for(spec, device, max(requests, 1), max(q_dims[0], 1), check_pages=not ids_there)
    plan = engine.plan(kv_len, begins, block_table=table)
    extra = {"pages": table} if device is not None else {}
    if sinks is not None:
        sinks = sinks[0] if isinstance(sinks, (list, tuple)) else sinks
        extra["sink"] = cast(sinks.reshape(-1), "float32")
    if kept is not None:
        extra["mask"], extra["mask_indptr"] = packed_mask(kept, None, indices(q_lens, "q_len"), kv_len, query)
    result = engine.run(plan, query, k, v, out=out, lse=lse, return_lse=return_lse, layout=layout, **extra)
    made, made_lse = result if isinstance(result, tuple) else (result, None)
    if scale_out != 1.0:
        scaled(made, scale_out)
    if made_lse is not None:
        to_base2(made_lse)
    return (made, made_lse) if return_lse else made


def _refuse(**given):
    """Arguments that ask for what there is no kernel for."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise UnsupportedError(
                f"`{name}`: expected {False if value is True else None}, got {type(value).__name__}; there is no kernel for it here (docs/FLASHINFER.md)"
            )


@named_errors
def trtllm_batch_decode_with_kv_cache(
    query,
    kv_cache,
    workspace_buffer,
    block_tables,
    seq_lens,
    max_seq_len,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    window_left=-1,
    out=None,
    out_dtype=None,
    o_sf_scale=None,
    o_sf_vec_size=None,
    sinks=None,
    kv_layout="HND",
    enable_pdl=None,
    backend="auto",
    q_len_per_req=1,
    o_scale=1.0,
    mask=None,
    max_q_len=None,
    cum_seq_lens_q=None,
    skip_softmax_threshold_scale_factor=None,
    kv_cache_sf=None,
    uses_shared_paged_kv_idx=True,
    lse=None,
    return_lse=False,
    bmm1_scale_log2=None,
    multi_ctas_kv_counter_buffer=None,
    enable_block_sparse_attention=False,
    bf16q_fp8kv_transform_mode=None,
):
    """Decode by page tables.

    query [requests * q_len_per_req, num_qo_heads, head_dim] (with cum_seq_lens_q [requests + 1]: any numbers of rows); several rows of a request are causal
    kv_cache (k, v), [pages, num_kv_heads, page_size, head_dim] (NHD: heads last but one), or one tensor [pages, 1 or 2, ..]
    block_tables [requests, entries], seq_lens [requests] tokens; bmm1_scale: of logits, all scales in one; bmm2_scale: of the output
    sinks float32 [num_qo_heads]. workspace_buffer is not used. Returns out, or (out, lse).
    mask  uint16 [rows of query, words] (or a dimension more): bit j of a row keeps draft token j of its request; stands in for causal
    """
    refuse_nvfp4(kv_cache_sf)
    _refuse(
        o_sf_scale=o_sf_scale,
        o_sf_vec_size=o_sf_vec_size,
        bmm1_scale_log2=bmm1_scale_log2,
        enable_block_sparse_attention=enable_block_sparse_attention,
        tables_of_k_and_v=not uses_shared_paged_kv_idx,
    )
    return attend(
        query,
        kv_cache,
        block_tables,
        seq_lens,
        layout=kv_layout,
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=window_left,
        causal=cum_seq_lens_q is not None or q_len_per_req != 1,
        q_len=q_len_per_req or 1,
        cum_seq_lens_q=cum_seq_lens_q,
        out=out,
        out_dtype=out_dtype,
        sinks=sinks,
        o_scale=o_scale,
        lse=lse,
        return_lse=return_lse,
        mask=mask,
    )


@named_errors
def xqa_batch_decode_with_kv_cache(
    query,
    kv_cache,
    workspace_buffer,
    block_tables,
    seq_lens,
    max_seq_len,
    bmm1_scale=1.0,
    bmm2_scale=1.0,
    window_left=-1,
    out=None,
    sinks=None,
    kv_layout="NHD",
    enable_pdl=None,
    q_len_per_req=1,
    o_scale=1.0,
    mask=None,
    kv_cache_sf=None,
    q_cu_seq_lens=None,
):
    """trtllm_batch_decode_with_kv_cache with another order and layout of default."""
    refuse_nvfp4(kv_cache_sf)
    return attend(
        query,
        kv_cache,
        block_tables,
        seq_lens,
        layout=kv_layout,
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=window_left,
        causal=q_cu_seq_lens is not None or q_len_per_req != 1,
        q_len=q_len_per_req or 1,
        cum_seq_lens_q=q_cu_seq_lens,
        out=out,
        sinks=sinks,
        o_scale=o_scale,
        mask=mask,
    )


@named_errors
def trtllm_batch_context_with_kv_cache(
    query,
    kv_cache,
    workspace_buffer,
    block_tables,
    seq_lens,
    max_q_len,
    max_kv_len,
    bmm1_scale,
    bmm2_scale,
    batch_size,
    cum_seq_lens_q,
    cum_seq_lens_kv,
    window_left=-1,
    out=None,
    out_dtype=None,
    o_sf_scale=None,
    o_sf_vec_size=None,
    kv_layout="HND",
    enable_pdl=None,
    sinks=None,
    kv_cache_sf=None,
    skip_softmax_threshold_scale_factor=None,
    uses_shared_paged_kv_idx=True,
    causal=True,
    lse=None,
    return_lse=False,
    multi_ctas_kv_counter_buffer=None,
    use_fp16_softmax=None,
    uses_spcompress=None,
):
    """Prefill by page tables: query [tokens, num_qo_heads, head_dim], cum_seq_lens_q [batch_size + 1]; the rest as trtllm_batch_decode_with_kv_cache.
    max_q_len, max_kv_len and cum_seq_lens_kv are not needed."""
    refuse_nvfp4(kv_cache_sf)
    _refuse(o_sf_scale=o_sf_scale, o_sf_vec_size=o_sf_vec_size, tables_of_k_and_v=not uses_shared_paged_kv_idx)
    return attend(
        query,
        kv_cache,
        block_tables,
        seq_lens,
        layout=kv_layout,
        bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale,
        window_left=window_left,
        causal=causal,
        cum_seq_lens_q=cum_seq_lens_q,
        out=out,
        out_dtype=out_dtype,
        sinks=sinks,
        lse=lse,
        return_lse=return_lse,
    )
