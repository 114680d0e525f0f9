"""A traced value as C++."""

from __future__ import annotations

import math

from ._trace import Value

_C_TYPES = {"f": "float", "i": "int32_t", "b": "bool"}

_CALLS = {
    "exp": "expf",
    "exp2": "kvloom::exp2_of",
    "log": "logf",
    "log2": "log2f",
    "sqrt": "sqrtf",
    "tanh": "kvloom::tanh_of",
    "sigmoid": "kvloom::sigmoid_of",
    "sin": "sinf",
    "cos": "cosf",
    "floor": "floorf",
    "pow": "powf",
    "min": "kvloom::min_of",
    "max": "kvloom::max_of",
}


def constant_text(value) -> str:
    x = value.args[0]
    if value.kind == "b":
        return "true" if x else "false"
    if value.kind == "i":
        return str(x) if x >= 0 else f"({x})" if x > -(2**31) else "(-2147483647 - 1)"
    if math.isnan(x):
        return "NAN"
    if math.isinf(x):
        return "INFINITY" if x > 0 else "(-INFINITY)"
    return f"float({x!r})" if abs(x) < 3.4e38 else ("INFINITY" if x > 0 else "(-INFINITY)")


class Writer:
    """The statements of one hook, a value a line, each value once."""

    def __init__(self):
        self.lines: list[str] = []
        self.names: dict[int, str] = {}
        self.same: dict[tuple, str] = {}

    def name_of(self, value: Value) -> str:
        if id(value) in self.names:
            return self.names[id(value)]
        text = self.text_of(value)
        if value.op not in ("const", "coord"):
            key = (value.kind, text)
            if key not in self.same:
                name = f"v{len(self.lines)}"
                self.lines.append(f"const {_C_TYPES[value.kind]} {name} = {text};")
                self.same[key] = name
            text = self.same[key]
        self.names[id(value)] = text
        return text

    def text_of(self, value: Value) -> str:
        op = value.op
        if op == "const":
            return constant_text(value)
        if op == "coord":
            return value.args[0] if value.args[0] == "score" else f"c.{value.args[0]}"
        if op == "param":
            return f"{_C_TYPES[value.kind]}(p.{value.args[0].name})"
        if op == "read":
            param, *indices = value.args
            named = {"q_head": "qo_heads", "kv_head": "kv_heads", "request": "requests"}
            if all(i.op == "coord" and named.get(i.args[0]) == d for i, d in zip(indices, param.dims)):  # inside by what is checked at a run
                return f"{_C_TYPES[value.kind]}(p.{param.name}({', '.join(map(self.name_of, indices))}))"
            return f"{_C_TYPES[value.kind]}(python_read(p.{param.name}, {', '.join(map(self.name_of, indices))}))"
        args = [self.name_of(a) for a in value.args]
        if op == "cast":
            return f"{_C_TYPES[value.kind]}({args[0]})"
        if op in ("//", "%"):
            return f"python_{'floor_divide' if op == '//' else 'remainder'}({args[0]}, {args[1]})"
        if op in _CALLS:
            return f"{_CALLS[op]}({', '.join(args)})"
        if op == "where":
            return f"{args[0]} ? {args[1]} : {args[2]}"
        if op == "abs":
            return f"fabsf({args[0]})" if value.kind == "f" else f"({args[0]} < 0 ? -{args[0]} : {args[0]})"
        if op in ("<<", ">>"):
            return f"int32_t({'uint32_t' if op == '<<' else ''}({args[0]}) {op} ({args[1]} & 31))"
        if op == "*" and value.kind == "i":  # what is too large wraps
            return f"int32_t(uint32_t({args[0]}) * uint32_t({args[1]}))"
        if len(args) == 1:
            return f"{ {'neg': '-', 'not': '!', 'inv': '~'}[op] }{args[0]}"
        return f"{args[0]} {op} {args[1]}"
