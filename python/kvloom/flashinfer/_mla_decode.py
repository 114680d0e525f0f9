"""FlashInfer's older MLA decode: one query a request, and the pages' lengths by their last page."""

from __future__ import annotations

import functools

from ._arrays import arange, write_front
from ._lists import kv_lengths
from ._wrapper import undone_on_error
from .mla import BatchMLAPagedAttentionWrapper


class BatchDecodeMlaWithPagedKVCacheWrapper(BatchMLAPagedAttentionWrapper):
    """Decode of MLA over keys and queries that were turned before. BatchMLAPagedAttentionWrapper does the same for any number of queries."""

    def __init__(
        self,
        float_workspace_buffer,
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
    ):
        buffers = {
            "paged_kv_indptr_buffer": paged_kv_indptr_buffer,
            "paged_kv_indices_buffer": paged_kv_indices_buffer,
            "paged_kv_last_page_len_buffer": paged_kv_last_page_len_buffer,
        }
        for name, buffer in buffers.items():
            if use_cuda_graph and buffer is None:
                raise ValueError(f"`{name}`: expected a buffer in CUDA-graph mode, got None")
        own = {}
        if use_cuda_graph:
            requests = len(paged_kv_last_page_len_buffer)
            own = {"qo_indptr": arange(requests + 1, paged_kv_indptr_buffer), "kv_len_arr": arange(requests, paged_kv_indptr_buffer)}
        super().__init__(float_workspace_buffer, use_cuda_graph, kv_indptr=paged_kv_indptr_buffer, kv_indices=paged_kv_indices_buffer, **own)
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buffer
        self._use_tensor_cores = bool(use_tensor_cores)

    @property
    def use_tensor_cores(self) -> bool:
        return self._use_tensor_cores

    @undone_on_error
    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        head_dim_compressed_kv,
        page_size,
        sm_scale,
        window_left=-1,
        logits_soft_cap=None,
        data_type="float16",
        q_data_type=None,
        rope_scale=None,
        rope_theta=None,
    ) -> None:
        """As BatchDecodeWithPagedKVCacheWrapper.plan. The rotary part has head_dim_compressed_kv / 8 dims; rope_scale and rope_theta turn nothing,
        as in FlashInfer."""
        lists, kv_len = kv_lengths(indptr, last_page_len, page_size, "indptr", "last_page_len")
        self._options = (window_left, logits_soft_cap)
        kpe, dtypes = head_dim_compressed_kv // 8, (q_data_type or data_type, data_type)
        super().plan(
            arange(len(lists), lists), indptr, indices, kv_len, num_qo_heads, head_dim_compressed_kv, kpe, page_size, False, sm_scale, *dtypes
        )
        if self._use_cuda_graph:
            write_front(self._paged_kv_last_page_len_buf, last_page_len, "last_page_len")

    def _set_attention(self, *, window_left, logits_soft_cap, **others):
        window_left, logits_soft_cap = self._options
        super()._set_attention(window_left=window_left, logits_soft_cap=logits_soft_cap, **others)

    def run(
        self,
        q_nope,
        q_pe,
        paged_ckv_cache,
        paged_kpe_cache,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=False,
    ):
        """q_nope [requests, heads, ckv], q_pe [requests, heads, kpe]; paged_ckv_cache [pages, page_size, ckv], paged_kpe_cache [pages, page_size, kpe].
        Returns out [requests, heads, ckv], or (out, lse float32 [requests, heads], base 2)."""
        scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
        return self._run(q_nope, q_pe, paged_ckv_cache, paged_kpe_cache, None, 1.0, 1.0, scales, out=out, lse=lse, return_lse=return_lse)

    run_return_lse = functools.partialmethod(run, return_lse=True)
