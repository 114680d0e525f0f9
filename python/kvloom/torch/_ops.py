"""The operators torch.ops.kvloom.*: schemas, what they do, and fakes.

An operator writes into tensors that its caller gives, and returns nothing: its schema says all that it changes, torch's functionalisation makes
of that what a graph needs, and a fake has nothing to do. Keywords travel as names beside values, a list for each type. What a graph can't hold
(a plan, an engine) goes by a name (_step.py).
"""

from __future__ import annotations

import torch

import kvloom

from ._keywords import SCHEMA as _KEYWORDS
from ._keywords import unpacked
from ._step import step_of

# Strides as they were traced: bringing a cache into another layout would be a copy of the cache.
_LAYOUT = getattr(torch.Tag, "needs_exact_strides", torch.Tag.needs_fixed_stride_order)
# What a plan launches differs from step to step (Plan.graph_key), and attention() plans: which captured graph serves a step is known to a caller
# who captures one. torch.compile(mode="reduce-overhead") leaves such operators between the graphs that it makes by itself.
_PLANNED = [_LAYOUT, *(getattr(torch.Tag, name) for name in ("cudagraph_unsafe",) if hasattr(torch.Tag, name))]

_library = torch.library.Library("kvloom", "FRAGMENT")


def _operator(schema: str, tags=(_LAYOUT,)):
    def register(function):
        name = schema.partition("(")[0]
        _library.define(schema, tags=tags)
        _library.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"kvloom::{name}", lambda *args: None, lib=_library)
        return function

    return register


@_operator(f"attention(Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, {_KEYWORDS}) -> ()", _PLANNED)
def _attention(q, k, v, out, lse, *keywords):
    kvloom.attention(q, k, v, out=out, lse=lse, **unpacked(*keywords))


@_operator(f"run(str step, Tensor q, Tensor k, Tensor v, Tensor(a!) out, Tensor(b!)? lse, {_KEYWORDS}) -> ()", _PLANNED)
def _run(step, q, k, v, out, lse, *keywords):
    of = step_of(step)
    of.engine.run(of.planned, q, k, v, out=out, lse=lse, **unpacked(*keywords))


@_operator(f"append_kv(Tensor k_new, Tensor? v_new, Tensor(a!) k, Tensor(b!)? v, {_KEYWORDS}) -> ()")
def _append_kv(k_new, v_new, k, v, *keywords):
    kvloom.append_kv(k_new, v_new, k, v, **unpacked(*keywords))


@_operator("merge_states(Tensor o_a, Tensor lse_a, Tensor o_b, Tensor lse_b, Tensor(a!) out, Tensor(b!) lse) -> ()")
def _merge_states(o_a, lse_a, o_b, lse_b, out, lse):
    kvloom.merge_states(o_a, lse_a, o_b, lse_b, out=out, lse=lse)


@_operator("merge_states_n(Tensor o, Tensor lse, Tensor? indptr, Tensor(a!) out, Tensor(b!) lse_out) -> ()")
def _merge_states_n(o, lse, indptr, out, lse_out):
    if indptr is None:
        kvloom.merge_states_n(o, lse, out=out, lse_out=lse_out)
    else:
        kvloom.merge_states_ragged(o, lse, indptr, out=out, lse_out=lse_out)


@_operator(f"apply_rope(Tensor(a!) x, Tensor pos, {_KEYWORDS}) -> ()")
def _apply_rope(x, pos, *keywords):
    kvloom.apply_rope(x, pos, **unpacked(*keywords))
