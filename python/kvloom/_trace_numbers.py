"""What a traced value is, worked out in Python: float64 and int32."""

from __future__ import annotations

import math

from ._trace import Value


def _floor_divide(a, b, is_float):
    if is_float:
        return math.floor(a / b) if b and math.isfinite(a / b) else math.nan
    return a // b if b else 0


def _guarded(f):
    def call(x):
        try:
            return f(x)
        except OverflowError:
            return math.inf
        except ValueError:
            return math.nan

    return call


_NUMBERS = {
    "exp": _guarded(math.exp),
    "exp2": _guarded(lambda x: 2.0**x),
    "sqrt": _guarded(math.sqrt),
    "tanh": math.tanh,
    "sin": _guarded(math.sin),
    "cos": _guarded(math.cos),
    "floor": lambda x: math.floor(x) if math.isfinite(x) else x,
    "log": lambda x: -math.inf if x == 0 else _guarded(math.log)(x),
    "log2": lambda x: -math.inf if x == 0 else _guarded(math.log2)(x),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "neg": lambda x: -x,
    "abs": abs,
    "not": lambda x: not x,
    "inv": lambda x: ~x,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b if b else (math.nan if a == 0 or a != a else math.copysign(math.inf, a)),
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << (b & 31),
    ">>": lambda a, b: a >> (b & 31),
    "pow": lambda a, b: math.inf if a == 0 and b < 0 else _guarded(lambda x: math.pow(x, b))(a),
    "min": min,
    "max": max,
    "where": lambda c, a, b: a if c else b,
}


def number_of(value: Value, leaves: dict, known: dict | None = None):
    """The value in float64 and int32; `leaves`: coordinates by name, parameters by name (numbers, or functions of indices)."""
    known = {} if known is None else known
    if id(value) in known:
        return known[id(value)]
    if value.op == "const":
        result = value.args[0]
    elif value.op == "coord":
        result = leaves[value.args[0]]
    elif value.op == "param":
        result = leaves[value.args[0].name]
    elif value.op == "read":
        result = leaves[value.args[0].name](*(number_of(i, leaves, known) for i in value.args[1:]))
    else:
        args = [number_of(a, leaves, known) for a in value.args]
        if value.op == "cast":
            result = float(args[0]) if value.kind == "f" else int(args[0])
        elif value.op == "//":
            result = _floor_divide(args[0], args[1], value.kind == "f")
        elif value.op == "%":
            result = args[0] - _floor_divide(args[0], args[1], value.kind == "f") * args[1] if args[1] or value.kind == "f" else 0
        else:
            result = _NUMBERS[value.op](*args)
        if value.kind == "i":
            result = (int(result) + 2**31) % 2**32 - 2**31  # int32, which wraps
    known[id(value)] = result
    return result
