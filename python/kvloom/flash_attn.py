"""Functions with the names, arguments, shapes and conventions of flash-attn 2, forward only, on CPUs and GPUs, for tensors of any framework.

    from kvloom.flash_attn import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

LSE is the natural logarithm, [batch, heads, seqlen] (varlen: [heads, total_q]). A row that keeps no key gives 0 (LSE -inf). Not there, and refused:
dropout, cache_leftpad. Lengths on a GPU are copied to the host, which waits for them: kvloom.Engine plans from the host's own.
ALiBi without `causal`, or with slopes for every batch entry, is a variant, compiled once by the machine's C++ compiler.
"""

from __future__ import annotations

import math
import operator

from . import _core
from ._engines import engine_for
from ._errors import UnsupportedError
from ._frameworks import empty, flattened, int_column, int_list, on_host, rotated, to_device
from ._ops import append_kv
from ._spec import Spec, Variant

_ALIBI = Variant(
    """\
// flash-attn's ALiBi: -slope * |i + seqlen_k - seqlen_q - j|, with slopes for every request and head.
struct FlashAlibi {
  struct Params {
    kvloom::Array<float, kvloom::dim::requests, kvloom::dim::qo_heads> slopes;
    KVLOOM_PARAMS(KVLOOM_PARAM(slopes, 0.01, 0.5))
  };
  static float logit(float score, const kvloom::Coord& c, const Params& p) {
    const int32_t distance = c.kv_pos - c.q_pos;
    return score - p.slopes(c.request, c.q_head) * float(distance < 0 ? -distance : distance);
  }
};
KVLOOM_VARIANT(FlashAlibi)
""",
    "flash_alibi",
)


def _facts(tensor, name: str, rank: int, wanted: str):
    dims, dtype = _core.shape_and_dtype(tensor, name)
    if len(dims) != rank:
        raise ValueError(f"`{name}`: expected {wanted}, got {list(dims)}")
    return dims, dtype


def _number(value, name: str, otherwise: str) -> float:
    """A finite number from 0; None counts as 0, which stands for `otherwise`."""
    if value is None:
        return 0.0
    try:
        number = math.nan if isinstance(value, (str, bytes)) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0.0 <= number < math.inf:
        kind = ValueError if isinstance(value, (int, float)) else TypeError
        raise kind(f"`{name}`: expected a finite number above 0, or None for {otherwise}, got {value!r}")
    return number


def _window(window_size) -> tuple[int, int]:
    try:
        left, right = map(operator.index, window_size)
    except (TypeError, ValueError):
        raise TypeError(
            f"`window_size`: expected (left, right), two ints with -1 for no bound, got {window_size!r}; keys on one side alone: (3, -1), with causal (3, 0)"
        ) from None
    return left, right


def _starts(x, name: str, most: int | None, tensor: str) -> list[int]:
    """[batch + 1]: where each sequence begins and the last one ends, among the `most` rows of `tensor`."""
    try:
        starts = list(map(operator.index, int_list(x)))
    except (TypeError, ValueError):
        raise TypeError(f"`{name}`: expected ints [batch + 1], got {x!r}") from None
    if not starts or starts[0] != 0 or any(b < a for a, b in zip(starts, starts[1:])):
        raise ValueError(f"`{name}`: expected [batch + 1] ints that begin at 0 and never fall, got {starts[:8]}{'..' if len(starts) > 8 else ''}")
    if most is not None and starts[-1] > most:
        raise ValueError(f"`{name}`: expected an end of at most {most}, the rows of `{tensor}`, got {starts[-1]}; give the sums of the lengths that `{tensor}` has")
    return starts


