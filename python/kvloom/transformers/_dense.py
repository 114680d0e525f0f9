"""attn_implementation="kvloom": K and V as transformers' caches have them, [batch, heads, tokens, head_dim]."""

from __future__ import annotations

import torch

import kvloom.torch

from ._masks import StepMask, as_bool, of_tensor, pack
from ._plans import as_sink, planned, refuse, remembered, spec_of


def attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask=None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    is_causal: bool | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """query [batch, heads, q_length, head_dim], key and value [batch, kv_heads, kv_length, head_dim]. Returns out [batch, q_length, heads,
    head_dim_v], and None for the weights. attention_mask: what the mask function made; a 4-D tensor, bool or added; None: by is_causal.

    Keys are read where they are, padding is not read at all, and a step is planned once for all layers that are alike.
    """
    if position_bias is not None:
        raise kvloom.UnsupportedError("`position_bias`: expected None, got a tensor; use eager or sdpa")
    batch, heads, q_length, dim = query.shape
    kv_heads, kv_length, dim_vo = key.shape[1], key.shape[2], value.shape[3]
    is_causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    q = query.transpose(1, 2).reshape(batch * q_length, heads, dim)
    if torch.compiler.is_compiling():
        out = _traced(q, key, value, attention_mask, q_length, scaling, is_causal, softcap, s_aux)
        return out.view(batch, q_length, heads, dim_vo), None
    refuse(query, key, value, dropout)
    step = _step(attention_mask, query, key, sliding_window, is_causal)
    if step.kv_length != kv_length or step.q_length != q_length or step.batch != batch:
        raise ValueError(f"`attention_mask`: expected one for {[batch, q_length, kv_length]} (batch, queries, keys), got {step}")
    sink = as_sink(s_aux)
    k, v, row = _ragged(key, value)
    masked = step.bits is not None
    spec = spec_of(
        heads,
        kv_heads,
        dim,
        dim_vo,
        query.dtype,
        key.dtype,
        None,
        0.0 if scaling is None else scaling,
        step.causal,
        step.window_left,
        step.window_right,
        softcap or 0.0,
        masked,
        sink is not None,
    )
    kept = planned(spec, query.device, None, step, row, batch * q_length, lambda: step.lengths(row))
    out = kept.engine.run(kept.plan, q, k, v, sink=sink, mask=step.bits, mask_indptr=step.indptr)
    return out.view(batch, q_length, heads, dim_vo), None


def _step(mask, query, key, sliding_window, is_causal) -> StepMask:
    if isinstance(mask, StepMask):
        return mask
    batch, q_length, kv_length = query.shape[0], query.shape[2], key.shape[2]
    if mask is not None:
        return remembered(mask, lambda: of_tensor(mask, batch, q_length, kv_length))
    causal = is_causal and q_length > 1  # one query: the last
    window = sliding_window - 1 if sliding_window and is_causal else -1
    return StepMask(batch, q_length, kv_length, kv_length - q_length, causal, window)


def _ragged(key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, int]:
    """K and V as [tokens, heads, head_dim], in place: the token at (b, t) is b * row + t, whatever lies between the rows. Copied where K and V
    are so different that no row serves both."""
    batch, _, length, _ = key.shape

    def row_of(x):
        row, rest = divmod(x.stride(0), x.stride(2)) if x.stride(2) else (0, 1)
        return row if x.stride(3) == 1 and not rest and row >= length else None

    def as_tokens(x, row):
        return x.as_strided(((batch - 1) * row + length, x.shape[1], x.shape[3]), (x.stride(2), x.stride(1), 1))

    if length == 0:
        return key.transpose(1, 2).flatten(0, 1), value.transpose(1, 2).flatten(0, 1), 0
    if batch == 1 and key.stride(3) == value.stride(3) == 1:
        return key[0].transpose(0, 1), value[0].transpose(0, 1), 0
    row = row_of(key)
    if row is None or row_of(value) != row:
        key, value = key.contiguous(), value.contiguous()
        row = key.shape[1] * length
    return as_tokens(key, row), as_tokens(value, row), row


def _traced(q, key, value, mask, q_length, scaling, is_causal, softcap, s_aux):
    """The same for torch.compile, which plans at every layer. None is sdpa's None: causal from the first key on."""
    if isinstance(mask, StepMask):
        raise kvloom.UnsupportedError(
            "`attention_mask`: expected a tensor in compiled code, got a StepMask, made outside; compile what makes the masks, too"
        )
    batch, _, kv_length, _ = key.shape
    k, v = (x.transpose(1, 2).reshape(batch * kv_length, x.shape[1], x.shape[3]) for x in (key, value))
    requests = torch.arange(batch + 1, dtype=torch.int64)
    bits = indptr = q_pos0 = None
    if mask is not None:
        bits, indptr = pack(as_bool(mask)[..., :kv_length].expand(batch, -1, -1, -1))
    causal = mask is None and is_causal and q_length > 1
    if causal:
        q_pos0 = torch.zeros(batch, dtype=torch.int32)
    return kvloom.torch.attention(
        q,
        k,
        v,
        qo_indptr=requests * q_length,
        kv_indptr=requests * kv_length,
        q_pos0=q_pos0,
        causal=causal,
        sm_scale=0.0 if scaling is None else scaling,
        soft_cap=softcap or 0.0,
        sink=None if s_aux is None else s_aux.float(),
        mask=bits,
        mask_indptr=indptr,
    )
