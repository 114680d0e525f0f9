"""Custom masks of a step, as bits; and the mask that scores several items behind one prompt."""

from __future__ import annotations

from ._arrays import cast, concatenate, contiguous, framework_of, host, indptr_of, is_torch, module_of, placed
from .quantization import packed_segments


def packed_mask(custom_mask, packed_custom_mask, q_len, kv_len, like):
    """The bits (uint8) and their bytes' indptr (int64), both where `like` is; None, None without a mask. q_len, kv_len [requests], on the host."""
    if custom_mask is None and packed_custom_mask is None:
        return None, None
    bits = cast(q_len, "int64") * cast(kv_len, "int64")
    if packed_custom_mask is None:
        if framework_of(custom_mask) == "builtins":
            raise TypeError(f"`custom_mask`: expected a bool tensor, got {type(custom_mask).__name__}")
        count = 1
        for n in custom_mask.shape:
            count *= n
        needed = int(bits.sum())
        if count < needed:
            raise ValueError(f"`custom_mask`: expected {needed} elements, q_len * kv_len of each request one after the other, got {count}")
        # Engines hand over the whole of a buffer, whose front is the step's.
        packed, begins = packed_segments(placed(custom_mask, like).reshape(-1)[:needed], bits, "little")
        return packed, placed(begins, packed)
    packed, begins = placed(packed_custom_mask, like).reshape(-1), indptr_of((bits + 7) // 8)
    if "uint8" not in str(packed.dtype):
        raise TypeError(f"`packed_custom_mask`: expected uint8, got {packed.dtype}; segment_packbits(mask, indptr, bitorder='little') makes it")
    if packed.shape[0] < int(begins[-1]):
        raise ValueError(f"`packed_custom_mask`: expected {int(begins[-1])} bytes, ceil(q_len * kv_len / 8) of each request, got {packed.shape[0]}")
    return packed, placed(begins, packed)


def draft_mask(mask, q_len: list[int], kv_len: list[int]):
    """What XQA's `mask` of draft tokens says: (causal, None) where it keeps of every request the triangle, or everything, else (False, bool, flat).

    mask: uint16 (or uint8, uint32), a row for every row of q: bit j, in words from the lowest, keeps draft token j of the request, whose draft tokens are
    its last q_len keys; keys before them are kept. On the host it is read: what it says chooses the kernel."""
    if not hasattr(mask, "dtype") or not any(str(mask.dtype).endswith(name) for name in ("uint8", "uint16", "uint32")):
        raise TypeError(f"`mask`: expected uint16 [rows of query, words], got {getattr(mask, 'dtype', None) or type(mask).__name__}")
    mask, rows, most = host(mask), sum(q_len), max(q_len, default=0)
    count = 1
    for n in mask.shape:
        count *= n
    if mask.ndim < 2 or count != rows * mask.shape[-1]:
        raise ValueError(f"`mask`: expected {rows} rows of words, one for every row of query, got {list(mask.shape)}")
    xp = module_of(mask)
    octets = contiguous(mask).reshape(rows, mask.shape[-1]).view(xp.uint8)
    width = 8 * octets.shape[-1]
    if width < most:
        raise ValueError(f"`mask`: expected {most} bits a row or more, as many as a request has query tokens, got {width}")
    bits = ((octets[:, :, None] >> xp.asarray(range(8), dtype=xp.uint8)) & 1).reshape(rows, width) != 0
    i, n = (xp.asarray([x for r, m in enumerate(q_len) for x in of(m)], dtype=xp.int64)[:, None] for of in (range, lambda m: [m] * m))
    j = xp.arange(width)[None, :]
    for causal, kept in ((True, j <= i), (False, j >= 0)):
        if bool(((bits == kept) | (j >= n)).all()):
            return causal, None
    parts, begin = [], 0
    for r, (drafts, keys) in enumerate(zip(q_len, kv_len)):
        if keys < drafts:
            raise ValueError(f"`seq_lens`: request {r}: expected {drafts} tokens or more, its draft tokens, got {keys}")
        part = xp.ones((drafts, keys), dtype=bits.dtype)
        part[:, keys - drafts :] = bits[begin : begin + drafts, :drafts]
        parts.append(part.reshape(-1))
        begin += drafts
    return False, concatenate(parts)


def multi_item_mask(q_len, kv_len, prefix_len, token_pos_in_items, token_pos_in_items_len: int):
    """bool, flat: within [prompt, item, item, ...] a token sees the prompt and the tokens of its item before it. token_pos_in_items: of each request,
    padded to token_pos_in_items_len, where in its item each token behind the prompt stands (0: a delimiter, which sees the prompt alone)."""
    q_len, kv_len, prefix_len = ([int(n) for n in cast(host(x), "int64").reshape(-1)] for x in (q_len, kv_len, prefix_len))
    if len(prefix_len) != len(q_len):
        raise ValueError(f"`prefix_len_ptr`: expected [{len(q_len)}], one a request, got {len(prefix_len)}")
    of_items = cast(host(token_pos_in_items), "int64").reshape(-1)
    xp = module_of(of_items)
    masks = []
    for r, (n, m, prefix) in enumerate(zip(q_len, kv_len, prefix_len)):
        begin = r * token_pos_in_items_len
        i, j = xp.arange(m - n, m)[:, None], xp.arange(m)[None, :]
        needed = max(m - prefix, 0)
        if begin + needed > of_items.shape[0]:
            raise ValueError(f"`token_pos_in_items_ptr`: request {r}: expected {needed} entries at {begin}, got {of_items.shape[0]} in all")
        behind = (i - prefix).clip(0, max(needed - 1, 0)) if not is_torch(i) else (i - prefix).clamp(0, max(needed - 1, 0))
        pos = of_items[begin + behind] if needed else 0 * i
        masks.append(((j <= i) & ((i < prefix) | (j < prefix) | (j > i - pos))).reshape(-1))
    return concatenate(masks) if masks else xp.zeros((0,), dtype=xp.bool if is_torch(of_items) else bool)
