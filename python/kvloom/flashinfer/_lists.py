"""Lengths and lists of a step, on the host."""

from __future__ import annotations

import functools
import operator

from .. import _core
from ._arrays import cast, copied, framework_of, host, indices, module_of, numpy_or_none
from ._plans import Schedule

_HOSTS = ("numpy", "torch")  # whose arrays are on the host, or may be
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
    check_count(ids, int(begins[-1]), ids_name, indptr_name)


def check_count(ids, count: int, ids_name: str, indptr_name: str):
    if count > ids.shape[0]:
        raise ValueError(f"`{ids_name}`: expected at least {count} page ids, as `{indptr_name}` says, got {ids.shape[0]}")


@functools.cache
def _is_wide(dtype) -> bool:
    return str(dtype).removeprefix("torch.") in ("int32", "int64")


def _wide(x):
    return x if _is_wide(x.dtype) else cast(x, "int64")


def kv_lengths(indptr, last_page_len, page_size: int, indptr_name: str, last_name: str):
    """indptr on the host, and the tokens of each request: none without pages."""
    begins, last = _wide(host(indices(indptr, indptr_name))), _wide(host(indices(last_page_len, last_name)))
    lengths = module_of(begins).empty(max(len(begins) - 1, 0), dtype=begins.dtype)
    _core.page_list_lengths(begins, last, operator.index(page_size), lengths, indptr_name, last_name)
    return begins, lengths


def page_lists(indptr, last_page_len, page_size: int):
    """indptr and the tokens of each request, on the host and nobody else's; last_page_len, so too, or None where it is of another kind than int32 on the
    host; how many page ids indptr speaks of."""
    np = numpy_or_none()
    if np is not None and framework_of(indptr) in _HOSTS and framework_of(last_page_len) in _HOSTS and last_page_len.ndim == 1:
        n, narrow, empty = last_page_len.shape[0], np.int32, np.empty
        begins, last, lengths = empty(n + 1, narrow), empty(n, narrow), empty(n, narrow)
        ids = _core.take_page_lists(indptr, last_page_len, operator.index(page_size), begins, last, lengths)
        if ids >= 0:
            return begins, lengths, last, ids
    begins, lengths = kv_lengths(indptr, last_page_len, page_size, "indptr", "last_page_len")
    return copied(begins), lengths, None, int(begins[-1])


def schedule_of(fixed_split_size, disable_split_kv: bool, page_size: int) -> Schedule:
    """FlashInfer's two ways to make bits independent of the batch."""
    if fixed_split_size is not None and fixed_split_size > 0:
        return Schedule(split_tokens=-(-fixed_split_size * page_size // _TILE) * _TILE)
    return Schedule(split=not disable_split_kv)
