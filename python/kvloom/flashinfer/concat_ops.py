"""Joining the parts of MLA's keys."""

from __future__ import annotations


def concat_mla_k(k, k_nope, k_rope) -> None:
    """Writes k [tokens, heads, nope + rope]: k_nope [tokens, heads, nope], then k_rope [tokens, 1, rope] for every head."""
    nope, rope = k_nope.shape[-1], k_rope.shape[-1]
    if k.ndim != 3 or k.shape[-1] != nope + rope or tuple(k.shape[:2]) != tuple(k_nope.shape[:2]) or k_rope.shape[0] != k.shape[0]:
        raise ValueError(
            f"`k`: expected [{k_nope.shape[0]}, {k_nope.shape[1]}, {nope + rope}], as k_nope {list(k_nope.shape)} and k_rope {list(k_rope.shape)} say, got "
            f"{list(k.shape)}"
        )
    for name, x in (("k_nope", k_nope), ("k_rope", k_rope)):
        if x.dtype != k.dtype:
            raise RuntimeError(f"`{name}.dtype`: expected {k.dtype}, that of k, got {x.dtype}; convert it")
    k[..., :nope] = k_nope
    k[..., nope:] = k_rope


__all__ = ["concat_mla_k"]
