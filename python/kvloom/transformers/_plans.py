"""Plans that all layers of a step share, and what is remembered with a tensor."""

from __future__ import annotations

import collections
import functools
import threading

import torch
from torch.utils.weak import WeakTensorKeyDictionary

import kvloom
from kvloom._engines import engine_for

_MOST = 16  # plans a thread keeps, the last used ones


class Kept:
    """An engine's plan, planned anew for step after step: its memory stays."""

    __slots__ = ("engine", "plan", "step", "way")

    def __init__(self, engine, plan, step, way):
        self.engine, self.plan, self.step, self.way = engine, plan, step, way


class _Kept(threading.local):
    def __init__(self):
        self.plans: collections.OrderedDict[tuple, Kept] = collections.OrderedDict()


_kept = _Kept()  # a plan that another thread plans anew is none to run


@functools.lru_cache(maxsize=256)
def spec_of(
    heads: int,
    kv_heads: int,
    dim: int,
    dim_vo: int,
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    page_size: int | None,
    sm_scale: float,
    causal: bool,
    window_left: int,
    window_right: int,
    soft_cap: float,
    custom_mask: bool,
    sink: bool,
) -> kvloom.Spec:
    return kvloom.Spec(
        num_qo_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=dim,
        head_dim_vo=dim_vo,
        dtype=dtype,
        kv_dtype=kv_dtype,
        page_size=page_size,
        sm_scale=sm_scale,
        causal=causal,
        window_left=window_left,
        window_right=window_right,
        soft_cap=soft_cap,
        custom_mask=custom_mask,
        sink=sink,
    )


def planned(spec: kvloom.Spec, device: torch.device, place, step, way, tokens: int, lengths) -> Kept:
    """The plan of `step` (any object, one a step) for this spec. `place`: what has a plan of its own beside others of the spec; `way`: what
    else a step's lengths depend on. `lengths()` makes the arguments of Engine.plan."""
    if device.type not in ("cpu", "cuda"):
        raise kvloom.UnsupportedError(f"`query`: expected a tensor on cpu or cuda, got one on {device}")
    gpu = device.index if device.type == "cuda" else None
    key = (spec, gpu, place)
    kept = _kept.plans.get(key)
    if kept is not None and kept.step is step and kept.way == way:
        return kept
    arguments = lengths()
    # Page ids of a GPU stay there, unread.
    engine = engine_for(spec, gpu, max(len(arguments["kv_len"]), 1), max(tokens, 1), check_pages=gpu is None)
    if kept is None or kept.engine is not engine:
        kept = _kept.plans[key] = Kept(engine, engine.plan(**arguments), step, way)
        while len(_kept.plans) > _MOST:
            _kept.plans.popitem(last=False)
    else:
        kept.step = None  # should planning fail, the plan is no step's
        engine.replan(kept.plan, **arguments)
        kept.step, kept.way = step, way
    _kept.plans.move_to_end(key)
    return kept


_remembered = WeakTensorKeyDictionary()


def remembered(tensor: torch.Tensor, make):
    """make(), kept with the tensor until somebody writes it."""
    if tensor.is_inference():  # such tensors don't count who wrote them
        return make()
    version, value = _remembered.get(tensor, (None, None))
    if version != tensor._version:
        value = make()
        _remembered[tensor] = (tensor._version, value)
    return value


def as_sink(s_aux: torch.Tensor | None) -> torch.Tensor | None:
    """A model's sinks as fp32."""
    return None if s_aux is None else remembered(s_aux, lambda: s_aux.detach().reshape(-1).float().contiguous())


def refuse(query, key, value, dropout) -> None:
    """What a forward pass for serving does not have."""
    if dropout:
        raise kvloom.UnsupportedError(f"`dropout`: kvloom is for serving, got {dropout}; call model.eval()")
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or value.requires_grad):
        raise kvloom.UnsupportedError("kvloom computes no gradients, got tensors that want them; run the model under torch.no_grad()")
