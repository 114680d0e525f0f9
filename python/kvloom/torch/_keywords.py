"""Keywords of a call as an operator's arguments, and back; outputs that were not given."""

from __future__ import annotations

import dataclasses

import torch

import kvloom
from kvloom._frameworks import torch_dtype

SCHEMA = (
    "str[] tensor_names, Tensor[] tensors, str[] flag_names, bool[] flags, str[] int_names, int[] ints, str[] float_names, float[] floats, "
    "str[] text_names, str[] texts"
)

_ROPE = tuple(field.name for field in dataclasses.fields(kvloom.Rope))


def packed(values: dict) -> tuple:
    """Keywords as the operators' last arguments. None is not given. Traced by torch.compile."""
    flat = {}
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, kvloom.Rope):
            for field in _ROPE:
                flat["rope." + field] = getattr(value, field)
        elif isinstance(value, kvloom.Variant):
            flat["variant.text"], flat["variant.name"] = value.text, value.name
            for param, number_or_array in value.params.items():
                flat.setdefault("params." + param, number_or_array)
        elif isinstance(value, dict):
            for key, number_or_array in value.items():
                flat[name + "." + key] = number_or_array
        else:
            flat[name] = value
    kinds = torch.Tensor, bool, int, float, str  # a bool is an int, too
    lists = [([], []) for _ in kinds]
    for name, value in flat.items():
        if isinstance(value, (list, tuple, range)):
            value = torch.tensor(list(value), dtype=torch.int64)
        for (names, items), kind in zip(lists, kinds):
            if isinstance(value, kind):
                names.append(name)
                items.append(value)
                break
        else:
            raise TypeError(f"`{name}`: expected a torch.Tensor, a list or a number, got {type(value).__name__}")
    return tuple(part for pair in lists for part in pair)


def unpacked(*lists) -> dict:
    flat = {}
    for names, values in zip(lists[::2], lists[1::2], strict=True):
        flat.update(zip(names, values, strict=True))
    parts = {"rope": {}, "variant": {}, "params": {}}
    values = {}
    for name, value in flat.items():
        part, dot, field = name.partition(".")
        if dot:
            parts[part][field] = value
        else:
            values[name] = value
    if parts["rope"]:
        values["rope"] = kvloom.Rope(**parts["rope"])
    if parts["variant"]:
        values["variant"] = kvloom.Variant(**parts["variant"])
    if parts["params"]:
        values["params"] = parts["params"]
    return values


def dims_of(x, name: str, wanted: str):
    """The dimensions of a tensor, as many as `wanted` names."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(f"`{name}`: expected a torch.Tensor, got {type(x).__name__}; outside of compiled code kvloom's own functions take others")
    if x.dim() != wanted.count(",") + 1:
        raise ValueError(f"`{name}`: expected {wanted}, got {list(x.shape)}")
    return x.shape


def outputs(like, dims, dtype, out, lse, return_lse: bool):
    """out and lse, made where they are not given; lse None where none is wanted."""
    if out is None:
        out = torch.empty(dims, dtype=dtype, device=like.device)
    if lse is None and return_lse:
        lse = torch.empty(dims[:-1], dtype=torch.float32, device=like.device)
    return out, lse


__all__ = ["SCHEMA", "dims_of", "outputs", "packed", "torch_dtype", "unpacked"]
