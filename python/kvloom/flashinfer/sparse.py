"""Block-sparse attention: blocks of one size, and blocks of any."""

from ._block_sparse import BlockSparseAttentionWrapper, convert_bsr_mask_layout
from ._variable_block_sparse import VariableBlockSparseAttentionWrapper

__all__ = ["BlockSparseAttentionWrapper", "VariableBlockSparseAttentionWrapper", "convert_bsr_mask_layout"]
