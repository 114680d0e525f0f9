"""FlashInfer's attention functions, on kvloom: the same names, arguments, layouts and conventions, on CPUs and GPUs.

    import kvloom.flashinfer as flashinfer

An LSE is the base-2 logarithm (kvloom's own is natural); causal is bottom-right aligned; a row that keeps no key gives 0 and -inf. Where FlashInfer
differs from its documentation, the documentation is followed: docs/FLASHINFER.md has the list, and what is not covered.
"""

from . import cascade, decode, page, prefill, quantization
from .cascade import merge_state, merge_state_in_place, merge_states
from .decode import (
    BatchDecodeWithPagedKVCacheWrapper,
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    fast_decode_plan,
    single_decode_with_kv_cache,
)
from .page import append_paged_kv_cache, append_paged_mla_kv_cache, get_batch_indices_positions, get_seq_lens
from .prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
)
from .quantization import packbits, segment_packbits

_ELSEWHERE = (
    "activation", "autotune", "comm", "fused_moe", "gelu_and_mul", "gemm", "grouped_mm", "jit", "logits_processor", "mamba", "norm", "sampling",
    "silu_and_mul", "softmax", "topk",
)  # fmt: skip
_ELSEWHERE_ENDS = ("rmsnorm", "layernorm", "_from_probs", "_from_logits", "_renorm_probs", "_renorm_prob", "_mask_logits", "_quantize", "_and_mul")


def __getattr__(name):
    if name in _ELSEWHERE or name.endswith(_ELSEWHERE_ENDS) or name.startswith(("bmm_", "mm_", "trtllm_", "cudnn_", "cutlass_", "xqa", "chain_")):
        raise AttributeError(f"kvloom.flashinfer has no {name!r}: it covers attention alone; take this from flashinfer itself (docs/FLASHINFER.md)")
    raise AttributeError(f"module 'kvloom.flashinfer' has no attribute {name!r} (docs/FLASHINFER.md says what is covered)")
