"""What the batch wrappers share: the attributes that engines read and set, the Spec that they amount to, and the run."""

from __future__ import annotations

import functools
import math
import operator

from .. import _core
from .._errors import UnsupportedError
from .._frameworks import dtype_name
from .._spec import Rope, Spec
from ._arrays import alibi_slopes, cast, device_of, is_torch, module_of, to_base2
from ._named_errors import name_argument, name_errors_of
from ._plans import Planned, Plans, Schedule, Step, check_workspace
from ._scales import NONE, dequantized, scaled, scales_of
from ._step_arrays import StepArray

_BACKENDS = ("auto", "fa2", "fa3", "cudnn", "cutlass", "cute-dsl", "trtllm-gen", "fmha_v2", "determine_attention_backend")
_FP8 = ("e4m3", "e5m2")


def check_layout(kv_layout):
    if kv_layout not in ("NHD", "HND"):
        raise KeyError(f"`kv_layout`: expected 'NHD' or 'HND', got {kv_layout!r}")
    return kv_layout


def check_backend(backend) -> str:
    """The name that engines see: fa2 where FlashInfer would choose. It does not choose kernels here: `explain` says which one runs."""
    if backend not in _BACKENDS:
        raise ValueError(f"`backend`: expected one of {', '.join(_BACKENDS[:-1])}, got {backend!r}")
    return "fa2" if backend == "auto" else backend


def check_positions(pos_encoding_mode):
    if pos_encoding_mode not in ("NONE", "ROPE_LLAMA", "ALIBI"):
        raise KeyError(f"`pos_encoding_mode`: expected 'NONE', 'ROPE_LLAMA' or 'ALIBI', got {pos_encoding_mode!r}")


def refuse_nvfp4(kv_cache_sf):
    if kv_cache_sf is not None:
        raise UnsupportedError("`kv_cache_sf`: expected None, got scale factors; there is no kernel for NVFP4 K and V: keep them in fp8 or 16 bits")


def split_cache(paged_kv_cache, layout: str):
    """k, v [pages, page_size, heads, dim] (HND: heads first) of a pair, or of one tensor with a dimension 2 behind the pages. Dimensions of
    page_size 1 may be left out."""
    if isinstance(paged_kv_cache, (tuple, list)):
        if len(paged_kv_cache) != 2:
            raise ValueError(f"`paged_kv_cache`: expected (k, v), got {len(paged_kv_cache)} tensors")
        k, v = paged_kv_cache
        if k.ndim == 4 == v.ndim:
            return k, v
        if k.ndim == 3:
            k = k[:, None] if layout == "NHD" else k[:, :, None]
        if v.ndim == 3:
            v = v[:, None] if layout == "NHD" else v[:, :, None]
        return k, v
    rank = getattr(paged_kv_cache, "ndim", 0)
    if rank not in (4, 5) or paged_kv_cache.shape[1] != 2:
        raise ValueError(
            f"`paged_kv_cache`: expected (k, v), or one tensor [pages, 2, {'page_size, heads' if layout == 'NHD' else 'heads, page_size'}, dim], got "
            f"{list(getattr(paged_kv_cache, 'shape', ())) or type(paged_kv_cache).__name__}"
        )
    k, v = paged_kv_cache[:, 0], paged_kv_cache[:, 1]
    return split_cache((k, v), layout) if rank == 4 else (k, v)


_name_of_dtype: dict = {}  # by the framework's


def same_dtype(tensor, name: str, wanted: str, planned: str):
    dtype = getattr(tensor, "dtype", None)
    got = _name_of_dtype.get(dtype)
    if got is None:
        got = _core.shape_and_dtype(tensor, name)[1]
        if dtype is not None:
            _name_of_dtype[dtype] = got
    if got != wanted:
        raise ValueError(f"`{name}.dtype`: expected {wanted}, as {planned} says, got {got}; convert it, or plan with its dtype")


def plain(x):
    """A number as Python's, where it came in an array of none dimensions."""
    return x if x is None or isinstance(x, (int, float)) else float(x)


