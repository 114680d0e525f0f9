#!/usr/bin/env python3
"""Golden values: what attention must give for the cases of cases.json, in numpy float64, by dense matrices.

    python3 tests/golden/make_golden.py          writes golden.json beside this file (needs numpy)
    python3 tests/golden/make_golden.py --check  compares with the golden.json that is there

Written from the formulas of contract/variant.h, ref/ref.h and tests/cases/README.md, not from any code of the engine: every query token
of a step is a row of one matrix, every list token of every list is a column, and a boolean matrix says who may see whom.
"""
import json
import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
MASK64 = (1 << 64) - 1
STREAMS = {name: i for i, name in enumerate("q k v pages mask alibi sink scale tree lists".split())}
PER_REQUEST = 1 << 24  # counters of one request in the streams `mask` and `tree`
PER_LIST = 1 << 32     # counters of one list in the stream `lists`


def mix64(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK64
    return x ^ (x >> 31)


def bits(seed, stream, i):
    return mix64((mix64((seed * 16 + STREAMS[stream]) & MASK64) + i) & MASK64)


def value(seed, stream, i):
    b = bits(seed, stream, i)
    return (sum(b >> s & 0xFFFF for s in (0, 16, 32, 48)) - 131070) / 32768.0


# ---- number formats -------------------------------------------------------------------------------------------------------------

def small_float_table(exponent_bits, mantissa_bits, bias, codes):
    """Every value of an 8-bit format, by code; the top exponent is left out as the caller's `codes` says."""
    out = []
    for code in range(codes):
        e, m = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        out.append(m * 2.0 ** (1 - bias - mantissa_bits) if e == 0 else (1 + m * 2.0 ** -mantissa_bits) * 2.0 ** (e - bias))
    return np.array(out)


FP8 = {"e4m3": small_float_table(4, 3, 7, 0x7F), "e5m2": small_float_table(5, 2, 15, 0x7C)}


def to_type(x, dtype):
    """The value that a tensor of this type holds for x: nearest, ties to even."""
    x = np.asarray(x, dtype=np.float64)
    if dtype == "f32":
        return x.astype(np.float32).astype(np.float64)
    if dtype == "f16":
        return x.astype(np.float16).astype(np.float64)
    if dtype == "bf16":  # 8 significant bits
        mantissa, exponent = np.frexp(x)
        return np.ldexp(np.rint(np.ldexp(mantissa, 8)), exponent - 8)
    table = FP8[dtype]
    distance = np.abs(np.abs(x)[..., None] - table)
    nearest = np.argmin(distance, axis=-1)
    tie = (np.take_along_axis(distance, np.minimum(nearest + 1, len(table) - 1)[..., None], -1)[..., 0] ==
           np.take_along_axis(distance, nearest[..., None], -1)[..., 0]) & (nearest + 1 < len(table))
    return np.sign(x) * table[np.where(tie & (nearest % 2 == 1), nearest + 1, nearest)]


# ---- a case as matrices ---------------------------------------------------------------------------------------------------------

def increasing_choice(seed, stream_list, count, limit):
    chosen = []
    for i in range(limit):
        if len(chosen) < count and bits(seed, "lists", stream_list * PER_LIST + i) % (limit - i) < count - len(chosen):
            chosen.append(i)
    return chosen


class Step:
    """Where everything of a case lies: requests, lists of (page, position)."""

    def __init__(self, case):
        spec = case["spec"]
        self.case, self.seed = case, case["seed"]
        self.kv_heads = spec["num_kv_heads"]
        self.ragged = spec.get("storage", "paged") == "ragged"
        self.page_size = 1 if self.ragged else spec.get("page_size", 16)
        self.position = case.get("kv_position", "linear")
        self.per_head = case.get("lists_per_kv_head", False)
        self.q_first = [sum(case["q_len"][:r]) for r in range(len(case["q_len"]) + 1)]
        self.lists, self.page_pos = [], []
        self.make_lists()

    def pages_of(self, tokens):
        return -(-tokens // self.page_size)

    def make_lists(self):
        kv_len, seed = self.case["kv_len"], self.seed
        if self.ragged:
            first = 0
            for l, n in enumerate(kv_len):
                first += bits(seed, "lists", l) % 4
                self.lists.append(list(range(first, first + n)))
                first += n
            return
        if self.position == "page_id":
            self.lists = [increasing_choice(seed, l, self.pages_of(n), self.case["block_columns"]) for l, n in enumerate(kv_len)]
            return
        total = 0
        if self.per_head:
            for r in range(len(self.case["q_len"])):
                wanted = [self.pages_of(n) for n in kv_len[r * self.kv_heads:(r + 1) * self.kv_heads]]
                for h, n in enumerate(wanted):
                    places = increasing_choice(seed, r * self.kv_heads + h, n, max(wanted) + 2)
                    self.lists.append([total + p for p in places])
                    self.page_pos.append([p * self.page_size for p in places])
                total += max(wanted) + 2
        else:
            self.lists = [[] for _ in kv_len]
            for node in sorted(self.case.get("shared", []), key=lambda s: s["pages"]):
                lead = list(self.lists[node["requests"][0]])
                while len(lead) < node["pages"]:
                    lead.append(total)
                    total += 1
                for r in node["requests"]:
                    self.lists[r] = list(lead)
            for l, n in enumerate(kv_len):
                del self.lists[l][self.pages_of(n):]
                while len(self.lists[l]) < self.pages_of(n):
                    self.lists[l].append(total)
                    total += 1
            if self.position == "page_table":
                self.page_pos = [self.positions_of(l) for l in range(len(kv_len))]
        total += 3
        order = list(range(total))
        if self.case.get("shuffle_pages", True):
            for i in range(total - 1, 0, -1):
                j = bits(seed, "pages", i) % (i + 1)
                order[i], order[j] = order[j], order[i]
        self.lists = [[order[p] for p in pages] for pages in self.lists]

    def positions_of(self, l):
        sinks, out, pos = self.case.get("rolling_sinks", -1), [], 0
        for e in range(len(self.lists[l])):
            if sinks < 0:
                pos += bits(self.seed, "lists", l * PER_LIST + e) % 3 * self.page_size
            if e == sinks:
                pos += self.case.get("rolling_jump", 0)
            out.append(pos)
            pos += self.page_size
        return out

    def columns(self):
        """One dict a column: slot in the pool, position, mask column, tokens that may see it, KV heads that it is listed for."""
        out = []

        def add(l, skip, begin, end, pos0, index0, tokens, heads):
            for j in range(begin, end):
                entry, offset = skip + j // self.page_size, j % self.page_size
                page = self.lists[l][entry]
                pos = {"linear": pos0 + j, "page_id": page * self.page_size + offset}.get(self.position)
                if self.position == "page_table":
                    pos = self.page_pos[l][entry] + offset
                out.append(dict(slot=page * self.page_size + offset, pos=pos, index=index0 + j, tokens=tokens, heads=heads))

        every_head = list(range(self.kv_heads))
        if self.case.get("groups"):
            for g in self.case["groups"]:
                heads = every_head if g.get("kv_head", -1) < 0 else [g["kv_head"]]
                add(g.get("list", 0), g.get("list_skip", 0), g.get("kv_begin", 0), g["kv_end"], g.get("kv_pos0", 0), g.get("kv_index0", 0),
                    g["tokens"], heads)
            return out
        for l, n in enumerate(self.case["kv_len"]):
            r, heads = (l // self.kv_heads, [l % self.kv_heads]) if self.per_head else (l, every_head)
            add(l, 0, 0, n, 0, 0, list(range(self.q_first[r], self.q_first[r + 1])), heads)
        return out

    def query_positions(self, kv_head):
        case, out = self.case, []
        for r, n in enumerate(case["q_len"]):
            kv_len = case["kv_len"][r * self.kv_heads + kv_head] if self.per_head else case["kv_len"][r]
            first = case["q_pos0"][r] if "q_pos0" in case else kv_len - n
            out += [first + i for i in range(n)]
        return np.array(case.get("q_pos", out), dtype=np.int64)

    def mask_bit(self, r, i, column):
        kind, seed = self.case.get("mask", "none"), self.seed
        if kind == "none":
            return True
        line = bits(seed, "mask", r * PER_REQUEST + i)
        if kind == "empty_rows" and line % 2 == 0:
            return False
        if kind == "corner":
            return i < self.case["q_len"][r] // 2 and column < self.case["kv_len"][r] // 2
        if kind == "stripes":
            return column // 64 % 3 != 1
        if kind == "tree":
            context = self.case["kv_len"][r] - self.case["q_len"][r]
            token, path = i, set()
            while token >= 0:
                path.add(token)
                token = bits(seed, "tree", r * PER_REQUEST + token) % (token + 1) - 1
            return column < context or column - context in path
        return mix64((line + column) & MASK64) % 100 < self.case.get("mask_percent", 70)


def rotation(rope, dim, pos):
    """The dim x dim matrix that RoPE applies to a vector at `pos`."""
    turn = np.eye(dim)
    n = rope.get("rotary_dim", 0) or dim
    theta, scaling = rope.get("theta", 10000.0), rope.get("scaling", 1.0)
    low, high, context = rope.get("low_freq_factor", 0.0), rope.get("high_freq_factor", 0.0), rope.get("original_context", 8192.0)
    for i in range(n // 2):
        freq = theta ** (-2.0 * i / n)
        if high > 0:
            wavelength = 2 * np.pi / freq
            if wavelength > context / low:
                freq = freq / scaling
            elif wavelength >= context / high:
                smooth = (context / wavelength - low) / (high - low)
                freq = (1 - smooth) * freq / scaling + smooth * freq
        else:
            freq = freq / scaling
        a, b = (2 * i, 2 * i + 1) if rope["mode"] == "interleaved" else (i, i + n // 2)
        c, s = np.cos(pos * freq), np.sin(pos * freq)
        turn[a, a], turn[a, b], turn[b, a], turn[b, b] = c, -s, s, c
    return turn


def attend(case):
    step, spec, seed = Step(case), case["spec"], case["seed"]
    variant = spec.get("variant", {})
    heads, kv_heads, dqk, dvo = (spec[k] for k in ("num_qo_heads", "num_kv_heads", "head_dim_qk", "head_dim_vo"))
    tokens = step.q_first[-1]
    columns = step.columns()
    kv_type = spec.get("kv_dtype", "f32")
    q = to_type([[[case.get("q_gain", 1.0) * value(seed, "q", (t * heads + h) * dqk + d) for d in range(dqk)] for h in range(heads)]
                 for t in range(tokens)], spec.get("q_dtype", "f32"))

    def kv(stream, dim, h):
        rows = [[value(seed, stream, (c["slot"] * kv_heads + h) * dim + d) for d in range(dim)] for c in columns]
        return to_type(np.array(rows).reshape(len(columns), dim), kv_type)

    request_of = [r for r, n in enumerate(case["q_len"]) for _ in range(n)]
    pos_k = np.array([c["pos"] for c in columns], dtype=np.int64)
    prefix = np.array(case.get("prefix", [0] * len(case["q_len"])))[request_of] if tokens else np.zeros(0)
    allowed_by_mask = np.array([[step.mask_bit(request_of[t], t - step.q_first[request_of[t]], c["index"]) if t in c["tokens"] else False
                                 for c in columns] for t in range(tokens)]).reshape(tokens, len(columns))
    f32 = lambda x: float(np.float32(x))
    sm_scale = f32(spec.get("sm_scale", 0.0)) or f32(1.0 / np.sqrt(dqk))
    rng = variant.get("range", {})
    o, lse = np.zeros((tokens, heads, dvo)), np.zeros((tokens, heads))
    for h in range(heads):
        g = h // (heads // kv_heads)
        pos_q = step.query_positions(g)
        k = kv("k", dqk, g)
        v = k[:, :dvo] if case.get("placement") == "mla" else kv("v", dvo, g)
        qh = q[:, h]
        if "rope" in variant:
            qh = np.array([rotation(variant["rope"], dqk, p) @ x for p, x in zip(pos_q, qh)]).reshape(tokens, dqk)
            k = np.array([rotation(variant["rope"], dqk, p) @ x for p, x in zip(pos_k, k)]).reshape(len(columns), dqk)
        k_scale, v_scale = f32(case.get("k_scale", 1.0)), f32(case.get("v_scale", 1.0))
        if case.get("scale_per_head"):
            b = bits(seed, "scale", g)
            k_scale = f32(np.float32(k_scale) * np.float32(1 + b % 1024 / 1024))
            v_scale = f32(np.float32(v_scale) * np.float32(1 + b // 1024 % 1024 / 1024))
        s = sm_scale * f32(case.get("q_scale", 1.0)) * k_scale * (qh @ k.T)
        if variant.get("alibi"):
            slope = (1 + bits(seed, "alibi", h) % 32) / 64 * case.get("alibi_gain", 1.0)
            s = s + slope * (pos_k[None, :] - pos_q[:, None])
        if variant.get("soft_cap", 0.0) > 0:
            s = variant["soft_cap"] * np.tanh(s / variant["soft_cap"])
        distance = pos_q[:, None] - pos_k[None, :]
        keep = np.ones_like(distance, dtype=bool)
        if rng.get("causal"):
            keep &= distance >= 0
        if rng.get("left", -1) >= 0:
            keep &= distance <= rng["left"]
        if rng.get("right", -1) >= 0:
            keep &= -distance <= rng["right"]
        keep |= pos_k[None, :] < prefix[:, None]
        keep &= allowed_by_mask & np.array([g in c["heads"] for c in columns], dtype=bool)[None, :]
        if variant.get("reduction") == "sum":
            o[:, h] = np.where(keep, 1 / (1 + np.exp(-(s + variant.get("sigmoid_bias", 0.0)))), 0.0) @ (v_scale * v)
            continue
        s = np.where(keep, s, -np.inf)
        if variant.get("sink") and not case.get("bare_state"):  # one more column, whose value is nothing
            s = np.concatenate([s, np.full((tokens, 1), 2 * value(seed, "sink", h))], axis=1)
            v = np.concatenate([v, np.zeros((1, dvo))])
        if s.shape[1] == 0:
            lse[:, h] = -np.inf
            continue
        top = s.max(axis=1, keepdims=True)
        weight = np.where(np.isinf(top), 0.0, np.exp(s - np.where(np.isinf(top), 0.0, top)))
        total = weight.sum(axis=1, keepdims=True)
        o[:, h] = weight @ (v_scale * v) / np.where(total > 0, total, 1.0)
        with np.errstate(divide="ignore"):
            lse[:, h] = (np.log(total) + np.where(np.isinf(top), 0.0, top))[:, 0]
    return o, lse


def main():
    cases = json.loads((HERE / "cases.json").read_text())["cases"]
    out = []
    for case in cases:
        o, lse = attend(case)
        out.append({"name": case["name"], "lse": [None if np.isneginf(x) else float(x) for x in lse.ravel()], "o": [float(x) for x in o.ravel()]})
    path = HERE / "golden.json"
    if "--check" in sys.argv:
        old = json.loads(path.read_text())["cases"]
        worst = max((abs(a - b) for new, was in zip(out, old, strict=True) for a, b in zip(new["o"], was["o"], strict=True)), default=0.0)
        print(f"{len(out)} cases, largest difference {worst:.3g}")
        sys.exit(worst > 1e-13)
    lines = ",\n".join(json.dumps(c) for c in out)
    path.write_text('{"about": "Written by make_golden.py; lse null is minus infinity.", "cases": [\n' + lines + "\n]}\n")
    print(f"{path}: {len(out)} cases, {path.stat().st_size} bytes")


main()
