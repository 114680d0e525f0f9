"""Continuous batching (generate_batch) on transformers' paged cache, read where it is: attn_implementation="paged|kvloom", and what use_paged sets."""

from __future__ import annotations

import torch

import kvloom

from ._generate_batch import cache_of
from ._paged_layout import LayerKeys, keys_of_layer
from ._plans import as_sink, planned, refuse, remembered, spec_of


class PagedStep:
    """The lengths of a batch, on the host: what all layers of a step share."""

    def __init__(self, cu_seq_lens_q, cu_seq_lens_k):
        by_type = cu_seq_lens_k if isinstance(cu_seq_lens_k, dict) else {None: cu_seq_lens_k}
        columns = torch.stack([cu_seq_lens_q, *by_type.values()]).tolist()  # one copy from the device a step
        self.indptr_q = columns[0]
        self.indptr_k = dict(zip(by_type, columns[1:]))
        self.groups: dict[tuple, GroupKeys] = {}

    def of_group(self, cache, layer: LayerKeys, read_index: torch.Tensor, write_index: torch.Tensor) -> GroupKeys:
        name = (cache, layer.group, *(part for x in (read_index, write_index) for part in (x.data_ptr(), len(x), -1 if x.is_inference() else x._version)))
        keys = self.groups.get(name)
        if keys is None:
            indptr_k = self.indptr_k[None if None in self.indptr_k else layer.kind]
            keys = self.groups[name] = GroupKeys(layer, self.indptr_q, indptr_k, read_index, write_index)
        return keys


class GroupKeys:
    """Where the keys of a group of layers are, in one of four ways:

    "new"     nothing is in the cache yet: the step's own keys are all keys
    "blocks"  full attention: the cache's blocks are pages
    "slots"   a sliding window's ring of slots, after the new keys were written: pages of one token
    "copy"    a chunk of a prompt that overwrites slots which its own first rows still read: old and new keys side by side, copied
    """

    def __init__(self, layer: LayerKeys, indptr_q: list[int], indptr_k: list[int], read_index: torch.Tensor, write_index: torch.Tensor):
        kv_len = [e - b for b, e in zip(indptr_k, indptr_k[1:])]
        q_len = [e - b for b, e in zip(indptr_q, indptr_q[1:])]
        self.tokens = indptr_q[-1]
        self.page_size = None
        self.pages = None
        self.slots = layer.slots_of_pages(write_index)
        lists = indptr_k[:-1]
        if read_index.numel() == 0:
            self.way = "new"
        elif layer.window == 1:
            self.way, self.page_size = "blocks", layer.page_size
            counts = [-(-n // layer.page_size) for n in kv_len]
            first = [b + i * layer.page_size for b, n in zip(indptr_k, counts) for i in range(n)]
            first = torch.tensor(first, dtype=torch.int64).to(read_index.device, non_blocking=True)
            self.pages = read_index[first] // layer.pitch
            lists = [0]
            for n in counts[:-1]:
                lists.append(lists[-1] + n)
        else:
            # Where the new keys are in the lists, in the order of write_index.
            new = [i for e, n in zip(indptr_k[1:], q_len) for i in range(e - n, e)]
            self.new = torch.tensor(new, dtype=torch.int64).to(read_index.device, non_blocking=True)
            self.old = read_index[: indptr_k[-1]]
            if all(n <= layer.window for n in kv_len):
                self.way, self.page_size = "slots", 1
                self.pages = self.old.index_copy(0, self.new, write_index[: len(new)])
            else:
                self.way = "copy"
        self.lengths = {"kv_len": kv_len, "qo_indptr": indptr_q, "list_indptr": lists}
        if self.pages is not None:
            self.lengths["pages"] = self.pages

    def side_by_side(self, pool: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
        """All keys of the step, copied: those of the pool, and the new ones, which are not in it yet."""
        return pool.index_select(0, self.old).index_copy_(0, self.new, new[: self.tokens].to(pool.dtype))


def paged_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask=None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    cache=None,
    cu_seq_lens_q: torch.Tensor | None = None,
    cu_seq_lens_k=None,
    read_index: list[torch.Tensor] | None = None,
    write_index: list[torch.Tensor] | None = None,
    block_table: torch.Tensor | None = None,
    kvloom_update=None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """query [1, heads, tokens, head_dim], key and value [1, kv_heads, tokens, head_dim], and what continuous batching hands over. Writes key and
    value into the cache. Returns out [1, tokens, heads, head_dim], and None for the weights."""
    cache, layer_idx = cache_of(module, key, value, cache, kvloom_update)
    if cache is None and cu_seq_lens_q is not None:
        raise kvloom.UnsupportedError(
            f"{type(module).__name__}: expected a layer that hands its keys to the paged cache, got one without it; call kvloom.transformers.use_paged(model) "
            "for the model whose generate_batch is called, or run layers that share keys of others with \"sdpa\""
        )
    if cache is None or cu_seq_lens_q is None or cu_seq_lens_k is None or read_index is None or write_index is None:
        raise kvloom.UnsupportedError('"paged|kvloom" is for generate_batch, got a forward pass without its cache; use attn_implementation="kvloom"')
    if block_table is not None:
        raise kvloom.UnsupportedError("`block_table`: expected None, got a tensor; give ContinuousBatchingConfig(max_blocks_per_request=0)")
    if torch.compiler.is_compiling() or (query.is_cuda and torch.cuda.is_current_stream_capturing()):
        raise kvloom.UnsupportedError(
            '"paged|kvloom" plans every step on the host, got one that is compiled or captured; give '
            "ContinuousBatchingConfig(use_cuda_graph=False) and no compile config"
        )
    refuse(query, key, value, dropout)
    # A step's lengths are one object for all its layers.
    step = remembered(cu_seq_lens_q, lambda: PagedStep(cu_seq_lens_q, cu_seq_lens_k))
    layer = keys_of_layer(cache, layer_idx)
    keys = step.of_group(cache, layer, read_index[layer.group], write_index[layer.group])
    new_k, new_v = k, v = key[0].transpose(0, 1), value[0].transpose(0, 1)
    if keys.way == "copy":
        k, v = keys.side_by_side(layer.k, k), keys.side_by_side(layer.v, v)
    kvloom.append_kv(new_k, new_v, layer.k_pages, layer.v_pages, slots=keys.slots)
    if keys.way == "blocks":
        k, v = layer.k_pages, layer.v_pages
    elif keys.way == "slots":
        k, v = layer.k.unsqueeze(1), layer.v.unsqueeze(1)
    q = query[0].transpose(0, 1)
    sink = as_sink(s_aux)
    spec = spec_of(
        q.shape[1],
        k.shape[-2],
        q.shape[2],
        v.shape[-1],
        q.dtype,
        k.dtype,
        keys.page_size,
        0.0 if scaling is None else scaling,
        True,
        layer.window - 1 if layer.window > 1 else -1,
        -1,
        softcap or 0.0,
        False,
        sink is not None,
    )
    kept = planned(spec, q.device, layer.group, keys, None, keys.tokens, lambda: keys.lengths)
    if q.shape[0] == keys.tokens:
        out = kept.engine.run(kept.plan, q, k, v, pages=keys.pages, sink=sink)
    else:  # padded: rows behind the last request are nobody's
        out = q.new_zeros(q.shape[0], q.shape[1], v.shape[-1])
        kept.engine.run(kept.plan, q[: keys.tokens], k, v, pages=keys.pages, sink=sink, out=out[: keys.tokens])
    return out.unsqueeze(0), None
