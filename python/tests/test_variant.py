"""Variants: C++ texts, and Python functions traced into them. Each is compared with a formula of the test's own, on real batches."""

import pathlib

import numpy as np
import pytest

import kvloom
import reference
from kvloom import hooks
from reference import close

TEXTS = pathlib.Path(__file__).parents[2] / "examples" / "variants"
f32 = np.float32


@pytest.fixture
def qkv(rng):
    return [rng.standard_normal((n, h, 32), dtype=f32) for n, h in ((12, 4), (40, 2), (40, 2))]


def test_cpp_text(qkv):
    slopes = np.array([0.3, 0.1, -0.2, 0.0], f32)
    wanted = reference.attention(*qkv, causal=True, slopes=slopes)[0]
    variant = kvloom.Variant.from_file(TEXTS / "alibi_slopes.h")
    close(kvloom.attention(*qkv, causal=True, variant=variant, params={"slopes": slopes}), wanted)
    close(kvloom.attention(*qkv, causal=True, variant=variant.text, params={"slopes": slopes}), wanted)
    with pytest.raises(ValueError, match="slopes"):
        kvloom.attention(*qkv, variant=variant)
    with pytest.raises(ValueError, match="slopes: .*wanted 4"):
        kvloom.attention(*qkv, variant=variant, params={"slopes": slopes[:3]})
    with pytest.raises(ValueError, match=r"soft.h:\d+"):
        kvloom.attention(
            *qkv,
            variant=kvloom.Variant("struct A {\n static float logit(float x, const kvloom::Coord&) { return y; }\n};\nKVLOOM_VARIANT(A)", "soft.h"),
        )
    with pytest.raises(OSError):
        kvloom.Variant.from_file("no such file")


def test_cpp_engine(rng):
    """gpt-oss's sinks and a soft cap; a parameter a number, a finish hook."""
    variant = kvloom.Variant.from_file(TEXTS / "soft_cap_sink.h")
    engine = kvloom.Engine(
        kvloom.Spec(num_qo_heads=4, num_kv_heads=2, head_dim=32, page_size=4, variant=variant), max_requests=2, max_query_tokens=4, backend="cpu"
    )
    k, v = (rng.standard_normal((6, 4, 2, 32), dtype=f32) for _ in "kv")
    q, sinks = rng.standard_normal((1, 4, 32), dtype=f32), np.array([1, 0, -1, 2], f32)
    o, lse = engine.run(engine.plan([10], block_table=np.array([[5, 1, 2]])), q, k, v, params={"sinks": sinks, "cap": 3}, return_lse=True)
    keys = [x[[5, 1, 2]].reshape(12, 2, 32)[:10] for x in (k, v)]
    wanted, wanted_lse = reference.attention(q, *keys, soft_cap=3.0, sink=sinks)
    close(o, wanted)
    close(lse, wanted_lse)


def test_score_mod_and_mask_mod(qkv):
    bias = np.linspace(-1, 1, 4 * 64).astype(f32).reshape(4, 64)
    document = np.repeat([0, 1, 2], [9, 20, 11]).astype(np.int32)
    cap = 4.0

    def softcapped_bias(score, b, h, q_idx, kv_idx):
        score = cap * hooks.tanh((score + bias[h, q_idx - kv_idx]) / cap)
        return hooks.where(kv_idx % 3 == 0, score * 2, score)

    def same_document(b, h, q_idx, kv_idx):
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    variant = kvloom.variant(softcapped_bias, same_document)
    assert set(variant.params) == {"bias", "document"} and "struct SoftcappedBias" in variant.text
    wanted = reference.attention(
        *qkv,
        keep=document[28:, None] == document,
        causal=True,
        logit=lambda s, h, i, j: (lambda x: np.where(j % 3 == 0, 2 * x, x))(cap * np.tanh((s + bias[h, np.clip(i - j, 0, 63)]) / cap)),
    )[0]
    close(kvloom.attention(*qkv, variant=variant), wanted)
    # Other arrays at a run, by the same names.
    everywhere = {"document": np.zeros(40, np.int32), "bias": np.zeros((4, 64), f32)}
    wanted = reference.attention(*qkv, causal=True, logit=lambda s, h, i, j: (lambda x: np.where(j % 3 == 0, 2 * x, x))(cap * np.tanh(s / cap)))[0]
    close(kvloom.attention(*qkv, variant=variant, params=everywhere), wanted)


