"""Errors that name the argument. Nothing is looked at before a call: when one fails without a name, its arguments are, one by one, by what FlashInfer's
names stand for."""

from __future__ import annotations

import functools
import inspect
import operator

_CAUGHT = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)


def _is_tensor(x) -> bool:
    return hasattr(x, "shape") and hasattr(x, "dtype") and getattr(x, "ndim", 0) > 0


def _is_ints(x) -> bool:
    return isinstance(x, (list, tuple, range)) and all(_is_int(i) for i in x) or _is_tensor(x) and "int" in str(x.dtype)


def _is_int(x) -> bool:
    try:
        return not isinstance(x, bool) and getattr(x, "ndim", 0) == 0 and abs(operator.index(x)) < 2**31
    except TypeError:
        return False


def _is_number(x) -> bool:
    return isinstance(x, (int, float)) and x == x or _is_int(x) or getattr(x, "ndim", None) == 0 and hasattr(x, "dtype")


def _is_flag(x) -> bool:
    return isinstance(x, (bool, int)) or type(x).__name__ in ("bool", "bool_")


def _is_cache(x) -> bool:
    return _is_tensor(x) or isinstance(x, (tuple, list)) and len(x) == 2 and all(map(_is_tensor, x))


def _is_scale(x) -> bool:
    return _is_number(x) or _is_tensor(x) and all(n > 0 for n in x.shape)


_KINDS = {  # what is expected, what is right, whether None is, too, and the names
    "a tensor": (_is_tensor, False, "q k v q_p k_p v_p q_d query key append_key append_value append_ckv append_kpe v_a s_a v_b s_b s v_other s_other x "
                 "cos_sin_cache q_nope q_rope k_rope ckv_cache paged_ckv_cache float_workspace_buffer workspace_buffer k_shared v_shared block_mask_map "
                 "block_row_sz block_col_sz block_tables mask_nnz"),
    "a tensor or None": (_is_tensor, True, "out lse custom_mask packed_custom_mask custom_mask_p packed_custom_mask_p packed_mask block_mask mask q_pe kpe_cache "
                         "paged_kpe_cache prefix_len_ptr token_pos_in_items_ptr cum_seq_lens_q q_cu_seq_lens custom_mask_buf mask_indptr_buf k_nope"),
    "int32 (or int64) integers, an array or a list": (_is_ints, False, "indptr indices last_page_len qo_indptr paged_kv_indptr paged_kv_indices "
                                                      "paged_kv_last_page_len kv_indptr kv_indices kv_len_arr seq_lens append_indptr batch_indices positions "
                                                      "offsets pos_ids unique_kv_indptr unique_kv_indices unique_kv_last_page_len qo_indptr_p kv_indptr_p "
                                                      "kv_indices_p last_page_len_p qo_indptr_d kv_indptr_d kv_indices_d last_page_len_d"),
    "an int": (_is_int, False, "num_qo_heads num_kv_heads num_heads head_dim head_dim_qk head_dim_ckv head_dim_kpe head_dim_compressed_kv page_size M N R C "
               "nnz head_size num_levels q_len_per_req"),
    "an int or None": (_is_int, True, "head_dim_vo fixed_split_size rotary_dim window_left window_left_p mask_mode"),
    "a number or None": (_is_number, True, "sm_scale sm_scale_p logits_soft_cap rope_scale rope_theta low_freq_factor high_freq_factor old_context_len o_scale "
                         "ckv_scale kpe_scale quant_scale_q quant_scale_kv"),
    "a number, or a tensor": (_is_scale, True, "q_scale k_scale v_scale scale_q scale_k scale_v"),
    "a number, or a tensor of one": (_is_scale, False, "bmm1_scale bmm2_scale"),
    "True or False": (_is_flag, False, "causal use_cuda_graph use_tensor_cores return_lse disable_split_kv interleave is_neox causal_p"),
    "a word": (lambda x: isinstance(x, str), False, "kv_layout backend pos_encoding_mode bitorder kv_layout_p"),
    "(k, v), or one tensor": (_is_cache, False, "paged_kv_cache kv_cache paged_kv_cache_p paged_kv_cache_d unique_kv_cache"),
    "a list of arrays": (lambda x: isinstance(x, (list, tuple)) and all(map(_is_ints, x)), False, "qo_indptr_arr paged_kv_indptr_arr paged_kv_indices_arr"),
    "a list": (lambda x: isinstance(x, (list, tuple)), True, "jit_args"),
    "a tensor, or a list of one": (lambda x: _is_tensor(x) or isinstance(x, (list, tuple)) and len(x) == 1 and _is_tensor(x[0]), True, "sinks"),
}  # fmt: skip
_OF_NAME = {name: (text, check, none) for text, (check, none, names) in _KINDS.items() for name in names.split()}


def _shown(x) -> str:
    if hasattr(x, "shape") and hasattr(x, "dtype"):
        return f"{x.dtype} {list(x.shape)}"
    return f"{type(x).__name__} {str(x)[:40]}"


def _raise_named(function, args, options, error):
    try:
        given = inspect.signature(function).bind(*args, **options).arguments
    except TypeError:
        return
    if isinstance(given.get("options"), dict):
        given = {**given, **given["options"]}
    for name, value in given.items():
        kind = _OF_NAME.get(name)
        if kind is None or value is None and kind[2]:
            continue
        text, right, _ = kind
        if not right(value):
            fault = (
                ValueError if hasattr(value, "dtype") or isinstance(value, (int, float)) and text.startswith(("an int", "a number")) else TypeError
            )
            raise fault(f"`{name}`: expected {text}, got {_shown(value)}") from error


def name_argument(function, args, options, error):
    """To be called where function(*args, **options) has raised: another error, which names the argument, where `error` names none and one is of the
    wrong kind."""
    if isinstance(error, _CAUGHT) and "`" not in str(error):
        _raise_named(function, args, options, error)


def named_errors(function):
    """A call that fails without naming an argument names it, where it is of the wrong kind."""

    @functools.wraps(function)
    def called(*args, **options):
        try:
            return function(*args, **options)
        except _CAUGHT as error:
            name_argument(function, args, options, error)
            raise

    called.checks_names = True
    return called


def name_errors_of(cls, methods):
    """named_errors for the methods that a class has of its own."""
    for name in methods:
        method = vars(cls).get(name)
        if inspect.isfunction(method) and not hasattr(method, "checks_names"):
            setattr(cls, name, named_errors(method))
