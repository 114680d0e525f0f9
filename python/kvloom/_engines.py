"""Engines kept for calls that bring a spec of their own each time (kvloom.flash_attn, attention() on a GPU)."""

from __future__ import annotations

import collections
import threading

from ._engine import Engine
from ._spec import Capacity, Spec

_MOST = 16  # engines, the last used ones

_engines: collections.OrderedDict[tuple, Engine] = collections.OrderedDict()
_lock = threading.Lock()


def _at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def engine_for(spec: Spec, device: int | None, requests: int, tokens: int, check_pages: bool = True) -> Engine:
    """An engine of this spec, on GPU `device` (None: the CPU), whose capacity covers the step; capacities grow by doubling."""
    key = (spec, device, check_pages)
    with _lock:
        engine = _engines.pop(key, None)
        before = engine.capacity if engine is not None else Capacity(max_requests=1, max_query_tokens=1)
        if engine is None or before.max_requests < requests or before.max_query_tokens < tokens:
            engine = Engine(
                spec,
                max_requests=max(_at_least(requests), before.max_requests),
                max_query_tokens=max(_at_least(tokens), before.max_query_tokens),
                backend="cpu" if device is None else "cuda",
                device=-1 if device is None else device,
                levels="off",
                check_pages=check_pages,
            )
        _engines[key] = engine
        while len(_engines) > _MOST:
            _engines.popitem(last=False)
        return engine


def clear_engines() -> None:
    """Lets go of the kept engines and their memory."""
    with _lock:
        _engines.clear()