def test_a_traced_variant_in_an_engine(rng):
    """Requests, heads and indices as an engine has them: paged, with a boolean table a request."""
    allowed = rng.random((2, 30)) < 0.6
    allowed[:, 0] = True

    def keep(c):
        return allowed[c.request, c.kv_pos] | (c.q_head == 3) & (c.kv_index < 5)

    def logit(score, c):
        return score - abs(c.q_pos - c.kv_pos) // 2 * weights[c.kv_head]

    weights = np.array([0.25, 0.5], f32)
    variant = kvloom.variant(logit, keep, name="allowed keys")
    engine = kvloom.Engine(
        kvloom.Spec(num_qo_heads=4, num_kv_heads=2, head_dim=32, page_size=4, variant=variant), max_requests=2, max_query_tokens=9, backend="cpu"
    )
    k, v = (rng.standard_normal((20, 4, 2, 32), dtype=f32) for _ in "kv")
    q = rng.standard_normal((6, 4, 32), dtype=f32)
    table, kv_len, indptr = rng.permutation(20)[:14].reshape(2, 7), [25, 11], [0, 2, 6]
    o = engine.run(engine.plan(kv_len, indptr, block_table=table), q, k, v)
    for r in range(2):
        keys = [x[table[r]].reshape(28, 2, 32)[: kv_len[r]] for x in (k, v)]
        rows = slice(indptr[r], indptr[r + 1])
        for h in range(4):
            keep_h = np.broadcast_to(allowed[r, : kv_len[r]] | ((h == 3) & (np.arange(kv_len[r]) < 5)), (indptr[r + 1] - indptr[r], kv_len[r]))
            kv = h // 2
            wanted = reference.attention(
                q[rows, h : h + 1],
                keys[0][:, kv : kv + 1],
                keys[1][:, kv : kv + 1],
                keep=keep_h,
                logit=lambda s, _, i, j: s - abs(i - j) // 2 * weights[kv],
            )[0]
            close(o[rows, h : h + 1], wanted)


def test_parameters_of_ones_own(qkv):
    cap, slopes = hooks.param("cap", low=5, high=20), hooks.param("slopes", "qo_heads", low=0.1, high=0.5)
    variant = kvloom.variant(lambda score, b, h, q_idx, kv_idx: hooks.clip(score, -cap, cap) + slopes[h] * (kv_idx - q_idx), name="clipped")
    s = np.array([0.1, 0.2, 0.3, 0.4], f32)
    for value in (0.5, 2.0):
        wanted = reference.attention(*qkv, logit=lambda x, h, i, j: np.clip(x, -value, value) + s[h] * (j - i))[0]
        close(kvloom.attention(*qkv, variant=variant, params={"cap": value, "slopes": s}), wanted)


def test_arithmetic_is_pythons():
    """Every operator and function, on signed numbers: the check inside of variant() compares them with Python's own."""
    small = np.array([-7, 3, 0, 2, -1, 5], np.int64)

    def everything(score, c):
        i, j = c.q_pos - c.kv_pos, small[c.kv_pos]
        ints = i // 3 + i % 3 + i // -2 + i % -2 + j // i + j % i + abs(i) + (-i) + (i & 6) + (i | 1) + (i ^ 5) + (i << 2) + (i >> 1) + ~i + i**3
        x = score / 4
        floats = (
            hooks.exp(x)
            + hooks.exp2(x)
            + hooks.log(abs(x) + 1)
            + hooks.log2(abs(x) + 2)
            + hooks.sqrt(abs(x))
            + hooks.tanh(x)
            + hooks.sigmoid(x)
            + hooks.sin(x)
            + hooks.cos(x)
            + x**2
            + abs(x) ** 0.5
            + hooks.minimum(x, 0.5)
            + hooks.maximum(x, i)
            + i / 4
        )
        truths = ((i < 2) | (i >= 5)) & ~(j == 3) ^ (i != 1)
        return hooks.where(truths, floats, floats / 2) + ints * 0.01 + (i > 0) * 0.5

    assert "python_floor_divide" in kvloom.variant(everything).text

    def large(score, c):
        return score + ((c.kv_pos + 46341) ** 2 % 7) * 0.1 + ((c.kv_pos + 1) << 31 < 0) * 0.3  # past int32, which wraps

    kvloom.variant(large)


def test_numpy_functions_are_taken():
    a = kvloom.variant(lambda s, c: np.where(np.logical_and(c.kv_pos > 2, c.q_pos < 7), np.tanh(s) * np.float32(2), np.float32(0.5) + s), check=False)
    b = kvloom.variant(lambda s, c: hooks.where((c.kv_pos > 2) & (c.q_pos < 7), hooks.tanh(s) * 2.0, 0.5 + s), check=False)
    assert a.text == b.text


