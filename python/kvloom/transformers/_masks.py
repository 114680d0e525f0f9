"""What a model's mask says, without a matrix where lengths, causality and a window say it."""

from __future__ import annotations

import dataclasses
import inspect

import torch
from transformers import masking_utils
from transformers.utils import is_tracing

import kvloom


@dataclasses.dataclass(eq=False)
class StepMask:
    """The mask of one step, for all layers of a kind: made by the mask function, handed through the model as it is.

    Request r has keys begin[r] .. end[r] of its row of K and V; the first query stands at q_pos, counted in rows of K and V. Or `bits`: packed
    masks [requests, bytes], a row of K and V long.
    """

    batch: int
    q_length: int
    kv_length: int
    q_pos: int
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    begin: list[int] | None = None  # None: 0
    end: list[int] | None = None  # None: kv_length
    bits: torch.Tensor | None = None
    indptr: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """That of the mask that it stands for."""
        return (self.batch, 1, self.q_length, self.kv_length)

    @property
    def ndim(self) -> int:
        return 4

    def contiguous(self) -> StepMask:
        """Itself: generate asks masks for this before it compiles a model (5.18 to 5.23, whatever the mask is)."""
        return self

    def lengths(self, row: int) -> dict:
        """Arguments of Engine.plan, where row r of K and V begins at token r * row."""
        begin = self.begin or [0] * self.batch
        end = self.end or [self.kv_length] * self.batch
        seen = self.kv_length
        if self.causal:  # keys behind the last query: places of a cache that are not written yet
            seen = max(min(seen, self.q_pos + self.q_length), 0)
        kv_len = [max(min(e, seen) - b, 0) for b, e in zip(begin, end)]
        return {
            "kv_len": kv_len,
            "qo_indptr": [r * self.q_length for r in range(self.batch + 1)],
            "list_indptr": [r * row + (b if n else 0) for r, (b, n) in enumerate(zip(begin, kv_len))],
            "q_pos0": [self.q_pos - b for b in begin],
        }


def range_of(mask_function) -> tuple[bool, int, int] | None:
    """(causal, window_left, window_right) of transformers' own mask functions; None: another, whose values alone say what it keeps.

    They are closures: which one it is, its name tells, and its numbers are what it closes over.
    """
    if mask_function is masking_utils.causal_mask_function:
        return True, -1, -1
    if mask_function is masking_utils.bidirectional_mask_function:
        return False, -1, -1
    if getattr(mask_function, "__module__", None) != masking_utils.__name__:
        return None
    try:
        values = inspect.getclosurevars(mask_function).nonlocals
    except (TypeError, ValueError):
        return None
    maker = mask_function.__qualname__.partition(".")[0]
    size = values.get("sliding_window")
    if maker == "sliding_window_overlay" and isinstance(size, int) and size > 0:
        return False, size - 1, -1  # kv > q - size
    if maker == "sliding_window_bidirectional_overlay" and isinstance(size, int) and size >= 0:
        return False, size, size  # |q - kv| <= size
    if maker != "and_masks" or not isinstance(values.get("mask_functions"), tuple):
        return None
    causal, left, right = False, -1, -1
    for part in values["mask_functions"]:
        of_part = range_of(part)
        if of_part is None:
            return None
        causal |= of_part[0]
        left, right = (a if b < 0 else b if a < 0 else min(a, b) for a, b in zip((left, right), of_part[1:]))
    return causal, left, -1 if causal else right


def bounds_of(padding: torch.Tensor, kv_length: int, kv_offset: int) -> tuple[list[int], list[int]] | None:
    """Where each request's keys begin and end, of a 2-D mask [batch, tokens]; None: one has holes."""
    kept = padding[:, kv_offset : kv_offset + kv_length].bool()
    if kept.shape[1] == 0:
        return [0] * len(kept), [0] * len(kept)
    columns = torch.arange(1, kept.shape[1] + 1, device=kept.device)
    first = kept.int().argmax(1)
    last = (kept * columns).amax(1)
    begin, end, count = torch.stack([first, last, kept.sum(1)]).tolist()
    return None if any(e - b != n for b, e, n in zip(begin, end, count) if n) else (begin, end)


def pack(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed bits of bool [batch, 1, q_length, kv_length], as kvloom.pack_mask packs, where the mask is; and where each request's begin."""
    if mask.shape[1] != 1 and mask.stride(1) != 0:
        raise kvloom.UnsupportedError(f"`attention_mask`: expected one mask for all heads, [batch, 1, q, kv], got {list(mask.shape)}")
    batch, _, rows, columns = mask.shape
    flat = mask[:, 0].reshape(batch, rows * columns)
    flat = torch.nn.functional.pad(flat, (0, -flat.shape[1] % 8)).view(batch, -1, 8)
    weights = torch.tensor([1, 2, 4, 8, 16, 32, 64, 128], dtype=torch.uint8, device=mask.device)
    bits = (flat * weights).sum(-1, dtype=torch.uint8)
    return bits.flatten(), torch.arange(batch + 1, device=mask.device) * bits.shape[1]


def as_bool(mask: torch.Tensor) -> torch.Tensor:
    """A 4-D mask as True = keep: bool, or added to logits, 0 and what hides a key."""
    if mask.dtype == torch.bool:
        return mask
    if not mask.is_floating_point():
        raise TypeError(f"`attention_mask`: expected bool or floating point, got {mask.dtype}")
    keep = mask == 0
    if not torch.compiler.is_compiling() and not bool((keep | (mask <= -1e4)).all()):
        raise kvloom.UnsupportedError(
            "`attention_mask`: expected 0 and what hides a key (-1e4 or less), got other numbers, a bias; use eager or sdpa"
        )
    return keep


def of_tensor(mask: torch.Tensor, batch: int, q_length: int, kv_length: int) -> StepMask:
    """A 4-D mask that somebody made."""
    if mask.dim() != 4 or mask.shape[-2] != q_length or mask.shape[-1] < kv_length:
        raise ValueError(f"`attention_mask`: expected [{batch}, 1, {q_length}, {kv_length}], got {list(mask.shape)}")
    keep = as_bool(mask)[..., :kv_length]
    bits, indptr = pack(keep.expand(batch, -1, -1, -1))
    return StepMask(batch, q_length, kv_length, kv_length - q_length, bits=bits, indptr=indptr)


def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function=masking_utils.causal_mask_function,
    attention_mask: torch.Tensor | None = None,
    device="cpu",
    **options,
):
    """The mask function of attn_implementation "kvloom" (transformers' AttentionMaskInterface): a StepMask; where a graph is traced, or a static
    cache says that one will be, the bool tensor of "sdpa"."""
    if isinstance(attention_mask, StepMask):  # made before the model was called, as generate does for static caches
        return attention_mask
    arguments = (batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask)
    if torch.compiler.is_compiling() or isinstance(q_offset, torch.Tensor) or is_tracing(attention_mask):
        return masking_utils.sdpa_mask(*arguments, device=device, **options)
    kept, bounds = range_of(mask_function), (None, None)
    if kept is not None and attention_mask is not None:
        bounds = bounds_of(attention_mask, kv_length, kv_offset)
    if kept is None or bounds is None:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        return of_tensor(masking_utils.sdpa_mask(*arguments, device=device, **options), batch_size, q_length, kv_length)
    return StepMask(batch_size, q_length, kv_length, q_offset - kv_offset, *kept, *bounds)
