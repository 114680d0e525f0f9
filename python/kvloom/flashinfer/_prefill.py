"""What paged and ragged prefill share."""

from __future__ import annotations

from ._arrays import cast, write_front
from ._jit import custom_of
from ._lists import schedule_of
from ._masks import multi_item_mask, packed_mask
from ._modules import CachedModule, prefill_arguments
from ._wrapper import Wrapper, make_spec


class Prefill(Wrapper):
    """A mask, a graph's buffers, and forward."""

    def _set_up_prefill(
        self, workspace, kv_layout, use_cuda_graph, qo_indptr_buf, custom_mask_buf, mask_indptr_buf, backend, jit_args, jit_kwargs, needed
    ):
        fixed = None
        if use_cuda_graph:
            for name, buffer in needed.items():
                if buffer is None:
                    raise ValueError(f"`{name}`: expected a buffer in CUDA-graph mode, got None")
            fixed = len(qo_indptr_buf) - 1
        self._set_up(workspace, kv_layout, use_cuda_graph, fixed, backend)
        self._qo_indptr_buf = qo_indptr_buf
        self._custom_mask_buf, self._mask_indptr_buf = custom_mask_buf, mask_indptr_buf
        self._mask_begins_buf = None
        self._custom = custom_of(jit_args, jit_kwargs)
        self._jit_module = None
        if self._custom is not None:
            self._variant = self._custom.variant
        self._cached_module = CachedModule(self, prefill_arguments)

    def _set_mask(self, custom_mask, packed_custom_mask, q_len, kv_len):
        """The step's mask, in the wrapper's buffers in CUDA-graph mode; none leaves none behind."""
        packed, begins = packed_mask(custom_mask, packed_custom_mask, q_len, kv_len, self._float_workspace_buffer)
        if packed is not None and self._use_cuda_graph:
            if self._custom_mask_buf is None or self._mask_indptr_buf is None:
                raise ValueError(
                    "`custom_mask`: expected custom_mask_buf and mask_indptr_buf at the wrapper's construction in CUDA-graph mode, got None"
                )
            write_front(self._custom_mask_buf, packed, "custom_mask_buf")
            write_front(self._mask_indptr_buf, cast(begins, "int32"), "mask_indptr_buf")
            if self._mask_begins_buf is None:
                self._mask_begins_buf = begins
            packed, begins = self._custom_mask_buf, write_front(self._mask_begins_buf, begins, "mask_indptr")
        elif not self._use_cuda_graph:
            self._custom_mask_buf, self._mask_indptr_buf = packed, begins
        self._mask, self._mask_begins = packed, begins

    def _mask_of_items(self, custom_mask, q_len, kv_len, prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len):
        self._prefix_len_ptr, self._token_pos_in_items_ptr = prefix_len_ptr, token_pos_in_items_ptr
        self._token_pos_in_items_len = token_pos_in_items_len
        if prefix_len_ptr is None or token_pos_in_items_ptr is None:
            return custom_mask
        if custom_mask is not None:
            raise ValueError("`custom_mask`: expected None with `prefix_len_ptr`, which stands for a mask of its own")
        return multi_item_mask(q_len, kv_len, prefix_len_ptr, token_pos_in_items_ptr, token_pos_in_items_len)

    def _plan_on_host(self, p):
        """A step from the host's arrays, with the heads, dtypes and mask of the plan before."""
        self._causal = p.causal
        if p.window_left is not None:
            self._window_left = p.window_left
        schedule = schedule_of(p.fixed_split_size, p.disable_split_kv, self._page_size or 1)
        # An empty request has a length of 0 here, whatever the caller's formula made of its last page.
        self._plan_lists(p.qo_indptr, p.kv_indptr, p.kv_len * (p.kv_indptr[1:] > p.kv_indptr[:-1]), schedule)

    def _forward(
        self, tensors, causal, pos_encoding_mode, use_fp16_qk_reduction, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta, **run
    ):
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
        return self.run(*tensors, **run)


def workspace_size_of(wrapper, heads, attention, masked, step, schedule) -> tuple[int, int]:
    """Of a wrapper that would plan `step`; changes nothing."""
    causal, window_left, cap, sm_scale, positions, rope_scale, rope_theta = attention
    probe = Wrapper.__new__(Wrapper)
    probe._heads, probe._specs = None, {}
    probe._set_heads(*heads)
    spec = make_spec(
        probe._heads, causal, window_left, cap, sm_scale, positions, rope_scale, rope_theta, masked, wrapper._always_sink(), 1.0, wrapper._variant
    )
    return max(wrapper._plans.size(spec, step, schedule), 16), 16
