"""Blocks of any sizes, a matrix for each KV head."""

from __future__ import annotations

import functools
import re

from .._frameworks import empty
from .._sparse import BlockSparse
from ._arrays import host, is_torch, module_of, placed
from ._plans import Schedule, Step
from ._wrapper import Wrapper, undone_on_error


class VariableBlockSparseAttentionWrapper(Wrapper):
    """Attention whose pattern are blocks of any sizes, another for every KV head. Signatures are FlashInfer's."""

    def __init__(self, float_workspace_buffer, backend="auto"):
        self._set_up(float_workspace_buffer, "NHD", False, None, backend)

    @undone_on_error
    def plan(
        self,
        block_mask_map,
        block_row_sz,
        block_col_sz,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        non_blocking=True,
        q_data_type="float16",
        kv_data_type=None,
    ) -> None:
        """Plans a pattern; arrays on a GPU are copied to the host, which waits for them.

        block_mask_map bool [num_kv_heads, block rows, block columns]; block_row_sz [num_kv_heads, block rows], block_col_sz [num_kv_heads, block
        columns]: their sums are the queries and the keys, the same for every head. causal: query i keeps keys to i, of the whole matrix.
        """
        sizes = [host(x) for x in (block_row_sz, block_col_sz, block_mask_map)]
        for x, name, rank in zip(sizes, ("block_row_sz", "block_col_sz", "block_mask_map"), (2, 2, 3)):
            if x.ndim != rank or x.shape[0] != num_kv_heads:
                raise ValueError(f"`{name}`: expected {rank} dimensions, the first one {num_kv_heads} (num_kv_heads), got {list(x.shape)}")
        blocks = [num_kv_heads, sizes[0].shape[1], sizes[1].shape[1]]
        if list(sizes[2].shape) != blocks:
            raise ValueError(f"`block_mask_map`: expected {blocks}, a row and a column for each of block_row_sz and block_col_sz, got {list(sizes[2].shape)}")
        matrix = _matrix(*sizes)
        self._set_heads(num_qo_heads, num_kv_heads, head_dim, None, q_data_type, kv_data_type, None, matrix.page_size)
        self._set_attention(
            causal=causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=-1,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        self._matrix = matrix
        self._pages = (
            placed(_int_array(matrix.pages, self._float_workspace_buffer), self._float_workspace_buffer) if self._plans.device is not None else None
        )
        self._columns = int(sizes[1][0].sum()) if len(sizes[1]) else 0
        self._plan_step(Step({}, matrix.num_requests, matrix.num_rows, matrix=matrix), Schedule())

    begin_forward = plan

    def run(self, q, k, v, out=None, lse=None, return_lse=False, enable_pdl=None):
        """q [num_qo_heads, queries, head_dim]; k, v [num_kv_heads, keys, head_dim]. Returns out [num_qo_heads, queries, head_dim], or (out, lse
        float32 [queries, num_qo_heads], base 2)."""
        if self._heads is None:
            raise RuntimeError("run: expected a plan() before it, got none")
        for x, name, heads in ((q, "q", self._heads[0]), (k, "k", self._heads[1]), (v, "v", self._heads[1])):
            if x.ndim != 3 or x.shape[0] != heads:
                raise ValueError(f"`{name}`: expected [{heads}, tokens, head_dim], got {list(x.shape)}")
        for x, name in ((k, "k"), (v, "v")):
            if x.shape[1] != self._columns:
                raise ValueError(f"`{name}`: expected {self._columns} keys, the sum of block_col_sz, got {x.shape[1]}")
        if out is None:
            out = empty(q, (*q.shape[:2], self._heads[3]), self._heads[6])
        size = self._heads[7]
        pages = [x.swapaxes(0, 1).reshape((x.shape[1] // size, size, x.shape[0], x.shape[2])) for x in (k, v)]
        result = self._attend(q.swapaxes(0, 1), *pages, "NHD", out=out.swapaxes(0, 1), lse=lse, return_lse=return_lse, pages=self._pages)
        return (out, result[1]) if return_lse else out

    def forward(
        self,
        q,
        k,
        v,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
    ):
        """run with an attention of its own, all of which counts."""
        self._set_attention(
            causal=self._causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=-1,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        return self.run(q, k, v)

    run_return_lse = functools.partialmethod(run, return_lse=True)


def _matrix(row_sizes, column_sizes, there) -> BlockSparse:
    """The pattern; what it refuses under the names of plan's arguments."""
    try:
        return BlockSparse.variable(row_sizes, column_sizes, there)
    except (TypeError, ValueError) as error:
        text = str(error).replace("variable_bsr_batch: ", "plan: ")
        for name, ours in (("block_rows", "block_row_sz"), ("block_cols", "block_col_sz"), ("map", "block_mask_map")):
            text = re.sub(rf"\b{name}\b", ours, text)
        raise type(error)(text) from None


def _int_array(ids: memoryview, like):
    xp = module_of(like)
    return xp.frombuffer(bytearray(ids), dtype=xp.int32) if is_torch(like) and len(ids) else xp.asarray(list(ids), dtype=xp.int32)
