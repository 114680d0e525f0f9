"""Plans for wrappers whose buffers the caller has written."""

from __future__ import annotations

import functools

from ._arrays import host
from ._arrays import indices as index_array
from ._lists import kv_lengths, schedule_of
from ._named_errors import named_errors


def _get_range_buf(seq_len: int, device):
    """int32 [0, 1, .. seq_len - 1] of torch. Not to be written."""
    import torch

    return _range(seq_len, torch.device(device))


@functools.cache
def _range_of(size: int, device):
    import torch

    return torch.arange(size, dtype=torch.int32, device=device)


def _range(seq_len: int, device):
    return _range_of(max(1 << max(seq_len - 1, 0).bit_length(), 1024), device)[:seq_len]


@named_errors
def fast_decode_plan(
    self,
    indptr,
    indices,
    last_page_len,
    num_qo_heads,
    num_kv_heads,
    head_dim,
    page_size,
    pos_encoding_mode="NONE",
    window_left=-1,
    logits_soft_cap=None,
    q_data_type=None,
    kv_data_type=None,
    data_type=None,
    sm_scale=None,
    rope_scale=None,
    rope_theta=None,
    non_blocking=True,
    fixed_split_size=None,
    disable_split_kv=False,
    q_len_per_req=1,
    global_override_indptr_cpu=None,
) -> None:
    """BatchDecodeWithPagedKVCacheWrapper.plan for a wrapper whose CUDA-graph buffers the caller has written: nothing is copied into them, and with
    global_override_indptr_cpu (and page_size 1) nothing is read from the GPU."""
    self._check_q_len(q_len_per_req)
    batch = len(last_page_len)
    if self._use_cuda_graph:
        if batch != self._fixed_batch_size:
            raise ValueError(f"`last_page_len`: expected {self._fixed_batch_size} requests, fixed in CUDA-graph mode, got {batch}")
        if len(indices) > len(self._paged_kv_indices_buf):
            raise ValueError(f"`indices`: expected at most the {len(self._paged_kv_indices_buf)} entries of the wrapper's buffer, got {len(indices)}")
    else:
        self._paged_kv_indptr_buf, self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf = (
            indptr,
            index_array(indices, "indices"),
            last_page_len,
        )
    begins = host(index_array(global_override_indptr_cpu if global_override_indptr_cpu is not None else indptr, "indptr"))
    if page_size == 1:
        kv_len = begins[1:] - begins[:-1]
    else:
        kv_len = kv_lengths(begins, last_page_len, page_size, "indptr", "last_page_len")[1]
    o = self._options(
        (),
        {
            "pos_encoding_mode": pos_encoding_mode,
            "window_left": window_left,
            "logits_soft_cap": logits_soft_cap,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "data_type": data_type,
            "sm_scale": sm_scale,
            "rope_scale": rope_scale,
            "rope_theta": rope_theta,
            "fixed_split_size": fixed_split_size,
            "disable_split_kv": disable_split_kv,
        },
    )
    if q_data_type is None and kv_data_type is None and data_type is None and self._heads is not None:
        q_dtype, kv_dtype, o_dtype = self._heads[4:7]
    else:
        q_dtype, kv_dtype, o_dtype = o["q_data_type"], o["kv_data_type"], self._heads[6] if self._heads is not None else None
    self._set_heads(num_qo_heads, num_kv_heads, head_dim, None, q_dtype, kv_dtype, o_dtype, page_size)
    self._set_decode(o, q_len_per_req)
    self._plan_lists(begins, kv_len, schedule_of(fixed_split_size, disable_split_kv, page_size))
