"""Hugging Face transformers on kvloom: importing this registers its attention implementations.

    import kvloom.transformers

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="kvloom")            # model(...), model.generate(...)
    kvloom.transformers.use_paged(model)                                                        # model.generate_batch(...)

Forward only, on CPUs and GPUs. docs/transformers.md: what is supported, what it saves, and what to choose beside it.
"""

from __future__ import annotations

from transformers import AttentionInterface, AttentionMaskInterface

from ._dense import attention_forward
from ._generate_batch import PAGED_NAMES, flash_name, use_paged
from ._masks import StepMask, attention_mask
from ._paged import paged_attention_forward


def register(name: str = "kvloom") -> None:
    """Registers `name`, and what use_paged(model, name) sets: "paged|name" before transformers 5.19, which users may give, too. Importing this module
    has done so for "kvloom"."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    AttentionInterface.register(f"paged|{name}" if PAGED_NAMES else flash_name(name), paged_attention_forward)


register()

__all__ = ["attention_forward", "attention_mask", "paged_attention_forward", "register", "StepMask", "use_paged"]
