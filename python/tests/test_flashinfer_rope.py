"""kvloom.flashinfer: rotary positions, against float64."""

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
import reference
from flashinfer_support import rows
from reference import close

DIM = 32


def frequencies(rotary, theta, scale, llama=None):
    freq = theta ** (-2.0 * np.arange(rotary // 2) / rotary)
    if llama is None:
        return freq / scale
    low, high, context = llama
    wavelength = 2 * np.pi / freq
    smooth = np.clip((context / wavelength - low) / (high - low), 0, 1)
    return (1 - smooth) * freq / scale + smooth * freq


def turned(x, pos, freq, interleaved):
    x = np.array(x, np.float64)
    angle = np.asarray(pos, np.float64)[:, None, None] * freq
    half = len(freq)
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b = x[..., first].copy(), x[..., second].copy()
    x[..., first], x[..., second] = a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)
    return x


INDPTR, OFFSETS = [0, 3, 3, 8], [5, 9, 0]
POS = [5, 6, 7, 0, 1, 2, 3, 4]


@pytest.mark.parametrize("interleave", [False, True])
@pytest.mark.parametrize("rotary_dim", [None, 16])
@pytest.mark.parametrize("form", ["offsets", "positions"])
@pytest.mark.parametrize("llama", [False, True])
def test_rope(rng, fw, interleave, rotary_dim, form, llama):
    q, k = rows(rng, fw, 8, heads=3), rows(rng, fw, 8, heads=1)
    named = {"rotary_dim": rotary_dim, "interleave": interleave, "rope_scale": 4.0, "rope_theta": 500.0}
    freq = frequencies(rotary_dim or DIM, 500.0, 4.0)
    if llama:
        named |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "old_context_len": 64}
        freq = frequencies(rotary_dim or DIM, 500.0, 4.0, (1.0, 4.0, 64))
    name = ("apply_llama31_rope" if llama else "apply_rope") + ("_pos_ids" if form == "positions" else "")
    where = [fw.tensor(POS, "int64")] if form == "positions" else [fw.tensor(x, "int32") for x in (INDPTR, OFFSETS)]
    before = [fw.host(x).copy() for x in (q, k)]
    got = getattr(flashinfer, name)(q, k, *where, **named)
    for x, old, y in zip((q, k), before, got):
        assert np.array_equal(fw.host(x), old)
        close(fw.host(y), turned(old, POS, freq, interleave), "f16")
    assert getattr(flashinfer, name + "_inplace")(q, k, *where, **named) is None
    for x, y in zip((q, k), got):
        assert np.array_equal(fw.host(x), fw.host(y))


def test_defaults_and_strides(rng, fw):
    """FlashInfer's defaults: theta 1e4, halves; q and k within one projection."""
    packed = fw.tensor(rng.standard_normal((8, 5, DIM)), "float16")
    before = fw.host(packed).copy()
    flashinfer.apply_rope_pos_ids_inplace(packed[:, :3], packed[:, 3:4], fw.tensor(POS, "int32"))
    close(fw.host(packed)[:, :4], reference.rope(before[:, :4], POS), "f16")
    assert np.array_equal(fw.host(packed)[:, 4], before[:, 4])
    llama = flashinfer.apply_llama31_rope_pos_ids(packed[:, :3], packed[:, 3:4], fw.tensor(POS, "int32"))
    wanted = turned(fw.host(packed)[:, :3], POS, frequencies(DIM, 5e5, 8.0, (1.0, 4.0, 8192)), False)
    close(fw.host(llama[0]), wanted, "f16")


@pytest.mark.parametrize("is_neox", [False, True])
@pytest.mark.parametrize("rotary", [DIM, 16])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_table(rng, fw, is_neox, rotary, dtype):
    angle = rng.random((10, rotary // 2)) * 6
    table = fw.tensor(np.concatenate([np.cos(angle), np.sin(angle)], 1))
    q, k = rows(rng, fw, 8, dtype, heads=3), rows(rng, fw, 8, dtype, heads=2)
    flat = [x.reshape((8, -1)) for x in (q, k)]
    wanted = []
    for x in (q, k):
        y, half = fw.host(x).copy(), rotary // 2
        cos, sin = np.cos(angle)[POS][:, None], np.sin(angle)[POS][:, None]
        first, second = (slice(0, half), slice(half, rotary)) if is_neox else (slice(0, rotary, 2), slice(1, rotary, 2))
        a, b = y[..., first].copy(), y[..., second].copy()
        y[..., first], y[..., second] = a * cos - b * sin, b * cos + a * sin
        wanted.append(y.reshape(8, -1))
    kind = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}[dtype]
    for got, y in zip(flashinfer.apply_rope_with_cos_sin_cache(fw.tensor(POS, "int64"), *flat, DIM, table, is_neox), wanted):
        assert got.dtype == q.dtype
        close(fw.host(got), y, kind)
    flashinfer.apply_rope_with_cos_sin_cache_inplace(fw.tensor(POS, "int64"), *flat, DIM, table, is_neox)
    for x, y in zip(flat, wanted):
        close(fw.host(x), y, kind)


def test_bad_input(rng, fw):
    q, k = rows(rng, fw, 8, heads=3), rows(rng, fw, 8, heads=1)
    for indptr in ([0, 2, 99], [0, 3, 2], [-1, 2, 3]):
        for given in (indptr, fw.tensor(indptr, "int32")):
            with pytest.raises(ValueError, match=r"`indptr`: expected 0 .. 4 \(the tokens of q\), none below the one before, got \["):
                flashinfer.apply_rope(q[:4], q[:4], given, [0, 0])
    with pytest.raises(ValueError, match="`indptr`: expected one entry more than requests, got none"):
        flashinfer.apply_rope(q[:4], q[:4], [], [])
    with pytest.raises(ValueError, match="`offsets`: expected 3 entries, one a request of `indptr`, got 2"):
        flashinfer.apply_rope(q, k, fw.tensor(INDPTR, "int32"), fw.tensor([1, 2], "int32"))
    with pytest.raises(ValueError, match=r"`k`: expected \[8, heads, head_dim\], got \[7"):
        flashinfer.apply_rope_pos_ids(q, k[:7], fw.tensor(POS, "int32"))
    flat, table = [x.reshape((8, -1)) for x in (q, k)], fw.tensor(np.zeros((5, DIM)))
    with pytest.raises(ValueError, match="`positions`: expected 0 .. 4, rows of cos_sin_cache, got 0 .. 7"):
        flashinfer.apply_rope_with_cos_sin_cache(fw.tensor(POS, "int64"), *flat, DIM, table)
    with pytest.raises(ValueError, match="`cos_sin_cache`: expected float32"):
        flashinfer.apply_rope_with_cos_sin_cache(fw.tensor(POS, "int64"), *flat, DIM, fw.tensor(np.zeros((9, DIM)), "float16"))
    with pytest.raises(ValueError, match=r"`key`: expected \[8, heads \* 32\]"):
        flashinfer.apply_rope_with_cos_sin_cache(fw.tensor(POS, "int64"), flat[0], flat[1][:, :9], DIM, fw.tensor(np.zeros((9, DIM))))
