"""What flashinfer.jit has of variants for calls of one request. A declaration is a text of kvloom's, or one of FlashInfer's that is known
(docs/FLASHINFER.md): it is checked now, and compiled when it first runs."""

from __future__ import annotations

from ._jit import custom_of


class JitSpec:
    """A variant by its uri. build_and_load() gives what the functions with a jit_module take."""

    def __init__(self, uri: str, custom):
        self.name, self.custom = uri, custom

    def build_and_load(self):
        return self.custom


def gen_customize_single_decode_module(
    uri,
    dtype_q,
    dtype_kv,
    dtype_o,
    head_dim_qk,
    head_dim_vo,
    additional_tensor_names,
    additional_tensor_dtypes,
    additional_scalar_names,
    additional_scalar_dtypes,
    variant_name,
    variant_decl,
    **options,
) -> JitSpec:
    """For single_decode_with_kv_cache_with_jit_module. Dtypes and dims are those of the tensors."""
    args = [uri, dtype_q, dtype_kv, dtype_o, head_dim_qk, head_dim_vo, additional_tensor_names, additional_tensor_dtypes]
    args += [additional_scalar_names, additional_scalar_dtypes, variant_name, variant_decl]
    return JitSpec(uri, custom_of(args, with_index_type=False))


def gen_customize_single_prefill_module(backend, uri, *args, **options) -> JitSpec:
    """For single_prefill_with_kv_cache_with_jit_module; the arguments behind `backend` are gen_customize_single_decode_module's."""
    return gen_customize_single_decode_module(uri, *args, **options)


__all__ = ["JitSpec", "gen_customize_single_decode_module", "gen_customize_single_prefill_module"]
