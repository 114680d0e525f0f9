"""Attention in float64, written from its definition: what the tests compare with."""

import numpy as np


def attention(
    q,
    k,
    v,
    *,
    causal=False,
    window_left=-1,
    window_right=-1,
    sm_scale=None,
    soft_cap=0.0,
    slopes=None,
    sink=None,
    keep=None,
    q_pos=None,
    kv_pos=None,
    sigmoid_bias=None,
    prefix=0,
    logit=None,
):
    """One request. q [n, heads, d], k [m, kv_heads, d], v [m, kv_heads, dv]; keep [n, m] bool; returns o [n, heads, dv], lse [n, heads].

    `logit(score, q_head, q_pos, kv_pos)` changes scores [n, m]. sigmoid_bias: weights are sigmoid(logit + bias), and there is no LSE.
    """
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    n, heads, d = q.shape
    m, kv_heads, _ = k.shape
    q_pos = np.arange(n) + m - n if q_pos is None else np.asarray(q_pos)
    kv_pos = np.arange(m) if kv_pos is None else np.asarray(kv_pos)
    i, j = q_pos[:, None], kv_pos[None, :]
    kept = np.ones((n, m), bool)
    if causal:
        kept &= j <= i
    if window_left >= 0:
        kept &= j >= i - window_left
    if window_right >= 0:
        kept &= j <= i + window_right
    kept |= j < prefix
    if keep is not None:
        kept &= keep
    o = np.zeros((n, heads, v.shape[2]))
    lse = np.full((n, heads), -np.inf)
    for h in range(heads):
        kv_head = h // (heads // kv_heads)
        s = q[:, h] @ k[:, kv_head].T * (1 / np.sqrt(d) if sm_scale is None else sm_scale)
        if slopes is not None:
            s = s + slopes[h] * (j - i)
        if soft_cap:
            s = soft_cap * np.tanh(s / soft_cap)
        if logit is not None:
            s = logit(s, h, i, j)
        if sigmoid_bias is not None:
            o[:, h] = np.where(kept, 1 / (1 + np.exp(-(s + sigmoid_bias))), 0) @ v[:, kv_head]
            continue
        s = np.where(kept, s, -np.inf)
        if sink is not None:
            s = np.concatenate([s, np.full((n, 1), sink[h])], 1)
        top = np.max(s, axis=1, initial=-np.inf, keepdims=True)
        p = np.exp(s - np.where(np.isfinite(top), top, 0))
        total = p.sum(1)
        with np.errstate(divide="ignore"):
            lse[:, h] = np.log(total) + np.where(np.isfinite(top), top, 0)[:, 0]
        o[:, h] = np.divide(p[:, :m] @ v[:, kv_head], total[:, None], out=np.zeros((n, v.shape[2])), where=total[:, None] > 0)
    return o, lse


def rope(x, pos, theta=10000.0, interleaved=False):
    """x [n, heads, d] turned by its positions, the whole head."""
    x = np.asarray(x, np.float64)
    d = x.shape[-1]
    angle = np.asarray(pos, np.float64)[:, None] * theta ** (-2 * np.arange(d // 2) / d)
    cos, sin = np.cos(angle)[:, None], np.sin(angle)[:, None]
    a, b = (x[..., 0::2], x[..., 1::2]) if interleaved else (x[..., : d // 2], x[..., d // 2 :])
    out = np.empty_like(x)
    if interleaved:
        out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
    else:
        out[..., : d // 2], out[..., d // 2 :] = a * cos - b * sin, b * cos + a * sin
    return out


def merge(o, lse):
    """States o [s, rows, heads, d], lse [s, rows, heads] merged over s."""
    o, lse = np.asarray(o, np.float64), np.asarray(lse, np.float64)
    top = np.max(lse, axis=0, initial=-np.inf)
    w = np.exp(lse - np.where(np.isfinite(top), top, 0))
    total = w.sum(0)
    with np.errstate(divide="ignore"):
        merged_lse = np.log(total) + np.where(np.isfinite(top), top, 0)
    merged = np.divide(
        (w[..., None] * np.where(w[..., None] > 0, o, 0)).sum(0), total[..., None], out=np.zeros(o.shape[1:]), where=total[..., None] > 0
    )
    return merged, merged_lse


# ||o - ref|| / ||ref|| by the type that the output is rounded to; fp16 and bf16: half a unit in the last place over a row of like values,
# and inputs are compared as they were rounded. Tensor cores take the weights in 16 bits, so attention on a GPU has the bound of whole tensors that
# cli/check/compare.h states and derives; what has no weights (appends, rotations) has the CPU's everywhere.
TOLERANCE = {"cpu": {"f32": 2e-6, "f16": 3e-4, "bf16": 1.9e-3}, "cuda": {"f16": 3.3e-4 + 2.1e-4, "bf16": 2.6e-3}}


def close(got, wanted, dtype="f32", where="cpu"):
    got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
    assert got.shape == wanted.shape
    finite = np.isfinite(wanted)
    assert np.array_equal(np.isfinite(got), finite)
    assert np.array_equal(got[~finite], wanted[~finite])
    norm = np.linalg.norm(wanted[finite])
    error = np.linalg.norm(got[finite] - wanted[finite])
    assert error <= TOLERANCE[where][dtype] * norm, error / norm