def undone_on_error(plan):
    """A plan that fails leaves the step before, and names the argument as named_errors does."""

    @functools.wraps(plan)
    def guarded(self, *args, **options):
        before = self.__dict__.copy()
        try:
            return plan(self, *args, **options)
        except BaseException as error:
            vars(self).clear()
            vars(self).update(before)
            name_argument(plan, (self, *args), options, error)
            raise

    guarded.checks_names = True
    return guarded


class Wrapper:
    """Attributes with one underscore are FlashInfer's: engines read them, and set some between plan and run, which run then follows."""

    _qo_indptr_buf, _kv_indptr_buf, _kv_len_arr_buf = StepArray(), StepArray(), StepArray()
    _paged_kv_indptr_buf, _paged_kv_last_page_len_buf = StepArray(), StepArray()

    _custom = None  # a variant of the caller's, with arguments of its own (_jit.py)

    def __init_subclass__(cls):
        name_errors_of(cls, ("__init__", "plan", "begin_forward", "workspace_size", "run", "forward", "forward_return_lse"))

    def _set_up(self, workspace, kv_layout, use_cuda_graph, fixed, backend):
        gpu = check_workspace(workspace)
        self._float_workspace_buffer = workspace
        self._int_workspace_buffer = self._pin_memory_int_workspace_buffer = workspace[:0]
        self._set_up_on(workspace, gpu, device_of(workspace), kv_layout, use_cuda_graph, fixed, backend)

    def _set_up_on(self, workspace, gpu, device, kv_layout, use_cuda_graph, fixed, backend):
        self._kv_layout = check_layout(kv_layout)
        self.device = device
        self._use_cuda_graph = bool(use_cuda_graph)
        self._fixed_batch_size = fixed if use_cuda_graph else 0
        self._backend = check_backend(backend)
        self._plans = Plans(workspace, gpu, fixed if use_cuda_graph else None)
        self._specs: dict = {}
        self._slopes: dict = {}
        self._plan_info = None
        self._cached_module = None
        self._max_total_num_rows = None
        self._causal = False
        self._pos_encoding_mode = "NONE"
        self._window_left = -1
        self._logits_soft_cap = 0.0
        self._sm_scale = self._rope_scale = self._rope_theta = None
        self._mask = self._mask_begins = None
        self._variant = None
        self._settings = None  # of decode: what the last plan said besides lengths, and what that came to
        self._checked_dtypes = None  # those of the last run's q, k and out, and what they were compared with
        self._heads = None  # num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q dtype, kv dtype, o dtype, page_size

    @property
    def _plan_info(self):
        """Made when it is asked for."""
        info = self.__dict__["_plan_info"]
        if isinstance(info, Planned):
            info = self.__dict__["_plan_info"] = [info.plan.num_requests, info.plan.total_tokens, info.plan.graph_key]
        return info

    @_plan_info.setter
    def _plan_info(self, info):
        self.__dict__["_plan_info"] = info

    @property
    def is_cuda_graph_enabled(self) -> bool:
        return self._use_cuda_graph

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffer=None) -> None:
        """Other memory for partial results. The integer workspace is kept for those who read it: plans have memory of their own."""
        check_workspace(float_workspace_buffer)
        if int_workspace_buffer is not None:
            check_workspace(int_workspace_buffer, "int_workspace_buffer")
            self._int_workspace_buffer = int_workspace_buffer
        self._float_workspace_buffer = float_workspace_buffer
        self._kind_of_ids = None
        self._plans.workspace = float_workspace_buffer
        self._plans.clear()
        if self._plans.step is not None:
            self._plans.number += 1

    def end_forward(self) -> None:
        """Does nothing, as in FlashInfer."""

    def _set_heads(self, num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q_dtype, kv_dtype, o_dtype, page_size):
        num_qo_heads, num_kv_heads, head_dim_qk = map(operator.index, (num_qo_heads, num_kv_heads, head_dim_qk))
        head_dim_vo = head_dim_qk if head_dim_vo is None else operator.index(head_dim_vo)
        page_size = None if page_size is None else operator.index(page_size)
        if min(head_dim_qk, head_dim_vo) <= 0:
            raise ValueError(f"`head_dim`: expected above 0, got {head_dim_qk} of q and k, {head_dim_vo} of v")
        if num_kv_heads <= 0 or num_qo_heads <= 0 or num_qo_heads % num_kv_heads:
            raise ValueError(f"`num_qo_heads`: expected a multiple of num_kv_heads, {num_kv_heads}, got {num_qo_heads}")
        if str(kv_dtype).removeprefix("torch.") == "uint8":
            refuse_nvfp4(kv_dtype)
        q = dtype_name(q_dtype, "q_data_type")
        kv = q if kv_dtype is None else dtype_name(kv_dtype, "kv_data_type")
        o = dtype_name(o_dtype, "o_data_type") if o_dtype is not None else "bf16" if q in _FP8 else q
        heads = (num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q, kv, o, page_size)
        self._settings = None
        if heads != self._heads:
            self._heads = heads
            self._specs = {}
            self._checked_dtypes = None
        self._num_qo_heads, self._num_kv_heads, self._page_size = num_qo_heads, num_kv_heads, page_size
        self._cached_q_data_type, self._cached_o_data_type = q_dtype, o_dtype
        self._cached_kv_data_type = q_dtype if kv_dtype is None else kv_dtype

    def _set_attention(self, *, causal, pos_encoding_mode, window_left, logits_soft_cap, sm_scale, rope_scale, rope_theta):
        check_positions(pos_encoding_mode)
        self._causal = bool(causal)
        self._pos_encoding_mode = pos_encoding_mode
        self._window_left = -1 if window_left is None else int(window_left)
        self._logits_soft_cap = 0.0 if logits_soft_cap is None else plain(logits_soft_cap)
        self._sm_scale, self._rope_scale, self._rope_theta = plain(sm_scale), plain(rope_scale), plain(rope_theta)

    def _spec(self, sink: bool = False, factor: float = 1.0, window_left=None, kv_dtype=None) -> Spec:
        """What the attributes say now."""
        key = (
            self._causal,
            self._window_left if window_left is None else int(window_left),
            self._logits_soft_cap,
            self._sm_scale,
            self._pos_encoding_mode,
            self._rope_scale,
            self._rope_theta,
            self._mask is not None,
            sink,
            factor,
            self._variant,
        )
        heads = self._heads
        if kv_dtype is not None and kv_dtype != heads[5]:
            heads = (*heads[:5], kv_dtype, *heads[6:])
            key += (kv_dtype,)
        spec = self._specs.get(key)
        if spec is None:
            if len(self._specs) > 64:
                self._specs.clear()
            spec = self._specs[key] = make_spec(heads, *key[:11])
        return spec

    def _plan_step(self, step: Step, schedule: Schedule):
        if self._use_cuda_graph:
            if self._max_total_num_rows is None:
                self._max_total_num_rows = step.tokens
            elif step.tokens > self._max_total_num_rows:
                raise ValueError(
                    f"plan: query tokens: expected at most {self._max_total_num_rows}, those of the wrapper's first plan (CUDA-graph mode), got {step.tokens}"
                )
        planned = self._plans.set(step, schedule, self._spec(self._always_sink()))
        self._plan_info = planned

    def _always_sink(self) -> bool:
        return False

    def _alibi(self, q):
        key = (self._heads[0], str(device_of(q)))
        if key not in self._slopes:
            self._slopes[key] = alibi_slopes(self._heads[0], q)
        return self._slopes[key]

    def _attend(
        self,
        q,
        k,
        v,
        layout,
        args=(),
        q_scale=None,
        k_scale=None,
        v_scale=None,
        out=None,
        lse=None,
        return_lse=False,
        sinks=None,
        window_left=None,
        pages=None,
        *,
        own_pages=False,
        kv_dtype=None,
        base_e=False,
    ):
        """One layer. Returns out, or (out, lse in base 2; with base_e in natural logarithm). own_pages: `pages` are not those of the plan, but as many;
        kv_dtype: nor is the dtype of k and v."""
        if self._heads is None:
            raise RuntimeError("run: expected a plan() before it, got none")
        params = None
        if self._custom is not None:
            args, sinks, params = self._custom.take(self, args, sinks)
        heads = self._heads
        q_dtype, other_kv, kv_dtype = heads[4], kv_dtype, kv_dtype or heads[5]
        dtypes = getattr(q, "dtype", None), getattr(k, "dtype", None), getattr(out, "dtype", None), kv_dtype
        if dtypes != self._checked_dtypes:
            same_dtype(q, "q", q_dtype, "plan's q_data_type")
            same_dtype(k, "k", kv_dtype, "plan's kv_data_type")
            if out is not None:
                same_dtype(out, "out", heads[6], "plan's o_data_type")
            self._checked_dtypes = dtypes if None not in dtypes[:2] and (out is None or dtypes[2] is not None) else None
        if args:
            q_scale, k_scale, v_scale = _positional(args, q_dtype, q_scale, k_scale, v_scale)
        if q_dtype in _FP8:
            q, q_scale = dequantized(q, q_scale), None
        plain = q_scale is None and k_scale is None and v_scale is None
        scales = NONE if plain else scales_of(kv_dtype, heads[1], q_scale, k_scale, v_scale)
        spec = self._spec(sinks is not None, scales.factor, window_left, other_kv)
        plans = self._plans
        planned = plans.get(spec)
        planned.used = True
        tensors = dict(scales.tensors)
        if spec.alibi:
            tensors["alibi_slopes"] = self._alibi(q)
        if spec.sink:
            tensors["sink"] = cast(sinks.reshape(-1), "float32")
        if spec.custom_mask:
            tensors["mask"], tensors["mask_indptr"] = self._mask, self._mask_begins
        if pages is not None and (own_pages or plans.device is not None):
            tensors["pages"] = pages
        if params:
            tensors["params"] = params
        if self._use_cuda_graph and plans.device is not None and is_torch(q) and module_of(q).cuda.is_current_stream_capturing():
            planned.captured.add(planned.plan.graph_key)
        result = planned.engine.run(planned.plan, q, k, v, out=out, lse=lse, return_lse=return_lse, layout=layout, **tensors)
        if result is out and scales.out is None:
            return out
        made, made_lse = result if isinstance(result, tuple) else (result, None)
        if made_lse is not None and not base_e:
            to_base2(made_lse)
        if scales.out is not None:
            scaled(made, scales.out)
        return (made, made_lse) if return_lse else made


