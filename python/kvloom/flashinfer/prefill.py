"""Prefill: one request, and batches of paged or ragged keys and values."""

from ._block_tables import trtllm_batch_context_with_kv_cache
from ._prefill_paged import BatchPrefillWithPagedKVCacheWrapper
from ._prefill_ragged import BatchPrefillWithRaggedKVCacheWrapper
from ._single import (
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
    single_prefill_with_kv_cache_with_jit_module,
)

__all__ = [
    "BatchPrefillWithPagedKVCacheWrapper",
    "BatchPrefillWithRaggedKVCacheWrapper",
    "single_prefill_with_kv_cache",
    "single_prefill_with_kv_cache_return_lse",
    "single_prefill_with_kv_cache_with_jit_module",
    "trtllm_batch_context_with_kv_cache",
]