def _spec(q_heads, kv_heads, q_dims, v_dims, dtype, kv_dtype, *, page_size, softmax_scale, causal, window_size, softcap, alibi, variant):
    left, right = _window(window_size)
    return Spec(
        num_qo_heads=q_heads,
        num_kv_heads=kv_heads,
        head_dim=q_dims[-1],
        head_dim_vo=v_dims[-1],
        dtype=dtype,
        kv_dtype=kv_dtype,
        page_size=page_size,
        sm_scale=_number(softmax_scale, "softmax_scale", "1 / sqrt(head_dim)"),
        causal=causal,
        window_left=max(left, -1),
        window_right=-1 if causal else max(right, -1),
        soft_cap=_number(softcap, "softcap", "none"),
        alibi=alibi,
        variant=variant,
    )


def _alibi(slopes, requests: int, heads: int, causal: bool):
    """Which of the two ALiBis: (library's, variant, tensors of a run)."""
    if slopes is None:
        return False, None, {}
    dims = tuple(slopes.shape)
    if dims not in ((heads,), (requests, heads)):
        raise ValueError(f"`alibi_slopes`: expected [{heads}] or [{requests}, {heads}], got {list(dims)}")
    if causal and len(dims) == 1:
        return True, None, {"alibi_slopes": slopes}
    if len(dims) == 1:
        slopes = slopes[None].repeat(requests, 0) if hasattr(slopes, "__array_struct__") else slopes[None].expand(requests, heads)
    return False, _ALIBI, {"params": {"slopes": slopes}}


