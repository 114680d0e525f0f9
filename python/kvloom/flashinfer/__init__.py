"""FlashInfer's attention functions, on kvloom: the same names, arguments, layouts and conventions, on CPUs and GPUs.

    import kvloom.flashinfer as flashinfer

An LSE is the base-2 logarithm (kvloom's own is natural); causal is bottom-right aligned; a row that keeps no key gives 0 and -inf. Where FlashInfer
differs from its documentation, the documentation is followed: docs/FLASHINFER.md has the list, and what is not covered.
"""

import sys

from . import _names_for_engines as utils
from . import attention, cascade, concat_ops, decode, jit, mla, page, pod, prefill, quantization, rope, sparse, triton
from .attention import BatchAttention, BatchAttentionWithAttentionSinkWrapper
from .cascade import (
    BatchDecodeWithSharedPrefixPagedKVCacheWrapper,
    BatchPrefillWithSharedPrefixPagedKVCacheWrapper,
    MultiLevelCascadeAttentionWrapper,
    merge_state,
    merge_state_in_place,
    merge_states,
)
from .decode import (
    BatchDecodeMlaWithPagedKVCacheWrapper,
    BatchDecodeWithPagedKVCacheWrapper,
    CUDAGraphBatchDecodeWithPagedKVCacheWrapper,
    fast_decode_plan,
    single_decode_with_kv_cache,
    trtllm_batch_decode_with_kv_cache,
    xqa_batch_decode_with_kv_cache,
)
from .mla import BatchMLAPagedAttentionWrapper
from .page import append_paged_kv_cache, append_paged_mla_kv_cache, get_batch_indices_positions, get_seq_lens
from .pod import BatchPODWithPagedKVCacheWrapper, PODWithPagedKVCacheWrapper
from .prefill import (
    BatchPrefillWithPagedKVCacheWrapper,
    BatchPrefillWithRaggedKVCacheWrapper,
    single_prefill_with_kv_cache,
    single_prefill_with_kv_cache_return_lse,
    trtllm_batch_context_with_kv_cache,
)
from .quantization import packbits, segment_packbits
from .rope import (
    apply_llama31_rope,
    apply_llama31_rope_inplace,
    apply_llama31_rope_pos_ids,
    apply_llama31_rope_pos_ids_inplace,
    apply_rope,
    apply_rope_inplace,
    apply_rope_pos_ids,
    apply_rope_pos_ids_inplace,
    apply_rope_with_cos_sin_cache,
    apply_rope_with_cos_sin_cache_inplace,
    mla_rope_quantize_fp8,
    rope_quantize_fp8,
    rope_quantize_fp8_append_paged_kv_cache,
)
from .sparse import BlockSparseAttentionWrapper, VariableBlockSparseAttentionWrapper, convert_bsr_mask_layout

__version__ = "0.6.18"  # of FlashInfer, whose API this is: engines look at it

# FlashInfer calls it so: `from kvloom.flashinfer.utils import FP4Tensor` finds it.
sys.modules[__name__ + ".utils"] = utils

_ELSEWHERE = (
    "activation", "autotune", "comm", "fused_moe", "gelu_and_mul", "gemm", "grouped_mm", "logits_processor", "mamba", "norm", "sampling",
    "silu_and_mul", "softmax", "topk",
)  # fmt: skip
_ELSEWHERE_ENDS = ("rmsnorm", "layernorm", "_from_probs", "_from_logits", "_renorm_probs", "_renorm_prob", "_mask_logits", "_quantize", "_and_mul")


def __getattr__(name):
    if name in _ELSEWHERE or name.endswith(_ELSEWHERE_ENDS) or name.startswith(("bmm_", "mm_", "trtllm_", "cudnn_", "cutlass_", "xqa", "chain_")):
        raise AttributeError(f"kvloom.flashinfer has no {name!r}: it covers attention alone; take this from flashinfer itself (docs/FLASHINFER.md)")
    raise AttributeError(f"module 'kvloom.flashinfer' has no attribute {name!r} (docs/FLASHINFER.md says what is covered)")
