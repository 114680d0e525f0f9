"""jit_args: variants of one's own.

FlashInfer's are CUDA sources for its own kernels. Here a variant is a text with hooks (docs/variants.md), which runs on every kernel and on the CPU;
it stands where FlashInfer has variant_decl. Of FlashInfer's own declarations those that name what kvloom has are known: DefaultAttention<...> and
AttentionSink."""

from __future__ import annotations

import re
import typing

from .._errors import UnsupportedError
from .._spec import Variant

_WELL_KNOWN = (
    "maybe_custom_mask",
    "maybe_mask_indptr",
    "maybe_alibi_slopes",
    "maybe_prefix_len_ptr",
    "maybe_token_pos_in_items_ptr",
    "maybe_max_item_len_ptr",
)
_WELL_KNOWN_SCALARS = ("logits_soft_cap", "rope_rcp_scale", "rope_rcp_theta", "token_pos_in_items_len")


class Custom(typing.NamedTuple):
    """variant: a text of one's own, or None. tensors, scalars: names of what run's positional arguments are."""

    variant: Variant | None
    tensors: tuple
    scalars: tuple
    sink: bool

    def names(self) -> list[str]:
        """Of a run's positional arguments: those that no wrapper knows by itself."""
        return [n for n in self.tensors if n not in _WELL_KNOWN] + [n for n in self.scalars if n not in _WELL_KNOWN_SCALARS]

    def take(self, wrapper, args, sinks):
        """Positional arguments of a run as (those that are left, sinks, params)."""
        names = self.names()
        if len(args) != len(names):
            raise TypeError(
                f"run: expected {len(names)} positional arguments behind the cache, {', '.join(names) or 'none'}, as jit_args says, got {len(args)}"
            )
        params = dict(zip(names, args))
        if "sm_scale" in params:
            wrapper._sm_scale = float(params.pop("sm_scale"))
        if self.sink:
            sinks = params.pop("sink")
        return (), sinks, params or None


def custom_of(jit_args, jit_kwargs=None, with_index_type: bool = True) -> Custom | None:
    """[uri, dtype_q, dtype_kv, dtype_o, idtype, head_dim_qk, head_dim_vo, tensor names, tensor dtypes, scalar names, scalar dtypes, variant name, variant
    declaration]; functions of one request have no idtype."""
    if jit_args is None:
        return None
    wanted = 13 if with_index_type else 12
    if len(jit_args) != wanted:
        raise ValueError(f"`jit_args`: expected {wanted} entries, uri to variant_decl, got {len(jit_args)}")
    tensors, scalars = tuple(jit_args[wanted - 6]), tuple(jit_args[wanted - 4])
    name, text = jit_args[wanted - 2], jit_args[wanted - 1]
    if isinstance(text, Variant):
        return Custom(text, tensors, scalars, False)
    if "KVLOOM_VARIANT" in text:
        return Custom(Variant(text, name or "variant"), tensors, scalars, False)
    if name == "AttentionSink" and "sink" in tensors:
        return Custom(None, tensors, scalars, True)
    if re.fullmatch(r"\s*DefaultAttention\s*<[^<>]*>\s*", name):
        return Custom(None, tensors, scalars, False)
    raise UnsupportedError(
        f"`jit_args`: variant {name!r}: expected a variant of kvloom, got a CUDA source for FlashInfer's kernels; give the same hooks as a text with "
        "KVLOOM_VARIANT, or kvloom.variant(score_mod, mask_mod), in the place of variant_decl (docs/variants.md)"
    )
