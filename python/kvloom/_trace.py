"""Values that remember how they were made: what a variant's Python functions are called with once, to be written down as C++.

A value is a float (fp32), an int (int32) or a bool. `//` and `%` round down, as Python's do, and give 0 where the divisor is the integer 0.
"""

from __future__ import annotations

import os
import sys
import threading
import typing

_PACKAGE = os.path.dirname(os.path.abspath(__file__))
_WORDS = {"f": "a float", "i": "an int", "b": "a bool"}


def user_line() -> str:
    """file:line of the innermost frame that is neither the library's nor that of a framework whose function was called."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        os.path.dirname(os.path.abspath(frame.f_code.co_filename)) == _PACKAGE
        or str(frame.f_globals.get("__name__")).partition(".")[0] in ("numpy", "torch", "cupy", "jax")
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


_last = threading.local()  # .error: what was refused last in this thread


def refuse(message: str) -> typing.NoReturn:
    _last.error = TypeError(f"{user_line()}: {message}")
    raise _last.error


_NO_INDEX = (
    "a value of the trace can't index an array that is not a parameter: the array has to be made outside, and be a variable that the function itself "
    "uses by name, or a kvloom.hooks.Param; nor be a range's end: it stands for every pair, whose loops would differ"
)


def called(f, *args):
    """f(*args). NumPy swallows the refusal of an index and says something of its own: what was refused on that line is said instead."""
    _last.error = None
    try:
        return f(*args)
    except IndexError as error:
        at = error.__traceback__
        while at.tb_next is not None:
            at = at.tb_next
        if _last.error is not None and str(_last.error).startswith(f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}: "):
            raise _last.error from None
        raise
    finally:
        _last.error = None


class Value:
    """A value of a traced function. `op` of its `args`, other values or plain numbers; leaves are constants, coordinates and parameters."""

    __slots__ = ("op", "args", "kind")

    def __init__(self, op: str, args: tuple, kind: str):
        self.op, self.args, self.kind = op, args, kind

    def __add__(self, other):
        return arithmetic("+", self, other)

    def __radd__(self, other):
        return arithmetic("+", other, self)

    def __sub__(self, other):
        return arithmetic("-", self, other)

    def __rsub__(self, other):
        return arithmetic("-", other, self)

    def __mul__(self, other):
        return arithmetic("*", self, other)

    def __rmul__(self, other):
        return arithmetic("*", other, self)

    def __truediv__(self, other):
        return divided(self, other)

    def __rtruediv__(self, other):
        return divided(other, self)

    def __floordiv__(self, other):
        return arithmetic("//", self, other)

    def __rfloordiv__(self, other):
        return arithmetic("//", other, self)

    def __mod__(self, other):
        return arithmetic("%", self, other)

    def __rmod__(self, other):
        return arithmetic("%", other, self)

    def __pow__(self, other):
        return power(self, other)

    def __rpow__(self, other):
        return power(other, self)

    def __and__(self, other):
        return bitwise("&", self, other)

    def __rand__(self, other):
        return bitwise("&", other, self)

    def __or__(self, other):
        return bitwise("|", self, other)

    def __ror__(self, other):
        return bitwise("|", other, self)

    def __xor__(self, other):
        return bitwise("^", self, other)

    def __rxor__(self, other):
        return bitwise("^", other, self)

    def __lshift__(self, other):
        return shifted("<<", self, other)

    def __rshift__(self, other):
        return shifted(">>", self, other)

    def __lt__(self, other):
        return compared("<", self, other)

    def __le__(self, other):
        return compared("<=", self, other)

    def __gt__(self, other):
        return compared(">", self, other)

    def __ge__(self, other):
        return compared(">=", self, other)

    def __eq__(self, other):
        return compared("==", self, other)

    def __ne__(self, other):
        return compared("!=", self, other)

    def __neg__(self):
        return Value("neg", (numeric(self),), "f" if self.kind == "f" else "i")

    def __pos__(self):
        return self

    def __abs__(self):
        return Value("abs", (numeric(self),), "f" if self.kind == "f" else "i")

    def __invert__(self):
        if self.kind == "f":
            refuse("`~`: expected a bool or an int, got a float")
        return Value("not" if self.kind == "b" else "inv", (self,), self.kind)

    __hash__ = object.__hash__

    def __bool__(self):
        refuse(
            "a value of the trace has no truth of its own, it stands for every pair of a query and a key: write `&`, `|`, `~` for `and`, `or`, "
            "`not`, two comparisons for a chained one, and kvloom.hooks.where(condition, a, b) for `if`, `min` and `max`"
        )

    def __index__(self):
        refuse(_NO_INDEX)

    def __float__(self):
        refuse("a value of the trace is no number yet: functions of Python's math do not take it; kvloom.hooks has exp, tanh and others")

    __int__ = __float__

    def __iter__(self):
        refuse("a value of the trace is one number, not a sequence")

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        if method != "__call__" or kwargs:
            return NotImplemented
        return framework_call(f"numpy.{ufunc.__name__}", inputs, {})

    def __array_function__(self, function, types, args, kwargs):
        return framework_call(f"numpy.{function.__name__}", args, kwargs)

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return framework_call(f"torch.{function.__name__}", args, kwargs or {})


def as_value(x) -> Value:
    if isinstance(x, Value):
        return x
    if getattr(x, "ndim", None) == 0 and hasattr(x, "item"):  # a scalar of NumPy or torch
        x = x.item()
    if isinstance(x, bool):
        return Value("const", (x,), "b")
    if isinstance(x, int):
        if not -(2**31) <= x < 2**31:
            refuse(f"got the integer {x}, wanted 32 bits")
        return Value("const", (x,), "i")
    if isinstance(x, float):
        return Value("const", (x,), "f")
    refuse(f"expected a number or a value of the trace, got {type(x).__name__}")


def numeric(x) -> Value:
    x = as_value(x)
    return x if x.kind != "b" else Value("cast", (x,), "i")


def floating(x) -> Value:
    x = as_value(x)
    return x if x.kind == "f" else Value("cast", (x,), "f")


def alike(a, b) -> tuple[Value, Value, str]:
    a, b = numeric(a), numeric(b)
    if "f" in (a.kind, b.kind):
        return floating(a), floating(b), "f"
    return a, b, "i"


def arithmetic(op, a, b):
    a, b, kind = alike(a, b)
    return Value(op, (a, b), kind)


def divided(a, b):
    return Value("/", (floating(a), floating(b)), "f")


def power(a, b):
    if isinstance(b, int) and not isinstance(b, bool) and 0 <= b <= 8:
        result = numeric(a)
        if b == 0:
            return as_value(1.0 if result.kind == "f" else 1)
        for _ in range(b - 1):
            result = arithmetic("*", result, a)
        return result
    return Value("pow", (floating(a), floating(b)), "f")


def compared(op, a, b):
    a, b, _ = alike(a, b)
    return Value(op, (a, b), "b")


def bitwise(op, a, b):
    a, b = as_value(a), as_value(b)
    if "f" in (a.kind, b.kind):
        refuse(f"`{op}`: expected bools or ints, got {_WORDS[a.kind]} and {_WORDS[b.kind]}")
    if a.kind == b.kind == "b":
        return Value(op, (a, b), "b")
    return Value(op, (numeric(a), numeric(b)), "i")


def shifted(op, a, b):
    a, b = numeric(a), numeric(b)
    if "f" in (a.kind, b.kind):
        refuse(f"`{op}`: expected ints, got {_WORDS[a.kind]} and {_WORDS[b.kind]}")
    return Value(op, (a, b), "i")


def function(name, x):
    return Value(name, (floating(x),), "f")


def where(condition, a, b):
    condition = as_value(condition)
    if condition.kind != "b":
        condition = compared("!=", condition, 0)
    a, b = as_value(a), as_value(b)
    kind = "b"
    if not a.kind == b.kind == "b":
        a, b, kind = alike(a, b)
    return Value("where", (condition, a, b), kind)


def extreme(name, a, b):
    a, b, kind = alike(a, b)
    return Value(name, (a, b), kind)


FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "tanh", "sigmoid", "sin", "cos", "floor")

# Names that NumPy and torch give to the same things.
_FRAMEWORK = {
    "where": where,
    "abs": abs,
    "absolute": abs,
    "negative": lambda x: -as_value(x),
    "neg": lambda x: -as_value(x),
    "minimum": lambda a, b: extreme("min", a, b),
    "maximum": lambda a, b: extreme("max", a, b),
    "fmin": lambda a, b: extreme("min", a, b),
    "fmax": lambda a, b: extreme("max", a, b),
    "clamp": lambda x, min=None, max=None: clipped(x, min, max),
    "clip": lambda x, min=None, max=None: clipped(x, min, max),
    "add": lambda a, b: arithmetic("+", a, b),
    "subtract": lambda a, b: arithmetic("-", a, b),
    "sub": lambda a, b: arithmetic("-", a, b),
    "multiply": lambda a, b: arithmetic("*", a, b),
    "mul": lambda a, b: arithmetic("*", a, b),
    "divide": divided,
    "true_divide": divided,
    "div": divided,
    "floor_divide": lambda a, b: arithmetic("//", a, b),
    "remainder": lambda a, b: arithmetic("%", a, b),
    "power": power,
    "pow": power,
    "less": lambda a, b: compared("<", a, b),
    "lt": lambda a, b: compared("<", a, b),
    "less_equal": lambda a, b: compared("<=", a, b),
    "le": lambda a, b: compared("<=", a, b),
    "greater": lambda a, b: compared(">", a, b),
    "gt": lambda a, b: compared(">", a, b),
    "greater_equal": lambda a, b: compared(">=", a, b),
    "ge": lambda a, b: compared(">=", a, b),
    "equal": lambda a, b: compared("==", a, b),
    "eq": lambda a, b: compared("==", a, b),
    "not_equal": lambda a, b: compared("!=", a, b),
    "ne": lambda a, b: compared("!=", a, b),
    "logical_and": lambda a, b: truth(a) & truth(b),
    "logical_or": lambda a, b: truth(a) | truth(b),
    "logical_xor": lambda a, b: truth(a) ^ truth(b),
    "logical_not": lambda x: ~truth(x),
    "bitwise_and": lambda a, b: bitwise("&", a, b),
    "bitwise_or": lambda a, b: bitwise("|", a, b),
    "bitwise_xor": lambda a, b: bitwise("^", a, b),
    "invert": lambda x: ~as_value(x),
    "bitwise_not": lambda x: ~as_value(x),
    **{name: (lambda n: lambda x: function(n, x))(name) for name in FUNCTIONS},
}


def truth(x):
    x = as_value(x)
    return x if x.kind == "b" else compared("!=", x, 0)


def clipped(x, low=None, high=None):
    if low is not None:
        x = extreme("max", x, low)
    return x if high is None else extreme("min", x, high)


def framework_call(name, args, kwargs):
    known = _FRAMEWORK.get(name.partition(".")[2].strip("_"))
    if known is None and name.endswith("item__"):  # torch's, of a tensor that is indexed or written
        refuse(_NO_INDEX)
    if known is None:
        refuse(f"{name} has no counterpart in a variant; there are: {', '.join(sorted(_FRAMEWORK))}, and Python's operators")
    try:
        return known(*args, **kwargs)
    except TypeError as error:
        if ": " in str(error) and str(error).startswith(user_line()):
            raise
        refuse(f"{name}: these arguments have no counterpart in a variant ({error})")
