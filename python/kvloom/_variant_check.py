"""A traced variant against itself: its kernel on the CPU against its functions' values in double precision, on a small random case."""

from __future__ import annotations

import math
import random

from . import _core
from ._errors import InternalError
from ._frameworks import on_host
from ._spec import Options, Spec
from ._trace_numbers import number_of

_DIM = 16
_LENGTHS = ((5, 9), (4, 3))  # q_len and kv_len of a request: in one of them queries stand before every key


def check_variant(variant, logit, keep, params) -> None:
    # A value may stand on an edge (a comparison, a floor) where fp32 falls to the other side: a real fault shows in every case.
    faults = [_difference(variant, logit, keep, params, seed) for seed in (1, 2)]
    if all(faults):
        raise InternalError(f"variant {variant.name}: its kernel differs from its functions: {faults[0]}; its text:\n{variant.text}")


def _floats(*dims):
    return memoryview(bytearray(4 * math.prod(dims))).cast("f", dims)


def _element(array, indices):
    for i in indices[:-1]:
        array = array[i]
    x = array[indices[-1]]
    return x.item() if hasattr(x, "item") else x


class _Case:
    """Sizes that fit the arrays that the variant has, and values for all its parameters."""

    def __init__(self, variant, params, rng):
        self.heads, self.kv_heads, self.requests = 4, 2, 2
        self.given = {name: on_host(array) for name, array in variant.params.items()}
        sizes: dict[str, int] = {}
        for p in params:
            if p.name in self.given:
                dims, _ = _core.shape_and_type(self.given[p.name], p.name)
                sizes |= {d: n for d, n in zip(p.dims, dims) if d in ("qo_heads", "kv_heads", "requests")}
        self.requests = sizes.get("requests", 2)
        self.kv_heads = sizes.get("kv_heads", 1 if sizes.get("qo_heads", 2) % 2 else 2)
        self.heads = sizes.get("qo_heads", 2 * self.kv_heads)
        self.leaves = {}
        for p in params:
            self.leaves[p.name] = self._leaf(p, rng)

    def _leaf(self, p, rng):
        def draw():
            x = rng.uniform(p.low, p.high)
            return _float32(x) if p.dtype == "f32" else rng.random() < 0.5 if p.dtype == "bool" else int(round(x))

        if p.name not in self.given and not p.dims:
            self.given[p.name] = draw()
            return self.given[p.name]
        if p.name not in self.given:
            lengths = {"any": 16, "qo_heads": self.heads, "kv_heads": self.kv_heads, "requests": self.requests}
            dims = tuple(lengths.get(d, d) for d in p.dims)
            code, size = {"f32": ("f", 4), "i32": ("i", 4), "i64": ("q", 8), "u8": ("B", 1), "bool": ("B", 1)}[p.dtype]
            array = memoryview(bytearray(size * math.prod(dims))).cast(code)
            for i in range(len(array)):
                array[i] = draw()
            self.given[p.name] = array.cast("B").cast(code, dims)
        array = self.given[p.name]
        dims, _ = _core.shape_and_type(array, p.name)

        def read(*indices):
            if not all(dims):
                return 0
            inside = tuple(min(max(i, 0), n - 1) for i, n in zip(indices, dims))
            x = array[inside] if isinstance(array, memoryview) else _element(array, inside)
            return bool(x) if p.dtype == "bool" else x

        return read


def _float32(x: float) -> float:
    view = memoryview(bytearray(4)).cast("f")
    view[0] = x
    return view[0]


def _difference(variant, logit, keep, params, seed) -> str | None:
    rng = random.Random(seed)
    case = _Case(variant, params, rng)
    lengths = [_LENGTHS[r % len(_LENGTHS)] for r in range(case.requests)]
    tokens, keys = sum(n for n, _ in lengths), sum(m for _, m in lengths)
    q, k, v, out = (
        _floats(tokens, case.heads, _DIM),
        _floats(keys, case.kv_heads, _DIM),
        _floats(keys, case.kv_heads, _DIM),
        _floats(tokens, case.heads, _DIM),
    )
    for x in (q, k, v):
        flat = x.cast("B").cast("f")
        for i in range(len(flat)):
            flat[i] = rng.gauss(0, 1)
    indptr = [0], [0]
    for n, m in lengths:
        indptr[0].append(indptr[0][-1] + n)
        indptr[1].append(indptr[1][-1] + m)
    none = dict.fromkeys(
        (
            "pages",
            "block_table",
            "q_pos0",
            "q_pos",
            "prefix",
            "lse",
            "alibi_slopes",
            "sink",
            "mask",
            "mask_indptr",
            "q_scale",
            "k_scale",
            "v_scale",
        )
    )
    spec = Spec(num_qo_heads=case.heads, num_kv_heads=case.kv_heads, head_dim=_DIM, variant=variant)
    _core.attention(
        spec,
        Options(backend="cpu"),
        None,
        q,
        k,
        v,
        qo_indptr=indptr[0],
        kv_len=[m for _, m in lengths],
        list_indptr=indptr[1],
        out=out,
        return_lse=False,
        layout="NHD",
        params=case.given or None,
        **none,
    )
    for r, (n, m) in enumerate(lengths):
        for i in range(n):
            for h in range(case.heads):
                row, first = indptr[0][r] + i, indptr[1][r]
                kv_head = h // (case.heads // case.kv_heads)
                logits = []
                for j in range(m):
                    score = sum(q[row, h, d] * k[first + j, kv_head, d] for d in range(_DIM)) / math.sqrt(_DIM)
                    at = {"score": score, "request": r, "q_index": i, "q_pos": m - n + i, "kv_index": j, "kv_pos": j, "q_head": h, "kv_head": kv_head}
                    at |= case.leaves
                    if keep is not None and not number_of(keep, at):
                        continue
                    logits.append((j, score if logit is None else float(number_of(logit, at))))
                fault = _row_difference(logits, [out[row, h, d] for d in range(_DIM)], lambda j, d: v[first + j, kv_head, d])
                if fault:
                    return f"request {r}, query {i}, head {h}: {fault}"
    return None


def _row_difference(logits, got, value) -> str | None:
    if any(x != x or x == math.inf for _, x in logits):
        return None  # such a row is NaN by definition
    top = max((x for _, x in logits), default=-math.inf)
    weights = [(j, math.exp(x - top)) for j, x in logits] if top > -math.inf else []
    total = sum(w for _, w in weights)
    for d, x in enumerate(got):
        wanted = sum(w * value(j, d) for j, w in weights) / total if weights else 0.0
        if not abs(x - wanted) <= 1e-4 * (1 + max(1.0, abs(top)) / 10):  # logits are fp32: their errors grow with their size
            return f"out[{d}] is {x:.6g}, the functions give {wanted:.6g}"
    return None
