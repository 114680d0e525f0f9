"""What the Python functions of a variant (kvloom.variant) are written with, besides Python's operators. NumPy's and torch's functions of the same
names do the same to traced values.

    where(condition, a, b)   minimum(a, b)   maximum(a, b)   clip(x, low, high)
    exp exp2 log log2 sqrt tanh sigmoid sin cos floor
    param(name, ...)         a parameter that every run gives
"""

from __future__ import annotations

import dataclasses

from . import _trace
from ._trace import Value, clipped as clip, where

_DIMS = {"any": "kvloom::dim::any", "qo_heads": "kvloom::dim::qo_heads", "kv_heads": "kvloom::dim::kv_heads", "requests": "kvloom::dim::requests"}
_TYPES = {"f32": "float", "i32": "int32_t", "i64": "int64_t", "u8": "uint8_t", "bool": "uint8_t"}


def minimum(a, b):
    return _trace.extreme("min", a, b)


def maximum(a, b):
    return _trace.extreme("max", a, b)


def exp(x):
    return _trace.function("exp", x)


def exp2(x):
    return _trace.function("exp2", x)


def log(x):
    return _trace.function("log", x)


def log2(x):
    return _trace.function("log2", x)


def sqrt(x):
    return _trace.function("sqrt", x)


def tanh(x):
    return _trace.function("tanh", x)


def sigmoid(x):
    return _trace.function("sigmoid", x)


def sin(x):
    return _trace.function("sin", x)


def cos(x):
    return _trace.function("cos", x)


def floor(x):
    return _trace.function("floor", x)


@dataclasses.dataclass(eq=False)
class Param:
    """A parameter's declaration. Arrays are read by index, `slopes[h]`, `table[b, kv_idx]`; an index outside is the nearest one inside."""

    name: str
    dims: list
    dtype: str
    low: float
    high: float
    inferred: bool = False  # dims are found from how it is read

    def kind(self) -> str:
        return {"f32": "f", "bool": "b"}.get(self.dtype, "i")

    def __getitem__(self, index) -> Value:
        index = index if isinstance(index, tuple) else (index,)
        if len(index) != len(self.dims):
            _trace.refuse(f"{self.name}: expected {len(self.dims)} indices, one a dimension, got {len(index)}")
        values = []
        for d, i in enumerate(index):
            i = _trace.as_value(i)
            if i.kind == "f":
                _trace.refuse(f"{self.name}: index {d}: expected an int, got a float")
            values.append(_trace.numeric(i))
            if self.inferred:
                named = {"q_head": "qo_heads", "kv_head": "kv_heads", "request": "requests"}.get(i.args[0], "any") if i.op == "coord" else "any"
                self.dims[d] = named if self.dims[d] in (None, named) else "any"
        return Value("read", (self, *values), self.kind())

    def declaration(self) -> str:
        c_type = _TYPES[self.dtype]
        if not self.dims:
            return f"{c_type} {self.name};"
        dims = ", ".join(_DIMS.get(d, str(d)) for d in self.dims)
        return f"kvloom::Array<{c_type}, {dims}> {self.name};"


def param(name: str, *dims, dtype: str = "f32", low: float = 0.0, high: float = 1.0):
    """A parameter that every run gives by name, in `params`: a number without dims, else an array.

    dims: "qo_heads", "kv_heads", "requests", "any" or a number, at most 3. dtype: "f32", "i32", "i64", for arrays also "u8", "bool".
    low, high: what checks draw values from. To be made outside of the functions, and used in them by name.
    """
    if not name.isidentifier() or not name.isascii():
        raise ValueError(f"`name`: expected a name of letters, digits and _, got {name!r}")
    if dtype not in _TYPES or (not dims and dtype in ("u8", "bool")):
        raise ValueError(f"`dtype`: expected 'f32', 'i32', 'i64', or for an array 'u8' or 'bool', got {dtype!r}")
    for d in dims:
        if d not in _DIMS and not (isinstance(d, int) and d > 0):
            raise ValueError(f"`dims`: expected 'qo_heads', 'kv_heads', 'requests', 'any' or a number above 0, got {d!r}")
    if len(dims) > 3:
        raise ValueError(f"`dims`: expected at most 3, got {len(dims)}")
    declared = Param(name, list(dims), dtype, low, high)
    return declared if dims else Value("param", (declared,), declared.kind())


__all__ = ["clip", "cos", "exp", "exp2", "floor", "log", "log2", "maximum", "minimum", "param", "Param", "sigmoid", "sin", "sqrt", "tanh", "where"]
