"""Merges of attention states, by the names of flashinfer.triton.cascade. An LSE is the base-2 logarithm."""

from ... import _ops
from .._arrays import contiguous, to_base2
from .._merge import merge_state, merge_state_in_place, merge_states, natural


def variable_length_merge_states(v, s, indptr):
    """Row r merges the states indptr[r] .. indptr[r + 1] of v [states, heads, head_dim], s float32 [states, heads]; indptr [rows + 1], where v is.
    Returns (V [rows, heads, head_dim], S [rows, heads]); no states give (0, -inf)."""
    merged, lse = _ops.merge_states_ragged(v, contiguous(natural(s, "s")), indptr)
    return merged, to_base2(lse)


__all__ = ["merge_state", "merge_state_in_place", "merge_states", "variable_length_merge_states"]
