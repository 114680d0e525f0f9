"""What serving needs around attention. Operations run where their tensors are; on a GPU in the framework's current stream."""

from __future__ import annotations

import sys

from . import _core
from ._frameworks import converted, empty
from ._spec import Rope


def _states(like, o_dtype, dims, out, lse):
    """Outputs that were not given, and whether each is ours."""
    made_out = empty(like, tuple(dims), o_dtype) if out is None else out
    made_lse = empty(like, tuple(dims[:2]), "f32") if lse is None else lse
    return made_out, made_lse


def _result(like, out, lse, made_out, made_lse):
    return (converted(like, made_out) if out is None else out, converted(like, made_lse) if lse is None else lse)


def merge_states(o_a, lse_a, o_b, lse_b, *, out=None, lse=None, stream=None):
    """The state of both key sets: LSE = log(e^a + e^b), O = (e^a O_a + e^b O_b) / (e^a + e^b); (0, -inf) is the identity.

    o_a, o_b, out [rows, heads, dim] f32, f16 or bf16; lse_a, lse_b, lse fp32 [rows, heads], natural log. Outputs may be the inputs of one side.
    Returns (out, lse).
    """
    dims, dtype = _core.shape_and_dtype(o_a, "o_a")
    made_out, made_lse = _states(o_a, dtype, dims, out, lse)
    _core.merge_states(o_a, lse_a, o_b, lse_b, out=made_out, lse=made_lse, stream=stream)
    return _result(o_a, out, lse, made_out, made_lse)


def merge_states_n(o, lse, *, out=None, lse_out=None, stream=None):
    """Merges over dimension 1, in its order: o [rows, states, heads, dim], lse [rows, states, heads]. Returns (out, lse)."""
    dims, dtype = _core.shape_and_dtype(o, "o")
    if len(dims) != 4:
        raise ValueError(f"`o`: expected [rows, states, heads, head_dim], got {list(dims)}")
    made_out, made_lse = _states(o, dtype, (dims[0], *dims[2:]), out, lse_out)
    _core.merge_states_n(o, lse, None, out=made_out, lse_out=made_lse, stream=stream)
    return _result(o, out, lse_out, made_out, made_lse)


def merge_states_ragged(o, lse, indptr, *, out=None, lse_out=None, stream=None):
    """Row r merges rows indptr[r] .. indptr[r + 1] of o [total, heads, dim], lse [total, heads]; none: (0, -inf). Returns (out, lse)."""
    dims, dtype = _core.shape_and_dtype(o, "o")
    if len(dims) != 3:
        raise ValueError(f"`o`: expected [total, heads, head_dim], got {list(dims)}")
    if len(indptr) < 1:
        raise ValueError("`indptr`: expected rows + 1 entries, got none")
    made_out, made_lse = _states(o, dtype, (len(indptr) - 1, *dims[1:]), out, lse_out)
    _core.merge_states_n(o, lse, indptr, out=made_out, lse_out=made_lse, stream=stream)
    return _result(o, out, lse_out, made_out, made_lse)


def append_kv(
    k_new,
    v_new,
    k,
    v,
    *,
    request=None,
    pos=None,
    rope_pos=None,
    pages=None,
    list_indptr=None,
    block_table=None,
    slots=None,
    layout: str = "NHD",
    rope: Rope | None = None,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    stream=None,
) -> None:
    """Writes new keys and values into pages, converting to their dtype (fp8: value / scale). `rope` turns the keys first.

    k_new, v_new  [tokens, heads, head_dim]; k, v [pages, page_size, heads, head_dim] (HND: heads before page_size). v_new and v may be None.
    where         token i is token pos[i] of the list of request[i] (-1: skipped), lists as in Engine.plan: block_table, or pages and
                  list_indptr. Or slots [tokens]: page * page_size + slot in the page, -1: skipped; on a GPU slots alone (append_slots makes them).

    After an error nothing was written.
    """
    _core.append_kv(
        k_new,
        v_new,
        k,
        v,
        request=request,
        pos=pos,
        rope_pos=rope_pos,
        pages=pages,
        list_indptr=list_indptr,
        block_table=block_table,
        slots=slots,
        layout=layout,
        rope=rope,
        k_scale=k_scale,
        v_scale=v_scale,
        stream=stream,
    )


def append_slots(out, *, request, pos, page_size: int, num_pages: int, pages=None, list_indptr=None, block_table=None):
    """Fills `out`, int64 [tokens] on the host, with the slots of append_kv's tokens, checked as append_kv checks them. Returns it."""
    _core.append_slots(request, pos, pages, list_indptr, block_table, page_size, num_pages, out)
    return out


def apply_rope(x, pos, rope: Rope, *, stream=None) -> None:
    """Turns x [tokens, heads, head_dim] (f32, f16 or bf16) in place; token i stands at pos[i]."""
    _core.apply_rope(x, pos, rope, stream)


def pack_mask(masks):
    """The packed bits of custom masks and where each request's begin: what run takes as `mask` and `mask_indptr`.

    masks: bool or uint8 arrays [q_len, kv_len], one a request, on the host; True = keep. Returns uint8 [bytes] and int64 [requests + 1]: NumPy
    arrays if NumPy is loaded, else a bytearray and an array.array.
    """
    shape = getattr(masks, "shape", None)
    if (shape is not None and len(shape) != 3) or not hasattr(masks, "__iter__"):
        got = type(masks).__name__ if shape is None else f"one array {list(shape)}"
        raise (TypeError if shape is None else ValueError)(f"`masks`: expected a list of arrays [q_len, kv_len], one a request, got {got}; of one request: [mask]")
    bits, indptr = bytearray(), [0]
    for i, mask in enumerate(masks):
        try:
            bits += _core.pack_mask(mask)
        except (TypeError, ValueError) as error:
            raise type(error)(str(error).replace("`mask`", f"`masks[{i}]`", 1).replace("[rows, columns]", "[q_len, kv_len]")) from None
        indptr.append(len(bits))
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        return numpy.frombuffer(bits, numpy.uint8), numpy.array(indptr, numpy.int64)
    import array

    return bits, array.array("q", indptr)


def load_ops(device: int = -1) -> None:
    """Compiles and loads the GPU kernels of these operations, which their first call does otherwise: before a CUDA graph's capture."""
    _core.load_ops(device)
