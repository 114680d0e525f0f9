"""Hugging Face transformers on kvloom: importing this registers two attention implementations.

    import kvloom.transformers

    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="kvloom")            # model(...), model.generate(...)
    model = AutoModelForCausalLM.from_pretrained(path, attn_implementation="paged|kvloom")      # model.generate_batch(...), transformers before 5.18

Forward only, on CPUs and GPUs. docs/transformers.md: what is supported, what it saves, and what to choose beside it.
"""

from __future__ import annotations

import re

import transformers
from transformers import AttentionInterface, AttentionMaskInterface

from ._dense import attention_forward
from ._masks import StepMask, attention_mask
from ._paged import paged_attention_forward


# transformers 5.18 lays its paged cache out anew; from 5.19 on it takes "paged|" off every name but its own "paged|eager", and lets continuous batching
# run on none but its own implementations.
HAS_PAGED = tuple(map(int, re.findall(r"\d+", transformers.__version__)[:2])) < (5, 18)


def register(name: str = "kvloom") -> None:
    """Registers both implementations, `name` and "paged|name". Importing this module has done so for "kvloom". Where HAS_PAGED is False, the
    second is refused."""
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, attention_mask)
    AttentionInterface.register(f"paged|{name}", paged_attention_forward)


register()

__all__ = ["HAS_PAGED", "attention_forward", "attention_mask", "paged_attention_forward", "register", "StepMask"]
