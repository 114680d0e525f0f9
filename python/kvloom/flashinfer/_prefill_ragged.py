"""Prefill over keys and values that lie one after the other."""

from __future__ import annotations

import functools

from .._errors import UnsupportedError
from ._arrays import host, indices, placed, write_front
from ._lists import query_lengths, schedule_of
from ._plans import Step
from ._prefill import Prefill
from ._scales import scaled
from ._step_arrays import step_array
from ._wrapper import refuse_nvfp4, undone_on_error


class BatchPrefillWithRaggedKVCacheWrapper(Prefill):
    """Prefill of requests whose keys and values lie one after the other. Signatures are FlashInfer's; plan has another order than the paged one."""

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf=None,
        kv_indptr_buf=None,
        custom_mask_buf=None,
        mask_indptr_buf=None,
        backend="auto",
        jit_args=None,
        jit_kwargs=None,
    ):
        needed = {"qo_indptr_buf": qo_indptr_buf, "kv_indptr_buf": kv_indptr_buf}
        self._set_up_prefill(
            float_workspace_buffer, kv_layout, use_cuda_graph, qo_indptr_buf, custom_mask_buf, mask_indptr_buf, backend, jit_args, jit_kwargs, needed
        )
        if use_cuda_graph and len(kv_indptr_buf) != len(qo_indptr_buf):
            raise ValueError(f"`kv_indptr_buf`: expected {len(qo_indptr_buf)} entries, as qo_indptr_buf has, got {len(kv_indptr_buf)}")
        self._kv_indptr_buf = kv_indptr_buf

    @undone_on_error
    def plan(
        self,
        qo_indptr,
        kv_indptr,
        num_qo_heads,
        num_kv_heads,
        head_dim_qk,
        head_dim_vo=None,
        custom_mask=None,
        packed_custom_mask=None,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
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
        fixed_split_size=None,
        disable_split_kv=False,
        seq_lens=None,
        seq_lens_q=None,
        max_token_per_sequence=None,
        max_sequence_kv=None,
        v_indptr=None,
        o_indptr=None,
    ) -> None:
        """Plans a step. qo_indptr, kv_indptr [requests + 1]: request r has rows qo_indptr[r] .. qo_indptr[r + 1] of q, and so of k and v. The rest as
        BatchPrefillWithPagedKVCacheWrapper.plan; fixed_split_size counts tokens."""
        begins, q_len = query_lengths(qo_indptr, "qo_indptr")
        starts, kv_len = query_lengths(kv_indptr, "kv_indptr")
        if len(q_len) != len(kv_len):
            raise ValueError(f"`kv_indptr`: expected {len(q_len) + 1} entries, as `qo_indptr` has, got {len(kv_len) + 1}")
        for other, name, as_name, wanted in ((v_indptr, "v_indptr", "kv_indptr", starts), (o_indptr, "o_indptr", "qo_indptr", begins)):
            if other is not None and not bool((host(indices(other, name)) == wanted).all()):
                raise UnsupportedError(
                    f"`{name}`: expected None or the entries of `{as_name}`, got others; there is no kernel for rows that lie elsewhere"
                )
        self._set_heads(num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q_data_type, kv_data_type, o_data_type, None)
        self._set_attention(
            causal=causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        self._use_fp16_qk_reduction = use_fp16_qk_reduction
        mask = self._mask_of_items(custom_mask, q_len, kv_len, prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len)
        self._set_mask(mask, packed_custom_mask, q_len, kv_len)
        if self._use_cuda_graph:
            if len(q_len) != self._fixed_batch_size:
                raise ValueError(f"`qo_indptr`: expected {self._fixed_batch_size + 1} entries, fixed in CUDA-graph mode, got {len(q_len) + 1}")
            write_front(self._qo_indptr_buf, qo_indptr, "qo_indptr")
            write_front(self._kv_indptr_buf, kv_indptr, "kv_indptr")
        else:
            like = self._float_workspace_buffer
            self._qo_indptr_buf, self._kv_indptr_buf = step_array(qo_indptr, "qo_indptr", like), step_array(kv_indptr, "kv_indptr", like)
        self._plan_lists(begins, starts, kv_len, schedule_of(fixed_split_size, disable_split_kv, 1))

    begin_forward = plan

    def _plan_lists(self, begins, starts, kv_len, schedule):
        self._kv_lens, self._schedule = kv_len, schedule
        self._plans.kv_bound = max(self._plans.kv_bound, int(starts[-1]))
        lengths = {"kv_len": kv_len, "qo_indptr": begins, "list_indptr": starts}
        self._plan_step(Step(lengths, len(kv_len), int(begins[-1]), int(kv_len.sum()) if schedule.split_tokens else 0), schedule)

    def run(
        self,
        q,
        k,
        v,
        *args,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        o_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        enable_pdl=None,
        kv_cache_sf=None,
        sinks=None,
    ):
        """One layer. q [query tokens, num_qo_heads, head_dim_qk]; k, v [key tokens, num_kv_heads, head_dim] (HND: heads first). The rest as
        BatchPrefillWithPagedKVCacheWrapper.run; o_scale divides the output."""
        refuse_nvfp4(kv_cache_sf)
        result = self._attend(
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
        )
        if o_scale is not None and o_scale != 1.0:
            scaled(result[0] if return_lse else result, 1.0 / o_scale)
        return result

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(
        self,
        q,
        k,
        v,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
    ):
        """run with an attention of its own, all of which counts."""
        return self._forward(
            (q, k, v), causal, pos_encoding_mode, use_fp16_qk_reduction, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta
        )

    def forward_return_lse(
        self,
        q,
        k,
        v,
        causal=False,
        pos_encoding_mode="NONE",
        use_fp16_qk_reduction=False,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
    ):
        """forward, and the LSE."""
        return self._forward(
            (q, k, v),
            causal,
            pos_encoding_mode,
            use_fp16_qk_reduction,
            window_left,
            logits_soft_cap,
            sm_scale,
            rope_scale,
            rope_theta,
            return_lse=True,
        )
