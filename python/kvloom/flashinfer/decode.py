"""Decode: one query token a request, or a few of speculation."""

from __future__ import annotations

import functools
import operator

from ._arrays import arange, host, placed, write_front
from ._arrays import indices as index_array
from ._block_tables import trtllm_batch_decode_with_kv_cache, xqa_batch_decode_with_kv_cache
from ._decode_again import plan_again, remember
from ._fast_plan import fast_decode_plan
from ._jit import custom_of
from ._lists import check_count, kv_lengths, page_lists, schedule_of
from ._mla_decode import BatchDecodeMlaWithPagedKVCacheWrapper
from ._modules import CachedModule, HostPlan, decode_arguments
from ._plans import Step
from ._prefill import workspace_size_of
from ._single import single_decode_with_kv_cache, single_decode_with_kv_cache_with_jit_module
from ._step_arrays import OnHost, step_array
from ._wrapper import Wrapper, refuse_nvfp4, split_cache, undone_on_error
from .page import get_seq_lens

_SETTINGS = (
    "_num_qo_heads _num_kv_heads _page_size _cached_q_data_type _cached_kv_data_type _cached_o_data_type _q_len_per_req _causal _pos_encoding_mode "
    "_window_left _logits_soft_cap _sm_scale _rope_scale _rope_theta"
).split()

_PLAN_DEFAULTS = {
    "pos_encoding_mode": "NONE",
    "window_left": -1,
    "logits_soft_cap": None,
    "q_data_type": "float16",
    "kv_data_type": None,
    "o_data_type": None,
    "data_type": None,
    "sm_scale": None,
    "rope_scale": None,
    "rope_theta": None,
    "non_blocking": True,
    "block_tables": None,
    "seq_lens": None,
    "fixed_split_size": None,
    "disable_split_kv": False,
    "q_len_per_req": 1,
}


def _legacy(names: tuple, args: tuple, given: dict) -> dict:
    """Options of plan that came by position. Releases before o_data_type had one fewer: then rope_theta's place has non_blocking, or data_type's a
    number."""
    order = list(names)
    older = len(args) > 6 and isinstance(args[6], (int, float)) or len(args) > 9 and isinstance(args[9], bool)
    if older:
        order.remove("o_data_type")
    if len(args) > len(order):
        raise TypeError(f"plan: expected at most {7 + len(order)} positional arguments, got {7 + len(args)}")
    for name, value in zip(order, args):
        if name in given:
            raise TypeError(f"`{name}`: got it by position and by name")
        given[name] = value
    return given