@pytest.mark.parametrize(
    "function, text",
    [
        (lambda s, c: s if c.q_pos > 3 else 0, "has no truth of its own"),
        (lambda s, c: s * (0 <= c.kv_pos < 3), "has no truth of its own"),
        (lambda s, c: max(s, 0.5), "has no truth of its own"),
        (lambda s, c: __import__("math").exp(s), "is no number yet"),
        (lambda s, c: [1, 2, 3][c.kv_pos], "can't index an array that is not a parameter"),
        (lambda s, c: s + np.arange(4.0)[c.kv_pos], "can't index an array that is not a parameter"),
        (lambda s, c: s + np.zeros((4, 4))[c.q_pos, np.minimum(c.kv_pos, 3)], "the array has to be made outside"),
        (lambda s, c: np.zeros(4).__setitem__(c.kv_pos, s), "can't index an array that is not a parameter"),
        (lambda s, c: s + np.take(np.arange(4.0), c.kv_pos), "is no number yet"),
        (lambda s, c: sum(s for _ in range(c.kv_pos)), "nor be a range's end"),
        (lambda s, c: None, "`score_mod`: expected it to return the logit, one value, got NoneType (no return?)"),
        (lambda s, c: (s, 1), "`score_mod`: expected it to return the logit, one value, got tuple"),
        (lambda s, c: s & 1, "`&`: expected bools or ints, got a float and an int"),
        (lambda s, c: ~s, "`~`: expected a bool or an int, got a float"),
        (lambda s, c: s + "a", "expected a number or a value of the trace, got str"),
        (lambda s, c: s + 2**40 * c.kv_pos, "got the integer 1099511627776, wanted 32 bits"),
        (lambda s, c: np.cumsum(s), "numpy.cumsum has no counterpart in a variant"),
        (lambda s, c: sum(s), "is one number, not a sequence"),
        (lambda s, c: hooks.param("x", "any")[s], "x: index 0: expected an int, got a float"),
        (lambda s, c: hooks.param("x", "any", "any")[c.kv_pos], "x: expected 2 indices, one a dimension, got 1"),
    ],
)
def test_faults_name_the_line(function, text):
    with pytest.raises(TypeError) as error:
        kvloom.variant(function)
    assert f"{__file__}:{function.__code__.co_firstlineno}: " in str(error.value) and text in str(error.value)


def test_index_errors_of_the_function_itself():
    """What the library refused before, and the function caught, is not what is wrong here."""

    def function(s, c):
        try:
            s = s + [1.0][c.kv_pos]
        except TypeError:
            pass
        return s + np.ones(2)[5]

    with pytest.raises(IndexError, match="index 5 is out of bounds"):
        kvloom.variant(function)


def test_faults_of_the_call():
    with pytest.raises(TypeError, match="at least one of them"):
        kvloom.variant()
    with pytest.raises(TypeError, match=r"`mask_mod`: expected a function of \(b, h, q_idx, kv_idx\) or of \(c\), got one of 2 arguments"):
        kvloom.variant(mask_mod=lambda a, b: a)
    with pytest.raises(TypeError, match="`mask_mod`: expected it to return whether the key is kept, one value, got list"):
        kvloom.variant(mask_mod=lambda c: [c.kv_pos > 3])
    with pytest.raises(TypeError, match="`score_mod`: expected a function, got int"):
        kvloom.variant(3)
    wide = np.zeros(4)
    with pytest.raises(TypeError, match="`wide`: expected float32, int32, int64, uint8 or bool in 1 to 3 dimensions, got float64"):
        kvloom.variant(lambda s, c: s + wide[c.q_head])
    with pytest.raises(ValueError, match="`x`: two parameters have this name"):
        kvloom.variant(lambda s, c: s + hooks.param("x") + hooks.param("x"))
    with pytest.raises(ValueError, match="expected fewer than about 500 operations"):
        kvloom.variant(lambda s, c: sum((s for _ in range(3000)), s))
    with pytest.raises(AttributeError, match="head"):
        kvloom.variant(lambda s, c: s + c.head)


def test_what_is_no_variant(qkv):
    with pytest.raises(TypeError, match=r"`variant`: expected a Variant, or the text of one, got function; make one of a function by kvloom.variant\("):
        kvloom.attention(*qkv, variant=lambda s, c: s)
    with pytest.raises(TypeError, match="`variant`: expected a Variant, or the text of one, got int$"):
        kvloom.Spec(num_qo_heads=4, head_dim=32, variant=3)
    with pytest.raises(ValueError, match=r"`variant`: expected C\+\+ text, got 'mine.h'; of a file: kvloom.Variant.from_file\(path\)"):
        kvloom.attention(*qkv, variant="mine.h")
    with pytest.raises(ValueError, match="params: slopes: dtype: got float64, wanted float32, int32, int64 or uint8"):
        kvloom.attention(*qkv, variant=kvloom.Variant.from_file(TEXTS / "alibi_slopes.h"), params={"slopes": np.zeros(4)})
    with pytest.raises(TypeError, match="`params`: expected a dict of names and numbers or arrays, got list$"):
        kvloom.attention(*qkv, variant=kvloom.Variant.from_file(TEXTS / "alibi_slopes.h"), params=[np.zeros(4, f32)])


def test_the_check_finds_a_wrong_text(monkeypatch):
    """What kvloom.variant compares would show a fault of the translation."""
    from kvloom import _trace_cpp

    monkeypatch.setitem(_trace_cpp._CALLS, "tanh", "kvloom::sigmoid_of")
    with pytest.raises(kvloom.InternalError, match="its kernel differs from its functions: request 0, query 0, head 0"):
        kvloom.variant(lambda s, c: hooks.tanh(s))
