"""Writing new keys and values into pages, and where they go."""

from __future__ import annotations

from .. import _core, _ops
from ._arrays import arange, cast, host, indices, is_torch, module_of, on_gpu, placed
from ._named_errors import named_errors
from ._wrapper import check_layout, split_cache


@named_errors
def get_seq_lens(kv_indptr, kv_last_page_len, page_size: int):
    """int32 [requests]: tokens of each request; 0 of one without pages. Where kv_indptr is."""
    begins = indices(kv_indptr, "kv_indptr")
    pages = begins[1:] - begins[:-1]
    last = placed(indices(kv_last_page_len, "kv_last_page_len"), begins)
    if len(last) != len(pages):
        raise ValueError(f"`kv_last_page_len`: expected {len(pages)} entries, one a request of `kv_indptr`, got {len(last)}")
    return cast(((pages - 1) * page_size + last) * (pages > 0), "int32")


@named_errors
def get_batch_indices_positions(append_indptr, seq_lens, nnz: int, batch_indices=None, positions=None):
    """Request and position of each of nnz appended tokens, int32 [nnz] both, where append_indptr is.

    append_indptr [requests + 1], seq_lens [requests] tokens with the appended ones: token i of request r stands at
    seq_lens[r] - (append_indptr[r + 1] - append_indptr[r]) + i. Behind append_indptr[-1]: request -1, position 0. batch_indices, positions: written
    and returned where given. Waits for no GPU.
    """
    begins = indices(append_indptr, "append_indptr")
    lengths = placed(indices(seq_lens, "seq_lens"), begins)
    if len(lengths) != len(begins) - 1:
        raise ValueError(f"`seq_lens`: expected {len(begins) - 1} entries, one a request of `append_indptr`, got {len(lengths)}")
    token = arange(nnz, begins, "int64")
    xp = module_of(begins)
    wide = cast(begins, "int64")
    if is_torch(begins):
        request = xp.searchsorted(wide, token, right=True) - 1
    else:
        request = xp.searchsorted(wide, token, side="right") - 1
    known = token < wide[-1]
    inside = request.clip(0, max(len(lengths) - 1, 0)) if len(lengths) else request * 0
    if len(lengths):
        pos = cast(lengths, "int64")[inside] - (wide[inside + 1] - token)
    else:
        pos = request * 0
    request = cast(xp.where(known, request, request * 0 - 1), "int32")
    pos = cast(xp.where(known, pos, pos * 0), "int32")
    return _into(batch_indices, request, "batch_indices"), _into(positions, pos, "positions")


def _into(buffer, x, name: str):
    if buffer is None:
        return x
    if tuple(buffer.shape) != tuple(x.shape):
        raise ValueError(f"`{name}`: expected {list(x.shape)}, got {list(buffer.shape)}")
    buffer[...] = x
    return buffer


def _slots(batch_indices, positions, kv_indices, kv_indptr, page_size: int):
    """int64, where the arrays are: page * page_size + slot in the page, -1 where the request is -1."""
    request, pos = cast(batch_indices, "int64"), cast(positions, "int64")
    there = request >= 0
    request = request.clip(0)
    entry = cast(kv_indptr, "int64")[request] + pos // page_size
    entry = entry.clip(0, max(len(kv_indices) - 1, 0))
    slots = cast(kv_indices, "int64")[entry] * page_size + pos % page_size
    return module_of(slots).where(there, slots, slots * 0 - 1)


def _append(k_new, v_new, k, v, batch_indices, positions, kv_indices, kv_indptr, layout):
    tokens = _core.shape_and_dtype(k_new, "append_key")[0][0]
    request, pos = indices(batch_indices, "batch_indices"), indices(positions, "positions")
    for x, name in ((request, "batch_indices"), (pos, "positions")):
        if len(x) != tokens:
            raise ValueError(f"`{name}`: expected {tokens} entries, one a token, got {len(x)}")
    ids, begins = indices(kv_indices, "kv_indices"), indices(kv_indptr, "kv_indptr")
    page_size = k.shape[1 if layout == "NHD" else 2]
    if on_gpu(k):
        request, pos, ids, begins = (placed(x, k) for x in (request, pos, ids, begins))
        where = {"slots": _slots(request, pos, ids, begins, page_size)}
    else:
        where = {"request": host(request), "pos": host(pos), "pages": host(ids), "list_indptr": host(begins)}
    _ops.append_kv(k_new, v_new, k, v, layout=layout, **where)


@named_errors
def append_paged_kv_cache(
    append_key, append_value, batch_indices, positions, paged_kv_cache, kv_indices, kv_indptr, kv_last_page_len, kv_layout="NHD"
) -> None:
    """Writes new tokens into their pages, converted to the cache's dtype.

    append_key, append_value  [tokens, num_kv_heads, head_dim]
    batch_indices, positions  int32 [tokens], as get_batch_indices_positions gives them; request -1 is skipped
    paged_kv_cache            as BatchPrefillWithPagedKVCacheWrapper.run has it, with any strides
    kv_indices, kv_indptr     page ids and [requests + 1] where each request's begin, those of the new tokens included
    kv_last_page_len          is not needed
    On the CPU every index is checked, and after an error nothing was written; on a GPU nothing is waited for and slots outside the cache are skipped.
    """
    k, v = split_cache(paged_kv_cache, check_layout(kv_layout))
    heads = k.shape[2 if kv_layout == "NHD" else 1]
    for x, name in ((append_key, "append_key"), (append_value, "append_value")):
        if len(x.shape) == 3 and x.shape[1] != heads:
            raise ValueError(f"`{name}`: expected [tokens, {heads}, head_dim], the cache's KV heads ({kv_layout}), got {list(x.shape)}")
    _append(append_key, append_value, k, v, batch_indices, positions, kv_indices, kv_indptr, kv_layout)


@named_errors
def append_paged_mla_kv_cache(
    append_ckv, append_kpe, batch_indices, positions, ckv_cache, kpe_cache, kv_indices, kv_indptr, kv_last_page_len
) -> None:
    """Writes new tokens of MLA: append_ckv [tokens, 512], append_kpe [tokens, 64] into ckv_cache [pages, page_size, 512], kpe_cache
    [pages, page_size, 64]; other dims alike. The rest as append_paged_kv_cache."""
    for x, name, rank in ((append_ckv, "append_ckv", 2), (append_kpe, "append_kpe", 2), (ckv_cache, "ckv_cache", 3), (kpe_cache, "kpe_cache", 3)):
        dims = _core.shape_and_dtype(x, name)[0]
        if len(dims) != rank:
            raise ValueError(f"`{name}`: expected {'[tokens, dim]' if rank == 2 else '[pages, page_size, dim]'}, got {list(dims)}")
    heads = (append_ckv[:, None], append_kpe[:, None], ckv_cache[:, :, None], kpe_cache[:, :, None])
    _append(*heads, batch_indices, positions, kv_indices, kv_indptr, "NHD")


__all__ = ["append_paged_kv_cache", "append_paged_mla_kv_cache", "get_batch_indices_positions", "get_seq_lens"]
