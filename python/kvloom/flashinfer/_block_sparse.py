"""Blocks of one size: a block row is a request, whose list of keys are its block columns, pages of C tokens."""

from __future__ import annotations

import functools

from .. import _core
from ._arrays import arange, cast, concatenate, host, indices, module_of, placed
from ._lists import check_ids, query_lengths
from ._masks import packed_mask
from ._named_errors import named_errors
from ._plans import Schedule, Step
from ._wrapper import Wrapper, undone_on_error


@named_errors
def convert_bsr_mask_layout(mask, indptr):
    """mask [blocks, R, C], bool, as the flat masks of the block rows: [R, blocks of the row * C] of each, one after the other. indptr [block rows + 1];
    one on a GPU is copied to the host, which waits for it."""
    if mask.ndim != 3:
        raise ValueError(f"`mask`: expected [blocks, R, C], got {list(mask.shape)}")
    begins = [int(i) for i in host(indices(indptr, "indptr"))]
    if begins[-1] != mask.shape[0]:
        raise ValueError(f"`mask`: expected {begins[-1]} blocks, as `indptr` says, got {mask.shape[0]}")
    order = (1, 0, 2)
    rows = [mask[a:b] for a, b in zip(begins, begins[1:])]
    return concatenate([(x.permute(order) if hasattr(x, "permute") else x.transpose(order)).reshape(-1) for x in rows])


def _blocks(x, size: int, name: str, columns: int):
    """[columns, heads, dim] as [columns / size, size, heads, dim], in place."""
    if x.ndim != 3 or x.shape[0] != columns:
        raise ValueError(f"`{name}`: expected [{columns}, num_kv_heads, head_dim], got {list(x.shape)}")
    shape = (columns // size, size, *x.shape[1:])
    return x.reshape(shape)


class BlockSparseAttentionWrapper(Wrapper):
    """Attention whose pattern are blocks of R queries and C keys, in CSR. Signatures are FlashInfer's."""

    def __init__(self, float_workspace_buffer, backend="auto"):
        self._set_up(float_workspace_buffer, "NHD", False, None, backend)

    @undone_on_error
    def plan(
        self,
        indptr,
        indices,
        M,
        N,
        R,
        C,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        mask=None,
        packed_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type="float16",
        non_blocking=True,
        block_mask=None,
    ) -> None:
        """Plans a pattern of M queries and N keys.

        indptr [ceil(M / R) + 1], indices [blocks]: block row i has the block columns indices[indptr[i] : indptr[i + 1]]
        mask         bool [blocks, R, C], True: keep; stands in for `causal`. packed_mask: bits of convert_bsr_mask_layout(mask, indptr), little bit
                     order, every block row from a byte of its own
        block_mask   instead of indptr and indices: bool [ceil(M / R), N / C], blocks that are there
        causal       query i keeps keys to i, of the whole matrix
        """
        if R <= 0 or C <= 0 or N % C:
            raise ValueError(f"`N`: expected a multiple of C, {C}, got {N}; pad k and v")
        block_rows, block_cols = -(-M // R), N // C
        if block_mask is not None:
            indptr, indices = _csr(block_mask, block_rows, block_cols)
        lists, counts = query_lengths(indptr, "indptr")
        if len(counts) != block_rows:
            raise ValueError(f"`indptr`: expected {block_rows + 1} entries, ceil(M / R) + 1, got {len(counts) + 1}")
        ids = _index(indices, "indices")
        check_ids(ids, lists, "indices", "indptr")
        # Refused here: on a GPU nobody reads them before the kernel.
        on_host = host(ids)[: int(lists[-1])]
        if len(on_host) and not 0 <= int(on_host.min()) <= int(on_host.max()) < block_cols:
            raise ValueError(f"`indices`: expected 0 .. {block_cols - 1}, block columns, got {int(on_host.min())} .. {int(on_host.max())}")
        self._set_heads(num_qo_heads, num_kv_heads, head_dim, None, q_data_type, kv_data_type, o_data_type, C)
        self._set_attention(
            causal=causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=-1,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        begins = (arange(block_rows + 1, lists, "int64") * R).clip(0, M)
        kv_len = cast(counts, "int64") * C
        self._mask = self._mask_begins = None
        if mask is not None or packed_mask is not None:
            q_len = begins[1:] - begins[:-1]
            flat = _cut(convert_bsr_mask_layout(mask, indptr), [int(n) for n in kv_len], R, M) if mask is not None else None
            self._mask, self._mask_begins = packed(flat, packed_mask if mask is None else None, q_len, kv_len, self._float_workspace_buffer)
        self.M, self.N, self.R, self.C = M, N, R, C
        self._paged_kv_indices_buf = placed(ids, self._float_workspace_buffer)
        lengths = {"kv_len": kv_len, "qo_indptr": begins, "list_indptr": lists, "pages": self._paged_kv_indices_buf}
        if causal or pos_encoding_mode != "NONE":  # where a row stands in the matrix, and a column: not where in its list
            lengths |= {"kv_position": "page_id", "q_pos0": begins[:-1]}
        self._plan_step(Step(lengths, block_rows, M), Schedule())

    begin_forward = plan

    def run(self, q, k, v, scale_q=None, scale_k=None, scale_v=None, out=None, lse=None, return_lse=False, enable_pdl=None):
        """q [M, num_qo_heads, head_dim]; k, v [N, num_kv_heads, head_dim]. scale_q, scale_k, scale_v: of fp8 tensors, float32, one a head. Returns
        out [M, num_qo_heads, head_dim], or (out, lse float32 [M, num_qo_heads], base 2)."""
        if self._heads is None:
            raise RuntimeError("run: expected a plan() before it, got none")
        for x, name in ((q, "q"), (k, "k"), (v, "v")):
            _core.shape_and_dtype(x, name)
        return self._attend(
            q,
            _blocks(k, self.C, "k", self.N),
            _blocks(v, self.C, "v", self.N),
            "NHD",
            q_scale=scale_q,
            k_scale=scale_k,
            v_scale=scale_v,
            out=out,
            lse=lse,
            return_lse=return_lse,
            pages=self._paged_kv_indices_buf,
        )

    def forward(
        self,
        q,
        k,
        v,
        scale_q=None,
        scale_k=None,
        scale_v=None,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
    ):
        """run with an attention of its own, all of which counts; positions are those that plan was told of."""
        self._set_attention(
            causal=self._causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=-1,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        return self.run(q, k, v, scale_q, scale_k, scale_v)

    run_return_lse = functools.partialmethod(run, return_lse=True)


def _csr(block_mask, block_rows: int, block_cols: int):
    there = host(block_mask)
    if tuple(there.shape) != (block_rows, block_cols):
        raise ValueError(f"`block_mask`: expected [{block_rows}, {block_cols}], got {list(there.shape)}")
    there = there != 0
    xp = module_of(there)
    counts = cast(there.sum(1), "int64")
    columns = xp.where(there)[1]
    return concatenate([counts[:1] * 0, counts.cumsum(0)]), columns


def _cut(flat, kv_len: list[int], R: int, M: int):
    """Without the rows that a last block row reaches beyond M."""
    beyond = R * len(kv_len) - M
    return flat[: flat.shape[0] - beyond * kv_len[-1]] if beyond else flat


_index, packed = indices, packed_mask  # plan has arguments of these names
