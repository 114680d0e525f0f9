"""Names of flashinfer.utils that engines import."""

from __future__ import annotations

import enum

from ._arrays import alibi_slopes


class PosEncodingMode(enum.Enum):
    NONE = 0
    ROPE_LLAMA = 1
    ALIBI = 2


class MaskMode(enum.Enum):
    NON_CAUSAL = 0
    CAUSAL = 1
    CUSTOM = 2
    MULTIITEMSCORING = 3


class TensorLayout(enum.Enum):
    NHD = 0
    HND = 1


class FP4Tensor:
    """Values of 4 bits and their scales, as engines hand them around. No kernel of kvloom reads or writes it: functions refuse it by name."""

    def __init__(self, data, scale, scale_start_index=0, original_shape=None):
        self.data, self.scale, self.scale_start_index, self.original_shape = data, scale, scale_start_index, original_shape
        self.dtype = "nvfp4"


def get_alibi_slopes(n_heads: int, device=None):
    """float32 [n_heads] of torch: the slopes of pos_encoding_mode "ALIBI"."""
    import torch

    return alibi_slopes(n_heads, torch.empty(0, device=device))


def get_compute_capability(device) -> tuple[int, int]:
    """(major, minor) of a GPU."""
    import torch

    if torch.device(device).type != "cuda":
        raise ValueError(f"`device`: expected a GPU, got {device}")
    return torch.cuda.get_device_capability(device)


def is_sm90a_supported(device) -> bool:
    """Whether `device` is a Hopper GPU."""
    import torch

    return torch.device(device).type == "cuda" and torch.cuda.is_available() and torch.cuda.get_device_capability(device)[0] == 9


def next_positive_power_of_2(x: int) -> int:
    return 1 << max(x - 1, 0).bit_length()


def has_flashinfer_jit_cache() -> bool:
    """True: there are no FlashInfer kernels to compile ahead."""
    return True


__all__ = [
    "FP4Tensor",
    "MaskMode",
    "PosEncodingMode",
    "TensorLayout",
    "get_alibi_slopes",
    "get_compute_capability",
    "is_sm90a_supported",
    "next_positive_power_of_2",
]
