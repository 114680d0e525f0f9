"""The object that engines reach behind a wrapper for: `wrapper._cached_module.plan(...)`, a plan from the host's own arrays that copies nothing.
vLLM's and SGLang's fast plans call it by position; FlashInfer's releases differ in what follows the window."""

from __future__ import annotations

import typing
import weakref

from ._arrays import host


class HostPlan(typing.NamedTuple):
    """What of such a call counts: arrays on the host."""

    qo_indptr: typing.Any
    kv_indptr: typing.Any
    kv_len: typing.Any  # None: the wrapper's last_page_len buffer says it
    requests: int
    causal: bool
    window_left: int | None  # None: the wrapper's
    logits_soft_cap: float | None
    fixed_split_size: int
    disable_split_kv: bool


class CachedModule:
    def __init__(self, wrapper, read):
        self._wrapper, self._read = weakref.ref(wrapper), read

    def plan(self, *args):
        """Plans the wrapper's step; page ids are those in its buffers. Returns what the wrapper keeps as _plan_info."""
        wrapper = self._wrapper()
        if wrapper is None:
            raise ReferenceError("plan: the wrapper of this module is gone")
        wrapper._plan_on_host(self._read(args))
        return wrapper._plan_info


def prefill_arguments(args) -> HostPlan:
    """float, int and pinned workspace, qo_indptr, kv_indptr, kv_len, total rows, batch, heads, KV heads, page_size, graph, dims (2), causal
    [, window_left [, fixed_split_size, disable_split_kv [, num_colocated_ctas [, uniform_q_len]]]]."""
    if not 15 <= len(args) <= 20:
        raise TypeError(f"plan: expected 15 to 20 arguments, as FlashInfer's prefill modules have, got {len(args)}")
    window_left = args[15] if len(args) > 15 else None
    fixed, disable = (args[16], args[17]) if len(args) >= 18 else (-1, False)
    arrays = (host(args[3]), host(args[4]), host(args[5]))
    return HostPlan(*arrays, args[7], bool(args[14]), window_left, None, -1 if fixed is None else fixed, bool(disable))


def decode_arguments(args) -> HostPlan:
    """prefill_arguments, or what the modules without tensor cores have: workspaces (3), kv_indptr, batch, heads, KV heads, page_size, graph,
    window_left, soft cap, dims (2), empty q, empty kv."""
    if len(args) == 15 and not hasattr(args[4], "__len__"):
        return HostPlan(None, host(args[3]), None, args[4], False, args[9], args[10], -1, False)
    return prefill_arguments(args)