class BatchDecodeWithPagedKVCacheWrapper(Wrapper):
    """Decode over paged keys and values. Signatures are FlashInfer's.

    use_cuda_graph: the number of requests is len(paged_kv_last_page_len_buffer), and plan writes the buffers that the graph reads. Without it a
    wrapper must not be captured, which run refuses. use_tensor_cores is kept for those who read it: kernels are chosen by what a step needs.
    """

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
        backend="auto",
        jit_args=None,
    ):
        fixed = None
        if use_cuda_graph:
            buffers = {
                "paged_kv_indptr_buffer": paged_kv_indptr_buffer,
                "paged_kv_indices_buffer": paged_kv_indices_buffer,
                "paged_kv_last_page_len_buffer": paged_kv_last_page_len_buffer,
            }
            for name, buffer in buffers.items():
                if buffer is None:
                    raise ValueError(f"`{name}`: expected a buffer in CUDA-graph mode, got None")
            fixed = len(paged_kv_last_page_len_buffer)
            if len(paged_kv_indptr_buffer) != fixed + 1:
                raise ValueError(
                    f"`paged_kv_indptr_buffer`: expected {fixed + 1} entries for the {fixed} requests of paged_kv_last_page_len_buffer, got "
                    f"{len(paged_kv_indptr_buffer)}"
                )
        self._set_up(float_workspace_buffer, kv_layout, use_cuda_graph, fixed, backend)
        self._paged_kv_indptr_buf, self._paged_kv_indices_buf = paged_kv_indptr_buffer, paged_kv_indices_buffer
        self._paged_kv_last_page_len_buf = paged_kv_last_page_len_buffer
        self._use_tensor_cores = bool(use_tensor_cores)
        self._qo_indptr_buf = arange(fixed + 1, float_workspace_buffer) if fixed is not None else None
        self._before = None  # the plan before, if the next may be like it
        self._kind_of_ids = None  # type, dtype and device of those that needed nothing
        self._q_len_per_req = self._rows = None  # _rows: requests, rows of each, and where they begin
        self._custom = custom_of(jit_args)
        self._jit_module = None
        if self._custom is not None:
            self._variant = self._custom.variant
        self._cached_module = CachedModule(self, decode_arguments)

    @property
    def use_tensor_cores(self) -> bool:
        return self._use_tensor_cores

    def plan(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *args, **options) -> None:
        """Plans a step; once for all its layers.

        indptr [requests + 1], last_page_len [requests]: int32, best on the host (a GPU's are copied, which waits)
        indices [page ids], where the wrapper is; indptr counts from its beginning and need not start at 0
        By name (the order of FlashInfer's releases has changed; both are understood): pos_encoding_mode="NONE", window_left=-1, window_right=0,
        logits_soft_cap=None, q_data_type="float16", kv_data_type=None, o_data_type=None, data_type=None, sm_scale=None, rope_scale=None,
        rope_theta=None, non_blocking=True, block_tables=None, seq_lens=None, fixed_split_size=None (pages), disable_split_kv=False,
        q_len_per_req=1 (more: causal within the request)
        """
        for unused in ("block_tables", "seq_lens", "non_blocking"):
            options.pop(unused, None)
        said = (num_qo_heads, num_kv_heads, head_dim, page_size), args, options
        if self._before is not None and plan_again(self, said, indptr, indices, last_page_len):
            return
        said = said[0], args, dict(options)
        self._plan_anew(indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *args, **options)
        remember(self, said, indptr, indices, last_page_len)

    plan.checks_names = True  # _plan_anew does
    begin_forward = plan

    @undone_on_error
    def _plan_anew(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *args, **options):
        schedule = self._take_settings((num_qo_heads, num_kv_heads, head_dim, page_size), args, options)
        if self._use_cuda_graph and len(last_page_len) != self._fixed_batch_size:
            raise ValueError(
                f"`last_page_len`: expected {self._fixed_batch_size} requests, fixed in CUDA-graph mode by the wrapper's buffers, got {len(last_page_len)}; "
                "pad with requests of no pages"
            )
        lists, kv_len, last, count = page_lists(indptr, last_page_len, page_size)
        ids = self._ids_of(indices)
        check_count(ids, count, "indices", "indptr")
        if self._use_cuda_graph:
            write_front(self._paged_kv_indptr_buf, indptr, "indptr")
            write_front(self._paged_kv_last_page_len_buf, last_page_len, "last_page_len")
            write_front(self._paged_kv_indices_buf, ids, "indices")
        else:
            like = self._float_workspace_buffer
            self._paged_kv_indices_buf = ids
            if last is not None:
                self._paged_kv_indptr_buf, self._paged_kv_last_page_len_buf = OnHost(lists), OnHost(last)
            else:
                self._paged_kv_indptr_buf = step_array(indptr, "indptr", like)
                self._paged_kv_last_page_len_buf = step_array(last_page_len, "last_page_len", like)
        self._plan_lists(lists, kv_len, schedule, own=True)

    def _take_settings(self, heads, args, options):
        """Sets what plan says besides lengths, which is the same from step to step: the schedule."""
        said = heads, args, options
        known = self._settings
        if known is not None and known[0] == said:
            self._check_q_len(known[1]["_q_len_per_req"])
            vars(self).update(known[1])
            return known[2]
        said = heads, args, dict(options)
        o = self._options(args, options)
        q_len = operator.index(o["q_len_per_req"])
        self._check_q_len(q_len)
        self._set_heads(*heads[:3], None, o["q_data_type"], o["kv_data_type"], o["o_data_type"], heads[3])
        self._set_decode(o, q_len)
        schedule = schedule_of(o["fixed_split_size"], o["disable_split_kv"], heads[3])
        if not any(hasattr(x, "shape") for x in (*heads, *args, *options.values())):  # arrays may be written
            self._settings = said, {name: vars(self)[name] for name in _SETTINGS}, schedule
        return schedule

    def _ids_of(self, indices):
        """The page ids where the wrapper is, or in CUDA-graph mode where they are. Of what kind they are is found out once."""
        kind = type(indices), getattr(indices, "dtype", None), getattr(indices, "device", None)
        if kind == self._kind_of_ids and indices.ndim == 1:
            return indices
        ids = index_array(indices, "indices")
        if not self._use_cuda_graph:
            ids = placed(ids, self._float_workspace_buffer)
        self._kind_of_ids = kind if ids is indices and kind[1] is not None and kind[2] is not None else None
        return ids

    def _options(self, args, options, order=tuple(_PLAN_DEFAULTS)) -> dict:
        window_right = options.pop("window_right", 0)
        if window_right not in (0, -1, None):
            raise ValueError(f"`window_right`: expected 0, a query is its request's last token, got {window_right}")
        for name in options:
            if name not in _PLAN_DEFAULTS:
                raise TypeError(f"`{name}`: no such argument of plan; there are: {', '.join(_PLAN_DEFAULTS)}")
        o = {**_PLAN_DEFAULTS, **_legacy(order, args, options)}
        if o["data_type"] is not None:
            if o["q_data_type"] is None:
                o["q_data_type"] = o["data_type"]
            if o["kv_data_type"] is None:
                o["kv_data_type"] = o["data_type"]
        if o["q_data_type"] is None:
            o["q_data_type"] = "float16"
        return o

    def _check_q_len(self, q_len):
        if q_len < 1:
            raise ValueError(f"`q_len_per_req`: expected 1 or more, got {q_len!r}")
        if q_len > 1 and not self._use_tensor_cores:
            raise ValueError(f"`q_len_per_req`: expected 1 in a wrapper without use_tensor_cores, got {q_len}; make it with use_tensor_cores=True")
        if self._use_cuda_graph and self._q_len_per_req not in (None, q_len):
            raise ValueError(
                f"`q_len_per_req`: expected {self._q_len_per_req}, that of the wrapper's first plan (CUDA-graph mode), got {q_len}; make a wrapper for each"
            )

    def _set_decode(self, o, q_len):
        self._q_len_per_req = q_len
        self._set_attention(
            causal=q_len > 1,
            pos_encoding_mode=o["pos_encoding_mode"],
            window_left=o["window_left"],
            logits_soft_cap=o["logits_soft_cap"],
            sm_scale=o["sm_scale"],
            rope_scale=o["rope_scale"],
            rope_theta=o["rope_theta"],
        )

    def _plan_lists(self, lists, kv_len, schedule, own=False):
        """lists, kv_len: on the host; page ids are the wrapper's. own: nobody will write them."""
        batch, q_len = len(kv_len), self._q_len_per_req
        self._kv_lens, self._schedule = kv_len, schedule
        if self._use_cuda_graph:
            self._plans.kv_bound = self._paged_kv_indices_buf.shape[0] * self._heads[7]
        if self._rows is None or self._rows[:2] != (batch, q_len):
            self._rows = batch, q_len, arange(batch + 1, host(lists)) * q_len
            if q_len > 1 or self._fixed_batch_size != batch or self._qo_indptr_buf is None:
                self._qo_indptr_buf = step_array(self._rows[2], "qo_indptr", self._float_workspace_buffer)
        begins = self._rows[2]
        lengths = {"kv_len": kv_len, "qo_indptr": begins, "list_indptr": lists, "pages": self._paged_kv_indices_buf}
        self._plan_step(Step(lengths, batch, batch * q_len, int(kv_len.sum()) if schedule.split_tokens else 0, 0, 0, None, own), schedule)

    def _plan_on_host(self, p: HostPlan):
        """A step from the host's arrays, with the heads and dtypes of the plan before."""
        kv_len = p.kv_len
        if kv_len is None:
            kv_len = kv_lengths(p.kv_indptr, self._paged_kv_last_page_len_buf, self._page_size, "indptr", "last_page_len")[1]
        self._q_len_per_req = self._q_len_per_req or 1
        if p.window_left is not None:
            self._window_left = p.window_left
        if p.logits_soft_cap is not None:
            self._logits_soft_cap = p.logits_soft_cap
        # An empty request has a length of 0 here, whatever the caller's formula made of its last page.
        self._plan_lists(
            p.kv_indptr, kv_len * (p.kv_indptr[1:] > p.kv_indptr[:-1]), schedule_of(p.fixed_split_size, p.disable_split_kv, self._page_size)
        )

    def workspace_size(self, indptr, indices, last_page_len, num_qo_heads, num_kv_heads, head_dim, page_size, *args, **options) -> tuple[int, int]:
        """(bytes of the float workspace, bytes of the integer workspace) with which plan, given these, needs no memory of its own for partial
        results. The integer workspace is not used."""
        o = self._options(args, options, tuple(name for name in _PLAN_DEFAULTS if name != "non_blocking"))
        _, kv_len = kv_lengths(indptr, last_page_len, page_size, "indptr", "last_page_len")
        return workspace_size_of(
            self,
            (num_qo_heads, num_kv_heads, head_dim, None, o["q_data_type"], o["kv_data_type"], o["o_data_type"], page_size),
            (o["q_len_per_req"] > 1, o["window_left"], o["logits_soft_cap"], o["sm_scale"], o["pos_encoding_mode"], o["rope_scale"], o["rope_theta"]),
            False,
            Step({}, len(kv_len), len(kv_len) * o["q_len_per_req"], int(kv_len.sum())),
            schedule_of(o["fixed_split_size"], o["disable_split_kv"], page_size),
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
        q_len_per_req=None,
        skip_softmax_threshold_scale_factor=None,
        kv_cache_sf=None,
    ):
        """One layer. q [requests * q_len_per_req, num_qo_heads, head_dim]; the rest as BatchPrefillWithPagedKVCacheWrapper.run."""
        if kv_cache_sf is not None:
            refuse_nvfp4(kv_cache_sf)
        if q_len_per_req is not None and q_len_per_req != self._q_len_per_req:
            raise ValueError(f"`q_len_per_req`: expected {self._q_len_per_req}, as planned, got {q_len_per_req}; give it to plan")
        k, v = split_cache(paged_kv_cache, self._kv_layout)
        q_len = self._q_len_per_req
        if q_len is not None and q.shape[0] != len(self._kv_lens) * q_len:
            raise ValueError(
                f"`q`: expected {len(self._kv_lens) * q_len} rows, {len(self._kv_lens)} requests of q_len_per_req = {q_len}, as planned, got {q.shape[0]}"
            )
        return self._attend(q, k, v, self._kv_layout, args, q_scale, k_scale, v_scale, out, lse, return_lse, sinks, window_left, self._paged_kv_indices_buf)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def forward(
        self,
        q,
        paged_kv_cache,
        pos_encoding_mode="NONE",
        q_scale=None,
        k_scale=None,
        v_scale=None,
        window_left=-1,
        logits_soft_cap=None,
        sm_scale=None,
        rope_scale=None,
        rope_theta=None,
        *,
        return_lse=False,
    ):
        """run with an attention of its own, all of which counts: a step is planned once for each."""
        self._set_attention(
            causal=self._causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        return self.run(q, paged_kv_cache, q_scale=q_scale, k_scale=k_scale, v_scale=v_scale, return_lse=return_lse)

    forward_return_lse = functools.partialmethod(forward, return_lse=True)


class CUDAGraphBatchDecodeWithPagedKVCacheWrapper(BatchDecodeWithPagedKVCacheWrapper):
    """BatchDecodeWithPagedKVCacheWrapper in CUDA-graph mode."""

    def __init__(self, workspace_buffer, indptr_buffer, indices_buffer, last_page_len_buffer, kv_layout="NHD", use_tensor_cores=False):
        super().__init__(
            workspace_buffer,
            kv_layout,
            use_cuda_graph=True,
            use_tensor_cores=use_tensor_cores,
            paged_kv_indptr_buffer=indptr_buffer,
            paged_kv_indices_buffer=indices_buffer,
            paged_kv_last_page_len_buffer=last_page_len_buffer,
        )


__all__ = [
    "BatchDecodeMlaWithPagedKVCacheWrapper",
    "BatchDecodeWithPagedKVCacheWrapper",
    "CUDAGraphBatchDecodeWithPagedKVCacheWrapper",
    "fast_decode_plan",
    "get_seq_lens",
    "single_decode_with_kv_cache",
    "single_decode_with_kv_cache_with_jit_module",
    "trtllm_batch_decode_with_kv_cache",
    "xqa_batch_decode_with_kv_cache",
]
