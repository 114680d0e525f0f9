"""Lengths and lists of a step, on the host."""

from __future__ import annotations

import operator

from ._arrays import host, indices, placed
from ._plans import Schedule

_TILE = 256  # tokens; chunks are multiples of a kernel's tile of keys, which divides this


def query_lengths(indptr, name: str):
    """indptr on the host, and the lengths of what it delimits."""
    begins = host(indices(indptr, name))
    if len(begins) < 1:
        raise ValueError(f"`{name}`: expected requests + 1 entries, got none")
    lengths = begins[1:] - begins[:-1]
    if bool((lengths < 0).any()) or int(begins[0]) < 0:
        raise ValueError(
            f"`{name}`: expected entries from 0 on that do not decrease, got {[int(i) for i in begins[:8]]}{' ...' if len(begins) > 8 else ''}"
        )
    return begins, lengths


def check_ids(ids, begins, ids_name: str, indptr_name: str):
    if int(begins[-1]) > len(ids):
        raise ValueError(f"`{ids_name}`: expected at least {int(begins[-1])} page ids, as `{indptr_name}` says, got {len(ids)}")


def kv_lengths(indptr, last_page_len, page_size: int, indptr_name: str, last_name: str):
    """indptr on the host, and the tokens of each request: none without pages."""
    begins, pages = query_lengths(indptr, indptr_name)
    last = placed(host(indices(last_page_len, last_name)), begins)
    if len(last) != len(pages):
        raise ValueError(f"`{last_name}`: expected {len(pages)} entries, one a request of `{indptr_name}`, got {len(last)}")
    if operator.index(page_size) <= 0:
        raise ValueError(f"`page_size`: expected a number of tokens above 0, got {page_size!r}")
    if bool(((last < 0) | (last > page_size)).any()):
        r = int(((last < 0) | (last > page_size)).nonzero()[0][0])
        raise ValueError(f"`{last_name}`: request {r}: expected 1 .. {page_size} (page_size), got {int(last[r])}")
    return begins, ((pages - 1) * page_size + last) * (pages > 0)


def schedule_of(fixed_split_size, disable_split_kv: bool, page_size: int) -> Schedule:
    """FlashInfer's two ways to make bits independent of the batch."""
    if fixed_split_size is not None and fixed_split_size > 0:
        return Schedule(split_tokens=-(-fixed_split_size * page_size // _TILE) * _TILE)
    return Schedule(split=not disable_split_kv)
