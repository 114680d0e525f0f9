"""use_paged: what makes model.generate_batch run on kvloom, whichever transformers it is.

before 5.19   the name "paged|kvloom" does it
from 5.19 on  generate_batch takes no name but its own and those with "flash" in them, and set_attn_implementation looks for packages behind such names:
              ours is written into the config
from 5.24 on  a model hands its keys to cache.update before attention, which copies all keys of a step side by side: a hook before model.forward
              hands the model a cache whose update leaves them where they are
"""

from __future__ import annotations

import re
import weakref

import torch
import transformers
from transformers.generation.continuous_batching import PagedAttentionCache

import kvloom

from ._paged_layout import REMEDY

PAGED_NAMES = tuple(map(int, re.findall(r"\d+", transformers.__version__)[:2])) < (5, 19)


def flash_name(name: str) -> str:
    return f"{name}_paged_flash"


def use_paged(model: torch.nn.Module, name: str = "kvloom") -> None:
    """Continuous batching of `model` (generate_batch, init_continuous_batching) by kvloom, which reads the paged cache in place; any release of
    transformers. Other ways to run the model want model.set_attn_implementation(..) again. `name`: one that register() was given.

    On a GPU, from transformers 5.19 on, give ContinuousBatchingConfig(use_cuda_graph=False).
    """
    if not hasattr(model, "generate_batch"):
        raise TypeError(f"`model`: expected a model of transformers that has generate_batch, got {type(model).__name__}")
    chosen = f"paged|{name}" if PAGED_NAMES else flash_name(name)
    if chosen not in transformers.AttentionInterface():
        raise ValueError(f"`name`: expected one that kvloom.transformers.register was given, got {name!r}")
    config, text = model.config, model.config.get_text_config()
    # Towers of other kinds stay as they are: they have no paged cache.
    halves = ["", *(key for key in config.sub_configs if getattr(config, key, None) is text)]
    asked = chosen if PAGED_NAMES else name
    model.set_attn_implementation({half: asked for half in halves})  # transformers looks whether the model can do it
    if text._attn_implementation != asked:
        raise kvloom.UnsupportedError(
            f"{type(model).__name__}: expected a model whose attention can be set, got one of transformers {transformers.__version__} that does not use "
            f"AttentionInterface; {REMEDY}"
        )
    if PAGED_NAMES:
        return
    config._attn_implementation = {half: chosen for half in halves}
    if (config._attn_implementation, text._attn_implementation) != (chosen, chosen):
        raise kvloom.UnsupportedError(f"use_paged: transformers {transformers.__version__} takes no attn_implementation through a model's config; {REMEDY}")
    if model not in _hooked:
        _hooked.add(model)
        model.register_forward_pre_hook(_hand_over, with_kwargs=True)
        model.register_forward_hook(_look_back, with_kwargs=True)


_hooked: weakref.WeakSet = weakref.WeakSet()


def _hand_over(model, args, kwargs):
    """Before model.forward: the paged cache of a step of generate_batch as one that copies nothing. Nothing else is touched."""
    cache = kwargs.get("cache")
    ours = str(model.config._attn_implementation).endswith(flash_name(""))
    if ours and isinstance(cache, PagedAttentionCache) and not isinstance(cache, InPlace):
        return args, kwargs | {"cache": InPlace(cache)}
    return None


def _look_back(model, args, kwargs, output):
    """After it: whether all keys that were given to the cache came to our attention, which alone writes them."""
    cache = kwargs.get("cache")
    if isinstance(cache, InPlace) and (cache.given != cache.taken or cache.taken == 0):
        raise kvloom.UnsupportedError(
            f"{type(model).__name__}: expected attention of every layer through AttentionInterface, got {cache.taken} of {cache.given} that gave keys to "
            f"the paged cache; {REMEDY}"
        )


class InPlace(PagedAttentionCache):
    """A paged cache whose update moves nothing: it tells the attention function, by what a layer hands through to it, which cache it is."""

    def __init__(self, cache):
        self.kvloom_cache = cache  # all else is asked of it
        self.given = self.taken = 0

    def __getattr__(self, name):
        if name == "kvloom_cache":
            raise AttributeError(name)
        return getattr(self.kvloom_cache, name)

    def update(self, key_states, value_states, layer_idx, kwargs):
        self.given += 1
        kwargs["kvloom_update"] = Update(self, layer_idx, key_states, value_states)
        return key_states, value_states


class Update:
    """What a layer gave its cache."""

    __slots__ = ("cache", "layer", "key", "value")

    def __init__(self, cache, layer, key, value):
        self.cache, self.layer, self.key, self.value = cache, layer, key, value


def cache_of(module, key, value, cache, update) -> tuple:
    """(paged cache, layer) of a call of the attention function; (None, 0) where it has none."""
    layer = getattr(module, "layer_idx", 0)
    if update is not None:
        cache, layer = update.cache, update.layer
        if key is not update.key or value is not update.value:
            raise kvloom.UnsupportedError(
                f"layer {layer}: expected the keys and values that it gave its cache, got others (a latent cache?); run generate_batch with \"sdpa\""
            )
    if not isinstance(cache, InPlace):
        return cache, layer
    cache.taken += 1
    if update is None:  # a release whose attention functions call update
        cache.given += 1
    return cache.kvloom_cache, layer
