"""Prefill beside decode. FlashInfer puts both into one launch; here they are two, in the caller's stream, each on all of the GPU."""

from __future__ import annotations

from ._masks import packed_mask
from ._named_errors import name_errors_of
from ._single import single_prefill_with_kv_cache
from ._wrapper import check_layout
from .decode import BatchDecodeWithPagedKVCacheWrapper
from .prefill import BatchPrefillWithPagedKVCacheWrapper


class PODWithPagedKVCacheWrapper:
    """One request's prefill over contiguous keys, beside a batch's decode over pages."""

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        jit_args=None,
    ):
        self._decode = BatchDecodeWithPagedKVCacheWrapper(
            float_workspace_buffer,
            kv_layout,
            use_cuda_graph,
            True,
            paged_kv_indptr_buffer,
            paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
            jit_args=jit_args,
        )

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._decode.is_cuda_graph_enabled

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer=None) -> None:
        self._decode.reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)

    def plan(
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
        q_data_type="float16",
        kv_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
    ) -> None:
        """Plans the decode part, as BatchDecodeWithPagedKVCacheWrapper.plan."""
        self._decode.plan(
            indptr,
            indices,
            last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
            data_type=data_type,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )

    begin_forward = plan

    def run(
        self,
        q_p,
        k_p,
        v_p,
        q_d,
        paged_kv_cache_d,
        custom_mask_p=None,
        packed_custom_mask_p=None,
        causal_p=False,
        kv_layout_p="NHD",
        pos_encoding_mode_p="NONE",
        sm_scale_p=None,
        window_left_p=-1,
        rope_scale_p=None,
        rope_theta_p=None,
        return_lse_p=False,
        custom_mask_d=None,
        packed_custom_mask_d=None,
        causal_d=False,
        kv_layout_d="NHD",
        pos_encoding_mode_d="NONE",
        sm_scale_d=None,
        window_left_d=-1,
        rope_scale_d=None,
        rope_theta_d=None,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        return_lse_d=False,
        use_fp16_qk_reduction=False,
        enable_pdl=None,
        *args,
    ):
        """Arguments ending in _p are single_prefill_with_kv_cache's, q_d and paged_kv_cache_d BatchDecodeWithPagedKVCacheWrapper.run's; what plan was
        told counts for the decode part, as in FlashInfer. Returns (out_p, out_d), each with its LSE, (out, lse), where it was asked for."""
        if custom_mask_d is not None or packed_custom_mask_d is not None:
            raise ValueError("`custom_mask_d`: expected None, a query sees all keys of its request; got a mask")
        check_layout(kv_layout_d)
        prefill = single_prefill_with_kv_cache(
            q_p,
            k_p,
            v_p,
            custom_mask=custom_mask_p,
            packed_custom_mask=packed_custom_mask_p,
            causal=causal_p,
            kv_layout=kv_layout_p,
            pos_encoding_mode=pos_encoding_mode_p,
            sm_scale=sm_scale_p,
            window_left=window_left_p,
            rope_scale=rope_scale_p,
            rope_theta=rope_theta_p,
            return_lse=return_lse_p,
        )
        decode = self._decode.run(q_d, paged_kv_cache_d, *args, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse_d)
        return prefill, decode

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer."""


class BatchPODWithPagedKVCacheWrapper:
    """A batch's prefill beside a batch's decode, both over pages."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self._prefill = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._decode = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return False

    def plan(
        self,
        qo_indptr_p,
        kv_indptr_p,
        kv_indices_p,
        last_page_len_p,
        qo_indptr_d,
        kv_indptr_d,
        kv_indices_d,
        last_page_len_d,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        pos_encoding_mode="NONE",
        window_left=-1,
        q_data_type="float16",
        kv_data_type=None,
        data_type=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
    ) -> None:
        """Plans both parts, each as BatchPrefillWithPagedKVCacheWrapper.plan; the decode part is not causal."""
        q_data_type = q_data_type if q_data_type is not None else data_type
        kv_data_type = kv_data_type if kv_data_type is not None else data_type
        options = {
            "pos_encoding_mode": pos_encoding_mode,
            "window_left": window_left,
            "q_data_type": q_data_type,
            "kv_data_type": kv_data_type,
            "sm_scale": sm_scale,
            "rope_scale": rope_scale,
            "rope_theta": rope_theta,
        }
        heads = (num_qo_heads, num_kv_heads, head_dim, page_size)
        self._prefill.plan(qo_indptr_p, kv_indptr_p, kv_indices_p, last_page_len_p, *heads, **options)
        self._decode.plan(qo_indptr_d, kv_indptr_d, kv_indices_d, last_page_len_d, *heads, **options)

    begin_forward = plan

    def run(
        self,
        q_p,
        paged_kv_cache_p,
        q_d,
        paged_kv_cache_d,
        custom_mask_p=None,
        packed_custom_mask_p=None,
        causal_p=False,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        return_lse=False,
        use_fp16_qk_reduction=False,
        enable_pdl=None,
    ):
        """Returns (out_p, out_d), or ((out_p, lse_p), (out_d, lse_d)). custom_mask_p: of the prefill part's requests one after the other.
        Scales are of the decode part, as in FlashInfer."""
        prefill = self._prefill
        prefill._causal = bool(causal_p)
        prefill._mask = prefill._mask_begins = None
        if custom_mask_p is not None or packed_custom_mask_p is not None:
            q_len = prefill._q_lens
            prefill._mask, prefill._mask_begins = packed_mask(custom_mask_p, packed_custom_mask_p, q_len, prefill._kv_lens, q_p)
        scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale, "return_lse": return_lse}
        return prefill.run(q_p, paged_kv_cache_p, return_lse=return_lse), self._decode.run(q_d, paged_kv_cache_d, **scales)

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer."""


for _cls in (PODWithPagedKVCacheWrapper, BatchPODWithPagedKVCacheWrapper):
    name_errors_of(_cls, ("begin_forward", "plan", "run", "forward"))

__all__ = ["BatchPODWithPagedKVCacheWrapper", "PODWithPagedKVCacheWrapper"]