def _positional(args, q_dtype, q_scale, k_scale, v_scale):
    """FlashInfer's scales of fp8 tensors stand behind the cache: run(q, kv, scale_q, scale_k, scale_v), float32, one a head."""
    if q_dtype not in _FP8:
        raise TypeError(f"run: expected no more positional arguments than q and its keys and values, got {len(args)}; name them")
    if len(args) != 3:
        raise TypeError(f"run: expected scale_q, scale_k and scale_v, got {len(args)} positional arguments")

    def product(a, b):
        return b if a is None else a if b is None else a * b

    return tuple(product(a, b) for a, b in zip((q_scale, k_scale, v_scale), args))


def make_spec(heads, causal, window_left, cap, sm_scale, positions, rope_scale, rope_theta, masked, sink, factor, variant=None) -> Spec:
    """heads: Wrapper._heads. A custom mask stands in for `causal`."""
    check_positions(positions)
    num_qo_heads, num_kv_heads, head_dim_qk, head_dim_vo, q_dtype, kv_dtype, o_dtype, page_size = heads
    scale = (float(sm_scale) if sm_scale is not None else 1.0 / math.sqrt(head_dim_qk)) * factor
    if not scale > 0:
        raise ValueError(f"`sm_scale`: expected a number above 0 (with q_scale and k_scale), got {scale}")
    rope = None
    if positions == "ROPE_LLAMA":
        rope = Rope(
            mode="half_split", theta=10000.0 if rope_theta is None else float(rope_theta), scaling=1.0 if rope_scale is None else float(rope_scale)
        )
    return Spec(
        num_qo_heads=num_qo_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim_qk,
        head_dim_vo=head_dim_vo,
        dtype="bf16" if q_dtype in _FP8 else q_dtype,
        kv_dtype=kv_dtype,
        o_dtype=o_dtype,
        page_size=page_size,
        sm_scale=scale,
        causal=bool(causal) and not masked,
        window_left=max(-1 if window_left is None else int(window_left), -1),
        soft_cap=float(cap) if cap is not None and cap > 0 else 0.0,
        alibi=positions == "ALIBI",
        custom_mask=masked,
        sink=sink,
        rope=rope,
        variant=variant,
    )