def _attend(q, k, v, spec_fields, alibi_slopes, lengths, requests, tokens, q_dims, v_dims, kv_heads, want_lse, run_pages=None):
    """One step: q [tokens, heads, dim]. Returns out and lse [tokens, heads] or None."""
    if spec_fields.pop("dropout_p", 0.0):
        raise UnsupportedError("`dropout_p`: kvloom is for serving, got a dropout other than 0; give 0.0")
    (_, q_dtype), (_, kv_dtype) = _core.shape_and_dtype(q, "q"), _core.shape_and_dtype(k, "k")
    library, variant, extra = _alibi(alibi_slopes, requests, q_dims[-2], spec_fields["causal"])
    spec = _spec(q_dims[-2], kv_heads, q_dims, v_dims, q_dtype, kv_dtype, alibi=library, variant=variant, **spec_fields)
    device = _core.gpu_of(q, "q")
    ids_on_gpu = run_pages is not None and _core.gpu_of(run_pages, "block_table") is not None
    engine = engine_for(spec, device, requests, tokens, check_pages=not ids_on_gpu)
    plan = engine.plan(**lengths)
    if run_pages is not None and device is not None:
        extra["pages"] = to_device(run_pages, q)
    result = engine.run(plan, q, k, v, return_lse=want_lse, **extra)
    return result if want_lse else (result, None)


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q [batch, seqlen_q, heads, head_dim]; k, v [batch, seqlen_k, kv_heads, head_dim]. Returns out [batch, seqlen_q, heads, head_dim_v]; with
    return_attn_probs (out, lse [batch, heads, seqlen_q], None). Causal is bottom-right aligned; window_size (left, right), -1: no bound.
    """
    q_dims, _ = _facts(q, "q", 4, "[batch, seqlen, heads, head_dim]")
    k_dims, _ = _facts(k, "k", 4, "[batch, seqlen, heads, head_dim]")
    v_dims, _ = _facts(v, "v", 4, "[batch, seqlen, heads, head_dim]")
    batch, seqlen_q, seqlen_k = q_dims[0], q_dims[1], k_dims[1]
    if k_dims[0] != batch or v_dims[:3] != k_dims[:3]:
        raise ValueError(f"`k`, `v`: expected [{batch}, seqlen, heads, head_dim], both alike, got {list(k_dims)} and {list(v_dims)}")
    fields = {
        "page_size": None,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window_size": window_size,
        "softcap": softcap,
        "dropout_p": dropout_p,
    }
    lengths = {
        "kv_len": [seqlen_k] * batch,
        "qo_indptr": range(0, batch * seqlen_q + 1, seqlen_q) if seqlen_q else [0] * (batch + 1),
        "list_indptr": range(0, batch * seqlen_k + 1, seqlen_k) if seqlen_k else [0] * (batch + 1),
    }
    flat = [flattened(x, dims, name) for x, dims, name in ((q, q_dims, "q"), (k, k_dims, "k"), (v, v_dims, "v"))]
    out, lse = _attend(*flat, fields, alibi_slopes, lengths, batch, batch * seqlen_q, q_dims, v_dims, k_dims[2], return_attn_probs)
    out = out.reshape((batch, seqlen_q, q_dims[2], v_dims[3]))
    if not return_attn_probs:
        return out
    return out, lse.reshape((batch, seqlen_q, q_dims[2])).swapaxes(1, 2), None


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q=None,
    max_seqlen_k=None,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """q [total_q, heads, head_dim]; k, v [total_k, kv_heads, head_dim], or with block_table [batch, entries] pages [pages, page_size, kv_heads,
    head_dim]; cu_seqlens_q, cu_seqlens_k [batch + 1]. max_seqlen_* are not needed. Returns out [total_q, heads, head_dim_v]; with return_attn_probs
    (out, lse [heads, total_q], None).
    """
    paged = block_table is not None
    kv_shape = "[pages, page_size, heads, head_dim]" if paged else "[total_k, heads, head_dim]"
    q_dims, _ = _facts(q, "q", 3, "[total_q, heads, head_dim]")
    k_dims, _ = _facts(k, "k", 4 if paged else 3, kv_shape)
    v_dims, _ = _facts(v, "v", 4 if paged else 3, kv_shape)
    starts_q = _starts(cu_seqlens_q, "cu_seqlens_q", q_dims[0], "q")
    starts_k = _starts(cu_seqlens_k, "cu_seqlens_k", None if paged else k_dims[0], "k")
    if len(starts_q) != len(starts_k):
        raise ValueError(f"`cu_seqlens_q`, `cu_seqlens_k`: expected [batch + 1] both, got {len(starts_q)} and {len(starts_k)} entries")
    fields = {
        "page_size": k_dims[1] if paged else None,
        "softmax_scale": softmax_scale,
        "causal": causal,
        "window_size": window_size,
        "softcap": softcap,
        "dropout_p": dropout_p,
    }
    lengths = {"kv_len": [b - a for a, b in zip(starts_k, starts_k[1:])], "qo_indptr": starts_q}
    lengths |= {"block_table": block_table} if paged else {"list_indptr": starts_k}
    out, lse = _attend(
        q, k, v, fields, alibi_slopes, lengths, len(starts_q) - 1, q_dims[0], q_dims, v_dims, k_dims[-2], return_attn_probs, block_table
    )
    return (out, lse.swapaxes(0, 1), None) if return_attn_probs else out


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Attention over a cache, which first gains k and v, in place.

    q                 [batch, seqlen_q, heads, head_dim]
    k_cache, v_cache  [batch_cache, seqlen_cache, kv_heads, head_dim], or with block_table [batch, entries] pages
                      [pages, page_size, kv_heads, head_dim]
    k, v              [batch, seqlen_new, kv_heads, head_dim]: written at cache_seqlens, and attended to
    cache_seqlens     an int or [batch]: tokens in the cache before k; None: the whole cache
    cache_batch_idx   [batch]: which entry of the cache each one has
    rotary_cos, _sin  [seqlen_ro, rotary_dim / 2]: q and k are turned, q at cache_seqlens + i (without causal and window: all at cache_seqlens)
    num_splits        not needed: the planner splits

    Returns out [batch, seqlen_q, heads, head_dim_v], or (out, lse [batch, heads, seqlen_q]).
    """
    if cache_leftpad is not None:
        raise UnsupportedError("`cache_leftpad`: expected None, got a tensor; make a page table that begins behind the padding")
    q_dims, q_dtype = _facts(q, "q", 4, "[batch, seqlen, heads, head_dim]")
    cache_shape = "[batch_cache, seqlen_cache, heads, head_dim], or pages [pages, page_size, heads, head_dim]"
    k_dims, _ = _facts(k_cache, "k_cache", 4, cache_shape)
    v_dims, _ = _facts(v_cache, "v_cache", 4, cache_shape)
    batch, seqlen_q = q_dims[:2]
    if block_table is not None and cache_batch_idx is not None:
        raise ValueError("`cache_batch_idx`: expected None with `block_table`, which says where each entry's tokens are")
    if (k is None) != (v is None):
        raise ValueError("`k`, `v`: expected both or neither")
    if cache_seqlens is None:
        if block_table is not None or k is not None:
            raise ValueError("`cache_seqlens`: expected the tokens of each entry, with `block_table` or `k`, got None")
        cache_seqlens = k_dims[1]
    before = [cache_seqlens] * batch if isinstance(cache_seqlens, int) else int_list(cache_seqlens)
    if len(before) != batch:
        raise ValueError(f"`cache_seqlens`: expected {batch} entries, got {len(before)}")
    if batch == 0:
        out = empty(q, (0, seqlen_q, q_dims[2], v_dims[3]), q_dtype)
        return (out, empty(q, (0, q_dims[2], seqlen_q), "f32")) if return_softmax_lse else out
    table = block_table
    if table is None:  # an entry of the cache is a page
        entries = int_list(cache_batch_idx) if cache_batch_idx is not None else list(range(batch))
        if len(entries) != batch:
            raise ValueError(f"`cache_batch_idx`: expected {batch} entries, got {len(entries)}")
        table = int_column(entries)
    new = 0
    turns_one_by_one = causal or _window(window_size) != (-1, -1)
    rotary = (rotary_cos, rotary_sin, rotary_interleaved) if rotary_cos is not None else None
    if rotary is not None:
        positions = [n + (i if turns_one_by_one else 0) for n in before for i in range(seqlen_q)]
        q = rotated(q, positions, *rotary)
    if k is not None:
        new_dims, _ = _facts(k, "k", 4, "[batch, seqlen_new, heads, head_dim]")
        _facts(v, "v", 4, "[batch, seqlen_new, heads, head_dim]")
        if new_dims[0] != batch:
            raise ValueError(f"`k`: expected [{batch}, seqlen_new, heads, head_dim], got {list(new_dims)}")
        new = new_dims[1]
        if rotary is not None:
            k = rotated(k, [n + i for n in before for i in range(new)], *rotary)
        _append(k, v, k_cache, v_cache, before, new, table)
    fields = {"page_size": k_dims[1], "softmax_scale": softmax_scale, "causal": causal, "window_size": window_size, "softcap": softcap}
    lengths = {
        "kv_len": [n + new for n in before],
        "block_table": table,
        "qo_indptr": range(0, batch * seqlen_q + 1, seqlen_q) if seqlen_q else [0] * (batch + 1),
    }
    flat = flattened(q, q_dims, "q")
    out, lse = _attend(
        flat, k_cache, v_cache, fields, alibi_slopes, lengths, batch, batch * seqlen_q, q_dims, v_dims, k_dims[2], return_softmax_lse, table
    )
    out = out.reshape((batch, seqlen_q, q_dims[2], v_dims[3]))
    return (out, lse.reshape((batch, seqlen_q, q_dims[2])).swapaxes(1, 2)) if return_softmax_lse else out


def _append(k, v, k_cache, v_cache, before, new, table):
    batch = len(before)
    pos = [n + i for n in before for i in range(new)]
    request = [r for r in range(batch) for _ in range(new)]
    flat = [flattened(x, x.shape, name) for x, name in ((k, "k"), (v, "v"))]
    if _core.gpu_of(k_cache, "k_cache") is None:
        return append_kv(*flat, k_cache, v_cache, request=request, pos=pos, block_table=table)
    dims, _ = _core.shape_and_dtype(k_cache, "k_cache")
    slots = memoryview(bytearray(8 * max(len(pos), 1))).cast("q")[: len(pos)]
    _core.append_slots(request, pos, None, None, on_host(table), dims[1], dims[0], slots)
    append_kv(*flat, k_cache, v_cache, slots=to_device(slots, k_cache))


__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]
