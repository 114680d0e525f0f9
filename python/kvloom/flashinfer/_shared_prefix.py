"""One prefix of all requests beside keys of their own: FlashInfer's older, two-level form."""

from __future__ import annotations

from ._merge import merge_state
from ._named_errors import name_errors_of
from ._single import single_prefill_with_kv_cache
from .decode import BatchDecodeWithPagedKVCacheWrapper
from .prefill import BatchPrefillWithPagedKVCacheWrapper


def _merged(wrapper, q, k_shared, v_shared, own, **features):
    shared = single_prefill_with_kv_cache(q, k_shared, v_shared, causal=False, kv_layout=wrapper._kv_layout, return_lse=True, **features)
    return merge_state(*shared, *own)[0]


class BatchDecodeWithSharedPrefixPagedKVCacheWrapper:
    """Decode of requests with a prefix in common. MultiLevelCascadeAttentionWrapper does it in one launch."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self._wrapper = BatchDecodeWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._kv_layout = kv_layout

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer=None) -> None:
        self._wrapper.reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)

    def begin_forward(
        self,
        unique_kv_indptr,
        unique_kv_indices,
        unique_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        data_type="float16",
    ) -> None:
        """As BatchDecodeWithPagedKVCacheWrapper.plan, of the requests' own keys."""
        self._wrapper.plan(
            unique_kv_indptr,
            unique_kv_indices,
            unique_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            q_data_type=data_type,
            kv_data_type=data_type,
        )

    def forward(self, q, k_shared, v_shared, unique_kv_cache):
        """q [requests, num_qo_heads, head_dim]; k_shared, v_shared [tokens, num_kv_heads, head_dim] (HND: heads first). Returns out as q."""
        return _merged(self, q, k_shared, v_shared, self._wrapper.run(q, unique_kv_cache, return_lse=True))

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer."""


class BatchPrefillWithSharedPrefixPagedKVCacheWrapper:
    """Prefill of requests with a prefix in common. MultiLevelCascadeAttentionWrapper does it in one launch."""

    def __init__(self, float_workspace_buffer, kv_layout="NHD"):
        self._wrapper = BatchPrefillWithPagedKVCacheWrapper(float_workspace_buffer, kv_layout)
        self._kv_layout = kv_layout

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer=None) -> None:
        self._wrapper.reset_workspace_buffer(float_workspace_buffer, int_workspace_buffer)

    def begin_forward(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        q_data_type="float16",
        kv_data_type=None,
    ) -> None:
        """As BatchPrefillWithPagedKVCacheWrapper.plan, of the requests' own keys."""
        self._wrapper.plan(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            num_qo_heads,
            num_kv_heads,
            head_dim,
            page_size,
            q_data_type=q_data_type,
            kv_data_type=kv_data_type,
        )

    def forward(
        self,
        q,
        k_shared,
        v_shared,
        unique_kv_cache,
        causal=False,
        use_fp16_qk_reduction=False,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
    ):
        """q [queries, num_qo_heads, head_dim]; k_shared, v_shared [tokens, num_kv_heads, head_dim] (HND: heads first). causal is of the requests' own
        keys. Returns out as q."""
        own = self._wrapper.forward_return_lse(q, unique_kv_cache, causal=causal, sm_scale=sm_scale, rope_scale=rope_scale, rope_theta=rope_theta)
        return _merged(self, q, k_shared, v_shared, own, sm_scale=sm_scale, rope_scale=rope_scale, rope_theta=rope_theta)

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer."""


for _cls in (BatchDecodeWithSharedPrefixPagedKVCacheWrapper, BatchPrefillWithSharedPrefixPagedKVCacheWrapper):
    name_errors_of(_cls, ("begin_forward", "plan", "run", "forward"))
