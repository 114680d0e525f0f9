"""Where transformers' paged cache keeps a layer's keys: the one place that knows how its releases differ.

before 5.18   a tensor for each layer of a group, [tokens, heads, head_dim]; blocks of one page
from 5.18 on  one tensor for all; an allocator for each type of attention, whose blocks have a page of keys and one of values for each of its layers
"""

from __future__ import annotations

import dataclasses
import weakref

import torch

import kvloom

REMEDY = "docs/transformers.md says which releases of transformers are read; generate_batch with \"sdpa\" needs none of this"


@dataclasses.dataclass(frozen=True, eq=False)
class LayerKeys:
    """A slot (of read_index[group], write_index[group]) is a row of k and v. Every `pitch` rows a page of page_size rows begins."""

    group: int
    k: torch.Tensor  # [rows, heads, head_dim]
    v: torch.Tensor
    k_pages: torch.Tensor  # [pages, page_size, heads, head_dim]
    v_pages: torch.Tensor
    page_size: int
    pitch: int
    window: int  # 1: full attention
    kind: str  # the name of its lengths in cu_seq_lens_k

    def slots_of_pages(self, slots: torch.Tensor) -> torch.Tensor:
        """Slots as kvloom counts them: page * page_size + slot in the page."""
        return slots if self.pitch == self.page_size else slots // self.pitch * self.page_size + slots % self.pitch


_found: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()


def keys_of_layer(cache, layer: int) -> LayerKeys:
    layers = _found.setdefault(cache, {})
    if layer not in layers:
        if hasattr(cache, "layer_index_to_group_indices"):
            layers[layer] = _of_groups(cache, layer)
        elif hasattr(cache, "layer_to_allocator"):
            layers[layer] = _of_allocators(cache, layer)
        else:
            raise kvloom.UnsupportedError(f"paged cache: expected one of groups or of allocators of layers, got another, {type(cache).__name__}; {REMEDY}")
    return layers[layer]


def _of_groups(cache, layer: int) -> LayerKeys:
    group, index = cache.layer_index_to_group_indices[layer]
    size, window = cache.block_size, cache.sliding_windows[layer]
    kind = "full_attention" if window == 1 else "sliding_attention"
    k, v = cache.key_cache[index], cache.value_cache[index]
    return LayerKeys(group, k, v, *(x.unflatten(0, (-1, size)) for x in (k, v)), size, size, window, kind)


def _of_allocators(cache, layer: int) -> LayerKeys:
    allocator = cache.layer_to_allocator[layer]
    kind = getattr(allocator, "layer_type", None) or ("sliding_attention" if hasattr(allocator, "sliding_window") else "full_attention")
    if kind not in ("full_attention", "sliding_attention"):
        raise kvloom.UnsupportedError(f"paged cache: layer {layer}: expected full_attention or sliding_attention, got {kind}; {REMEDY}")
    page, place, layers = allocator.tokens_per_page, allocator.layer_indices.index(layer), len(allocator.layer_indices)
    pool = allocator.cache_tensor
    if pool.dim() != 4 or pool.shape[1] != 2 or not pool.is_contiguous() or allocator.block_physical_stride != 2 * page * layers:
        raise kvloom.UnsupportedError(
            f"paged cache: layer {layer}: expected [tokens, 2, heads, head_dim] in blocks of {2 * page * layers} rows, "
            f"got {list(pool.shape)} in blocks of {allocator.block_physical_stride}; {REMEDY}"
        )
    # A slot is counted from the first row of its layer's first page: a layer's rows begin at that page, those of its values a page behind.
    rows = pool.view(-1, *pool.shape[2:])[2 * place * page :]
    pairs = rows[: len(rows) // (2 * page) * (2 * page)].unflatten(0, (-1, 2, page))
    window = getattr(allocator, "sliding_window", 1)
    return LayerKeys(allocator.index, rows[:-page], rows[page:], pairs[:, 0], pairs[:, 1], page, 2 * page, window, kind)
