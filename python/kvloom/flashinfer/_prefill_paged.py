"""Prefill over pages."""

from __future__ import annotations

import functools

from ._arrays import indices, placed, write_front
from ._lists import check_ids, kv_lengths, query_lengths, schedule_of
from ._plans import Step
from ._prefill import Prefill, workspace_size_of
from ._step_arrays import step_array
from ._wrapper import refuse_nvfp4, split_cache, undone_on_error


class BatchPrefillWithPagedKVCacheWrapper(Prefill):
    """Prefill, append and speculative steps over paged keys and values. Signatures are FlashInfer's.

    use_cuda_graph: the number of requests is len(qo_indptr_buf) - 1, later plans have at most the first one's query tokens, and plan writes the
    buffers that the graph reads. Without it a wrapper must not be captured, which run refuses.
    """

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        paged_kv_indptr_buf=None,
        paged_kv_indices_buf=None,
        paged_kv_last_page_len_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ):
        needed = {
            "qo_indptr_buf": qo_indptr_buf,
            "paged_kv_indptr_buf": paged_kv_indptr_buf,
            "paged_kv_indices_buf": paged_kv_indices_buf,
            "paged_kv_last_page_len_buf": paged_kv_last_page_len_buf,
        }
        self._set_up_prefill(
            float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf, custom_mask_buf, mask_indptr_buf, backend, jit_args, jit_kwargs, needed
        )
        if use_cuda_graph:
            for name, buffer in (("paged_kv_indptr_buf", paged_kv_indptr_buf), ("paged_kv_last_page_len_buf", paged_kv_last_page_len_buf)):
                wanted = self._fixed_batch_size + (name == "paged_kv_indptr_buf")
                if len(buffer) != wanted:
                    raise ValueError(
                        f"`{name}`: expected {wanted} entries for the {self._fixed_batch_size} requests of qo_indptr_buf, got {len(buffer)}"
                    )
        self._paged_kv_indptr_buf, self._paged_kv_indices_buf = paged_kv_indptr_buf, paged_kv_indices_buf
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buf

    @undone_on_error
    def plan(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        non_blocking=True,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
    ) -> None:
        """Plans a step; once for all its layers.

        qo_indptr, paged_kv_indptr [requests + 1], paged_kv_last_page_len [requests]: int32, best on the host (a GPU's are copied, which waits)
        paged_kv_indices [page ids], where the wrapper is; paged_kv_indptr counts from its beginning and need not start at 0
        custom_mask     bool, [q_len, kv_len] of each request one after the other, True: keep; stands in for `causal`
        fixed_split_size  pages a chunk, so that a request's bits do not depend on its batch; None, -1: as the planner thinks
        """
        self._plan(
            qo_indptr,
            paged_kv_indptr,
            paged_kv_indices,
            paged_kv_last_page_len,
            page_size,
            (custom_mask, packed_custom_mask),
            (prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len),
            (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q_data_type, kv_data_type, o_data_type, page_size),
            {
                "causal": causal,
                "pos_encoding_mode": pos_encoding_mode,
                "window_left": window_left,
                "logits_soft_cap": logits_soft_cap,
                "sm_scale": sm_scale,
                "rope_scale": rope_scale,
                "rope_theta": rope_theta,
            },
            schedule_of(fixed_split_size, disable_split_kv, page_size),
        )
        self._use_fp16_qk_reduction = use_fp16_qk_reduction

    begin_forward = plan

    def _plan(self, qo_indptr, kv_indptr, kv_indices, last_page_len, page_size, masks, items, heads, attention, schedule):
        begins, q_len = query_lengths(qo_indptr, "qo_indptr")
        lists, kv_len = kv_lengths(kv_indptr, last_page_len, page_size, "paged_kv_indptr", "paged_kv_last_page_len")
        kv_indices = indices(kv_indices, "paged_kv_indices")
        check_ids(kv_indices, lists, "paged_kv_indices", "paged_kv_indptr")
        if len(q_len) != len(kv_len):
            raise ValueError(f"`paged_kv_indptr`: expected {len(q_len) + 1} entries, as `qo_indptr` has, got {len(kv_len) + 1}")
        self._set_heads(*heads)
        self._set_attention(**attention)
        self._set_mask(self._mask_of_items(masks[0], q_len, kv_len, *items), masks[1], q_len, kv_len)
        if self._use_cuda_graph:
            if len(q_len) != self._fixed_batch_size:
                raise ValueError(f"`qo_indptr`: expected {self._fixed_batch_size + 1} entries, fixed in CUDA-graph mode, got {len(q_len) + 1}")
            write_front(self._qo_indptr_buf, qo_indptr, "qo_indptr")
            write_front(self._paged_kv_indptr_buf, kv_indptr, "paged_kv_indptr")
            write_front(self._paged_kv_last_page_len_buf, last_page_len, "paged_kv_last_page_len")
            write_front(self._paged_kv_indices_buf, kv_indices, "paged_kv_indices")
        else:
            like = self._float_workspace_buffer
            self._qo_indptr_buf = step_array(qo_indptr, "qo_indptr", like)
            self._paged_kv_indptr_buf = step_array(kv_indptr, "paged_kv_indptr", like)
            self._paged_kv_last_page_len_buf = step_array(last_page_len, "paged_kv_last_page_len", like)
            self._paged_kv_indices_buf = placed(kv_indices, like)
        self._plan_lists(begins, lists, kv_len, schedule)

    def _plan_lists(self, begins, lists, kv_len, schedule):
        """begins, lists, kv_len: on the host; page ids are the wrapper's."""
        self._q_lens, self._kv_lens, self._schedule = begins[1:] - begins[:-1], kv_len, schedule
        self._plans.kv_bound = len(self._paged_kv_indices_buf) * self._heads[7]
        lengths = {"kv_len": kv_len, "qo_indptr": begins, "list_indptr": lists, "pages": self._paged_kv_indices_buf}
        step = Step(lengths, len(kv_len), int(begins[-1]), int(kv_len.sum()) if schedule.split_tokens else 0)
        self._plan_step(step, schedule)

    def workspace_size(
        self,
        qo_indptr,
        paged_kv_indptr,
        paged_kv_indices,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        page_size,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        sm_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        rope_scale=None,
        rope_theta=None,
        q_data_type="float16",
        kv_data_type=None,
        o_data_type=None,
        prefix_len_ptr=None,
        token_pos_in_items_ptr=None,
        token_pos_in_items_len=0,
        max_item_len_ptr=None,
        seq_lens=None,
        seq_lens_q=None,
        block_tables=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        fixed_split_size=None,
        disable_split_kv=False,
    ) -> tuple[int, int]:
        """(bytes of the float workspace, bytes of the integer workspace) with which plan, given these, needs no memory of its own for partial
        results. The integer workspace is not used."""
        begins, q_len = query_lengths(qo_indptr, "qo_indptr")
        _, kv_len = kv_lengths(paged_kv_indptr, paged_kv_last_page_len, page_size, "paged_kv_indptr", "paged_kv_last_page_len")
        return workspace_size_of(
            self,
            (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q_data_type, kv_data_type, o_data_type, page_size),
            (causal, window_left, logits_soft_cap, sm_scale, pos_encoding_mode, rope_scale, rope_theta),
            custom_mask is not None or packed_custom_mask is not None or prefix_len_ptr is not None,
            Step({}, len(q_len), int(begins[-1]), int(kv_len.sum())),
            schedule_of(fixed_split_size, disable_split_kv, page_size),
        )

    def run(
        self,
        q,
        paged_kv_cache,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        window_left=None,
        sinks=None,
        kv_cache_sf=None,
        skip_softmax_threshold_scale_factor=None,
        use_fp16_softmax=None,
        uses_spcompress=None,
    ):
        """One layer.

        q               [query tokens of the plan, num_qo_heads, head_dim_qk]
        paged_kv_cache  (k, v), each [pages, page_size, num_kv_heads, head_dim] (HND: heads before page_size), any strides with a contiguous
                        head_dim; or one tensor with a dimension of 2 behind the pages
        args            of fp8 tensors: scale_q, scale_k, scale_v, one a head; with jit_args the variant's tensors and scalars
        sinks           float32 [num_qo_heads]: logits that join the softmax's denominator
        Returns out [tokens, num_qo_heads, head_dim_vo], or (out, lse float32 [tokens, num_qo_heads], base 2).
        """
        refuse_nvfp4(kv_cache_sf)
        k, v = split_cache(paged_kv_cache, self._kv_layout)
        return self._attend(
            q,
            k,
            v,
            self._kv_layout,
            args=args,
            q_scale=q_scale,
            k_scale=k_scale,
            v_scale=v_scale,
            out=out,
            lse=lse,
            return_lse=return_lse,
            sinks=sinks,
            window_left=window_left,
            pages=self._paged_kv_indices_buf,
        )

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(
        self,
        q,
        paged_kv_cache,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        k_scale=None,
        v_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
    ):
        """run with an attention of its own, all of which counts: a step is planned once for each."""
        return self._forward(
            (q, paged_kv_cache),
            causal,
            pos_encoding_mode,
            use_fp16_qk_reduction,
            window_left,
            logits_soft_cap,
            sm_scale,
            rope_scale,
            rope_theta,
            k_scale=k_scale,
            v_scale=v_scale,
        )

    def forward_return_lse(
        self,
        q,
        paged_kv_cache,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        k_scale=None,
        v_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
    ):
        """forward, and the LSE."""
        return self._forward(
            (q, paged_kv_cache),
            causal,
            pos_encoding_mode,
            use_fp16_qk_reduction,
            window_left,
            logits_soft_cap,
            sm_scale,
            rope_scale,
            rope_theta,
            k_scale=k_scale,
            v_scale=v_scale,
            return_lse=True,
        )
