"""Variants from Python functions: traced once, written down as the C++ text of docs/variants.md, compared with themselves."""

from __future__ import annotations

import inspect
import re
import types

from . import _core
from ._spec import Variant
from ._trace import Value, as_value, called, floating, truth
from ._trace_cpp import Writer
from .hooks import Param

_HELPERS = """\
#include <cmath>

// An element of an array; an index outside is the nearest one inside.
template <class A, class... Index>
static inline auto python_read(const A& a, Index... index) {
  const int32_t at[A::kRank] = {int32_t(index)...};
  int64_t offset = 0;
  auto element = *a.data;
  element = 0;
  for (int32_t d = 0; d < A::kRank; ++d) {
    if (a.size[d] <= 0) return element;
    offset += int64_t(at[d] < 0 ? 0 : at[d] < a.size[d] ? at[d] : a.size[d] - 1) * a.stride[d];
  }
  return a.data[offset];
}
static inline int32_t python_floor_divide(int32_t a, int32_t b) {
  if (b == 0) return 0;
  const int64_t q = int64_t(a) / b;
  return int32_t(q - (q * b != a && (a < 0) != (b < 0)));
}
static inline int32_t python_remainder(int32_t a, int32_t b) { return b == 0 ? 0 : int32_t(a - int64_t(python_floor_divide(a, b)) * b); }
static inline float python_floor_divide(float a, float b) { return floorf(a / b); }
static inline float python_remainder(float a, float b) { return a - floorf(a / b) * b; }
"""


class Coord:
    """Where a pair stands: request, q_index, q_pos, kv_index, kv_pos, q_head, kv_head. Positions are absolute within the request."""

    request: Value
    q_index: Value
    q_pos: Value
    kv_index: Value
    kv_pos: Value
    q_head: Value
    kv_head: Value

    def __init__(self):
        for name in Coord.__annotations__:
            setattr(self, name, Value("coord", (name,), "i"))


def _is_array(x) -> bool:
    if isinstance(x, (Value, Param, type)):
        return False
    if hasattr(x, "__dlpack__") or hasattr(x, "__array_struct__"):
        return getattr(x, "ndim", 1) > 0
    return isinstance(x, memoryview)


class _Captures:
    """The arrays that functions use by name, as parameters."""

    def __init__(self):
        self.params: dict[int, Param] = {}  # by id of the array
        self.arrays: dict[str, object] = {}

    def param_of(self, name: str, array) -> Param:
        if id(array) in self.params:
            return self.params[id(array)]
        dims, dtype = _core.shape_and_type(array, name)
        known = {"f32": "f32", "int32": "i32", "int64": "i64", "uint8": "u8", "bool": "bool"}.get(dtype)
        if known is None or not 1 <= len(dims) <= 3:
            raise TypeError(f"`{name}`: expected float32, int32, int64, uint8 or bool in 1 to 3 dimensions, got {dtype} in {len(dims)}; convert it")
        clean = re.sub(r"\W", "_", name, flags=re.ASCII)
        while clean in self.arrays:
            clean += "_"
        if dtype == "bool":
            view = "uint8" if hasattr(array, "__array_struct__") else __import__(type(array).__module__.partition(".")[0]).uint8
            array = array.view(view)
        self.arrays[clean] = array
        param = self.params[id(array)] = Param(clean, [None] * len(dims), known, 0.0, 1.0, inferred=True)
        return param

    def function(self, f):
        """f with parameters for the arrays that it closes over or finds among its globals and defaults."""
        if not isinstance(f, types.FunctionType):
            return f
        cells = []
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            try:
                cells.append(types.CellType(self.param_of(name, cell.cell_contents)) if _is_array(cell.cell_contents) else cell)
            except ValueError:  # a cell that is empty yet
                cells.append(cell)
        changed = {n: self.param_of(n, f.__globals__[n]) for n in _names(f.__code__) if n in f.__globals__ and _is_array(f.__globals__[n])}
        names = list(inspect.signature(f).parameters)[-len(f.__defaults__ or ()) :] if f.__defaults__ else []
        defaults = tuple(self.param_of(n, x) if _is_array(x) else x for n, x in zip(names, f.__defaults__ or ()))
        same = types.FunctionType(f.__code__, {**f.__globals__, **changed} if changed else f.__globals__, f.__name__, defaults, tuple(cells))
        same.__kwdefaults__ = f.__kwdefaults__
        return same


def _names(code) -> set[str]:
    return set(code.co_names).union(*(_names(c) for c in code.co_consts if isinstance(c, types.CodeType)))


def _call(f, what: str, leading: tuple):
    """The function's value: called as (score, b, h, q_idx, kv_idx) or (score, c), masks without the score."""
    if not callable(f):
        raise TypeError(f"`{what}`: expected a function, got {type(f).__name__}")
    try:
        parameters = inspect.signature(f).parameters.values()
        count = sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty for p in parameters)
    except (TypeError, ValueError):
        count = len(leading) + 4
    c = Coord()
    if count == len(leading) + 4:
        return _returned(f, what, called(f, *leading, c.request, c.q_head, c.q_pos, c.kv_pos))
    if count == len(leading) + 1:
        return _returned(f, what, called(f, *leading, c))
    score = "score, " if leading else ""
    raise TypeError(f"`{what}`: expected a function of ({score}b, h, q_idx, kv_idx) or of ({score}c), got one of {count} arguments")


