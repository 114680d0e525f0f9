"""BatchAttention: decode and prefill of one batch together; and attention with sinks."""

from __future__ import annotations

from .. import _core
from ._arrays import device_of, host, indices, on_gpu, placed
from ._jit import Custom
from ._lists import check_ids, query_lengths
from ._plans import Schedule, Step
from ._wrapper import Wrapper, check_layout, refuse_nvfp4, split_cache, undone_on_error
from .prefill import BatchPrefillWithPagedKVCacheWrapper


class BatchAttention(Wrapper):
    """Attention of requests with any numbers of queries. It holds no workspace: memory for partial results is as large as its steps need.

    It works where plan's page ids are, whatever `device` says: on the CPU, too.
    """

    def __init__(self, kv_layout="NHD", device="cuda"):
        self._set_up_on(None, None, device, check_layout(kv_layout), False, None, "auto")

    @undone_on_error
    def plan(
        self,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_len_arr,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        head_dim_vo,
        page_size,
        causal=False,
        sm_scale=None,
        logits_soft_cap=None,
        q_data_type="bfloat16",
        kv_data_type="bfloat16",
        use_profiler=False,
    ) -> None:
        """Plans a step. qo_indptr, kv_indptr [requests + 1], kv_len_arr [requests] tokens, kv_indices [page ids]; int32. Page ids must be
        where q and the cache will be; they are kept, not copied."""
        begins, q_len = query_lengths(qo_indptr, "qo_indptr")
        lists, pages = query_lengths(kv_indptr, "kv_indptr")
        kv_len = placed(host(indices(kv_len_arr, "kv_len_arr")), lists)
        if len(pages) != len(q_len) or len(kv_len) != len(q_len):
            raise ValueError(
                f"`kv_indptr`, `kv_len_arr`: expected {len(q_len) + 1} and {len(q_len)} entries, as `qo_indptr` says, got {len(pages) + 1} and {len(kv_len)}"
            )
        too_long = (kv_len < 0) | (kv_len > pages * page_size)
        if bool(too_long.any()):
            r = [bool(x) for x in too_long].index(True)
            raise ValueError(f"`kv_len_arr`: request {r}: expected 0 .. {int(pages[r]) * page_size}, its pages' tokens, got {int(kv_len[r])}")
        ids = indices(kv_indices, "kv_indices")
        check_ids(ids, lists, "kv_indices", "kv_indptr")
        self._go_where(ids)
        self._set_heads(num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q_data_type, kv_data_type, None, page_size)
        self._set_attention(
            causal=causal,
            pos_encoding_mode="NONE",
            window_left=-1,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=None,
            rope_theta=None,
        )
        self._kv_indices = ids
        lengths = {"kv_len": kv_len, "qo_indptr": begins, "list_indptr": lists, "pages": self._kv_indices}
        self._plan_step(Step(lengths, len(q_len), int(begins[-1])), Schedule())

    def _go_where(self, ids):
        """Engines for the device of the page ids."""
        gpu = _core.gpu_of(ids, "kv_indices") if on_gpu(ids) else None
        self.device = device_of(ids)
        if gpu != self._plans.device:
            self._plans.device = gpu
            self._plans.clear()

    def run(self, q, kv_cache, out=None, lse=None, k_scale=None, v_scale=None, logits_soft_cap=0.0, profiler_buffer=None, kv_cache_sf=None):
        """One layer. q [queries, num_qo_heads, head_dim_qk]; kv_cache as BatchPrefillWithPagedKVCacheWrapper.run has it. logits_soft_cap: 0 is
        what plan was told. Returns (out, lse float32 [queries, num_qo_heads], base 2)."""
        refuse_nvfp4(kv_cache_sf)
        if self._heads is None:
            raise RuntimeError("run: expected a plan() before it, got none")
        k, v = split_cache(kv_cache, self._kv_layout)
        planned = self._logits_soft_cap
        try:
            self._logits_soft_cap = logits_soft_cap or planned
            return self._attend(q, k, v, self._kv_layout, k_scale=k_scale, v_scale=v_scale, out=out, lse=lse, return_lse=True, pages=self._kv_indices)
        finally:
            self._logits_soft_cap = planned


class BatchAttentionWithAttentionSinkWrapper(BatchPrefillWithPagedKVCacheWrapper):
    """BatchPrefillWithPagedKVCacheWrapper with a sink: run(q, paged_kv_cache, sink, sm_scale). sink float32 [num_qo_heads]: logits that join the
    softmax's denominator and have no value. Dtypes, head dims and window are those of plan."""

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        q_data_type="bfloat16",
        kv_data_type="bfloat16",
        head_dim_qk=128,
        head_dim_vo=128,
        window_left=-1,
    ):
        super().__init__(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph,
            qo_indptr_buf,
            paged_kv_indptr_buf,
            paged_kv_indices_buf,
            paged_kv_last_page_len_buf,
            custom_mask_buf,
            mask_indptr_buf,
            backend,
        )
        self._custom = Custom(None, ("sink",), ("sm_scale",), True)

    def _always_sink(self) -> bool:
        return True


__all__ = ["BatchAttention", "BatchAttentionWithAttentionSinkWrapper"]
