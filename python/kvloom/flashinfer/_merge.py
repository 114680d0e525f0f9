"""Merging of attention states. An LSE is the base-2 logarithm, as everywhere in FlashInfer."""

from __future__ import annotations

import math

from .. import _ops
from ._arrays import cast, contiguous, is_torch, to_base2
from ._named_errors import named_errors

_LN2 = math.log(2.0)


def natural(s, name: str):
    """float32 [.., heads] in natural logarithm; a copy."""
    if not hasattr(s, "dtype"):
        raise TypeError(f"`{name}`: expected a float32 tensor, got {type(s).__name__}")
    return cast(s, "float32") * _LN2


@named_errors
def merge_state(v_a, s_a, v_b, s_b):
    """The attention state of both key sets.

    v_a, v_b  [rows, heads, head_dim]; s_a, s_b float32 [rows, heads], base-2 LSE
    Returns (V, S) of the same shapes. (0, -inf) is the identity; any number of heads and any head_dim.
    """
    v, s = _ops.merge_states(v_a, natural(s_a, "s_a"), v_b, natural(s_b, "s_b"))
    return v, to_base2(s)


@named_errors
def merge_state_in_place(v, s, v_other, s_other, mask=None) -> None:
    """Merges (v_other, s_other) into (v, s), in place. mask [rows], bool or uint8: rows where it is 0 stay as they are."""
    merged_v, merged_s = merge_state(v, s, v_other, s_other)
    if mask is None:
        _assign(v, merged_v)
        _assign(s, merged_s)
        return
    if tuple(mask.shape) != (v.shape[0],):
        raise ValueError(f"`mask`: expected [{v.shape[0]}], one a row, got {list(mask.shape)}")
    rows = mask != 0
    if is_torch(v):
        import torch

        v.copy_(torch.where(rows[:, None, None], merged_v, v))
        s.copy_(torch.where(rows[:, None], merged_s.to(s.dtype), s))
        return
    v[rows] = merged_v[rows]
    s[rows] = merged_s[rows]


def _assign(to, x):
    if is_torch(to):
        to.copy_(x)
    else:
        to[...] = x


@named_errors
def merge_states(v, s):
    """Merges over dimension 1.

    v [rows, states, heads, head_dim], s float32 [rows, states, heads], base-2 LSE. Returns (V [rows, heads, head_dim], S [rows, heads]); no states
    give (0, -inf).
    """
    merged, lse = _ops.merge_states_n(v, contiguous(natural(s, "s")))
    return merged, to_base2(lse)