def _returned(f, what: str, x) -> Value:
    """x, which f returned, as a value."""
    if x is None or isinstance(x, (str, bytes, tuple, list, dict)) or getattr(x, "ndim", 0) > 0:
        code = getattr(f, "__code__", None)
        where = f"{code.co_filename}:{code.co_firstlineno}: " if code is not None else ""
        wanted = "the logit" if what == "score_mod" else "whether the key is kept"
        raise TypeError(f"{where}`{what}`: expected it to return {wanted}, one value, got {type(x).__name__}{'' if x is not None else ' (no return?)'}")
    return as_value(x)


def _params_of(values) -> list[Param]:
    found: dict[str, Param] = {}
    seen, todo = set(), list(values)
    while todo:
        value = todo.pop()
        if not isinstance(value, Value) or id(value) in seen:
            continue
        seen.add(id(value))
        if value.op in ("param", "read"):
            param = value.args[0]
            if found.setdefault(param.name, param) is not param:
                raise ValueError(f"`{param.name}`: two parameters have this name")
        todo.extend(value.args)
    return [found[name] for name in sorted(found)]


def _hook(signature: str, value: Value) -> list[str]:
    writer = Writer()
    result = writer.name_of(value)
    return [f"  static {signature} {{", *(f"    {line}" for line in writer.lines), f"    return {result};", "  }"]


def _struct_name(name: str) -> str:
    words = re.sub(r"\W+", "_", name, flags=re.ASCII).split("_")
    camel = "".join(w[:1].upper() + w[1:] for w in words if w)
    return camel if camel[:1].isalpha() else "Python" + camel


def variant(score_mod=None, mask_mod=None, *, name: str | None = None, check: bool = True) -> Variant:
    """A variant from Python functions, for Spec(variant=...) and attention(variant=...): on the CPU and on GPUs, in every storage.

    score_mod(score, b, h, q_idx, kv_idx) -> the logit; score is sm_scale * q.k
    mask_mod(b, h, q_idx, kv_idx) -> True where the key is kept
        b is the request, h the query head; q_idx and kv_idx are positions within the request: its last query stands at kv_len - 1. Or
        score_mod(score, c), mask_mod(c), where c also has q_index, kv_index, kv_head.

    The functions are called once, with values that stand for every pair: write `&`, `|`, `~` and kvloom.hooks.where (or NumPy's, torch's) instead of
    `and`, `or`, `not` and `if`. Arrays that they use by name become parameters: float32, int32, int64, uint8 or bool, where the engine runs,
    kept in the variant's `params`; a run may give others by the same names. An index outside an array is the nearest one inside. Numbers become
    constants; kvloom.hooks.param makes parameters of them.

    check: the compiled variant is compared with the functions' values in double precision, on a small random case, on the CPU (a C++ compiler
    is needed for any variant). Faults in a function are TypeErrors that name its line.

        slopes = np.array([...], np.float32)
        alibi = kvloom.variant(lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx))
        out = kvloom.attention(q, k, v, variant=alibi, causal=True)
    """
    if score_mod is None and mask_mod is None:
        raise TypeError("`score_mod`, `mask_mod`: expected at least one of them")
    try:
        return _made(score_mod, mask_mod, name, check)
    except RecursionError:
        raise ValueError(
            "`score_mod`, `mask_mod`: expected fewer than about 500 operations one after the other, got more; write loops as a formula"
        ) from None


def _made(score_mod, mask_mod, name: str | None, check: bool) -> Variant:
    captures = _Captures()
    logit = keep = None
    if score_mod is not None:
        logit = floating(_call(captures.function(score_mod), "score_mod", (Value("coord", ("score",), "f"),)))
    if mask_mod is not None:
        keep = truth(_call(captures.function(mask_mod), "mask_mod", ()))
    params = _params_of([v for v in (logit, keep) if v is not None])
    name = name or next((f.__name__ for f in (score_mod, mask_mod) if getattr(f, "__name__", "<lambda>") != "<lambda>"), "python_variant")
    struct = _struct_name(name)
    lines = [f"// {name}, written by kvloom.variant from Python.", _HELPERS, f"struct {struct} {{"]
    if params:
        declared = ", ".join(f"KVLOOM_PARAM({p.name}, {p.low!r}, {p.high!r})" for p in params)
        lines += ["  struct Params {", *(f"    {p.declaration()}" for p in params), f"    KVLOOM_PARAMS({declared})", "  };"]
    p = ", const Params& p" if params else ""
    if logit is not None:
        lines += _hook(f"float logit(float score, const kvloom::Coord& c{p})", logit)
    if keep is not None:
        lines += _hook(f"bool keep(const kvloom::Coord& c{p})", keep)
    lines += ["};", f"KVLOOM_VARIANT({struct})", ""]
    used = {p.name for p in params}
    made = Variant("\n".join(lines), name, {n: a for n, a in captures.arrays.items() if n in used})
    if check:
        from ._variant_check import check_variant

        check_variant(made, logit, keep, params)
    return made
