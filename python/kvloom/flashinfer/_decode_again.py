"""Decode steps one after the other: a plan that differs from the one before by lengths and page ids alone. What costs time on a processor that has just slept
is how much code runs, not how long: here is little of it."""

from __future__ import annotations

import typing

from .. import _core
from ._arrays import framework_of, numpy_or_none
from ._plans import Planned, Step
from ._step_arrays import OnHost

_HOSTS = ("numpy", "torch")


class Before(typing.NamedTuple):
    """The plan before."""

    said: tuple  # heads, further arguments by position, and by name
    settings: tuple  # what that came to: Wrapper._settings
    kind: tuple  # types of indptr, last_page_len and indices, dtype and device of the ids
    rows: tuple  # requests, rows of each, and where they begin
    entry: Planned
    spec: typing.Any


def _kind(indptr, indices, last_page_len) -> tuple:
    return type(indptr), type(last_page_len), type(indices), getattr(indices, "dtype", None), getattr(indices, "device", None)


def remember(wrapper, said, indptr, indices, last_page_len):
    """Behind a plan: for the next one, where that may be as short."""
    wrapper._before = None
    plans, settings = wrapper._plans, wrapper._settings
    ids_stay = wrapper._paged_kv_indices_buf is indices and hasattr(indices, "device")
    arrays = framework_of(indptr) in _HOSTS and framework_of(last_page_len) in _HOSTS
    if wrapper._use_cuda_graph or settings is None or wrapper._schedule.split_tokens or plans.instead or not ids_stay or not arrays or numpy_or_none() is None:
        return
    wrapper._before = Before(said, settings, _kind(indptr, indices, last_page_len), wrapper._rows, plans.latest[2], plans.latest[0])


def plan_again(wrapper, said, indptr, indices, last_page_len) -> bool:
    """Plans the step if it is as the one before but for lengths and ids; else, or if something is wrong with them, does nothing and returns False. What raises
    leaves the step before."""
    before, plans = wrapper._before, wrapper._plans
    try:
        if before.said != said:
            return False
    except (RuntimeError, TypeError, ValueError):  # arrays: what is wrong with them says a plan anew
        return False
    if (
        before.settings is not wrapper._settings
        or before.rows is not wrapper._rows
        or plans.latest[2] is not before.entry
        or plans.instead
        or before.kind != _kind(indptr, indices, last_page_len)
        or indices.ndim != 1
        or last_page_len.ndim != 1
        or last_page_len.shape[0] != before.rows[0]
    ):
        return False
    np, n, entry = numpy_or_none(), before.rows[0], before.entry
    begins, last, kv_len = np.empty(n + 1, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    count = _core.take_page_lists(indptr, last_page_len, before.settings[1]["_page_size"], begins, last, kv_len)
    if not 0 <= count <= indices.shape[0]:
        return False
    lengths = {"kv_len": kv_len, "qo_indptr": before.rows[2], "list_indptr": begins, "pages": indices}
    entry.engine.replan(entry.plan, **lengths)
    plans.number += 1
    plans.step = Step(lengths, n, n * before.rows[1], 0, 0, 0, None, True)
    entry.number, plans.asked = plans.number, before.spec
    attributes = vars(wrapper)
    attributes.update(before.settings[1])
    attributes["_kv_lens"], attributes["_paged_kv_indices_buf"], attributes["_plan_info"] = kv_len, indices, entry
    attributes["_paged_kv_indptr_buf"], attributes["_paged_kv_last_page_len_buf"] = OnHost(begins), OnHost(last)
    return True
