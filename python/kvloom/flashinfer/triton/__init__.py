"""Where FlashInfer has merges written in Triton."""

from . import cascade

__all__ = ["cascade"]
