"""Multi-head latent attention over pages of compressed keys: 512 dims that are keys and values, and 64 of position that are keys alone."""

from __future__ import annotations

import functools

from .._errors import UnsupportedError
from ._arrays import concatenate, dtype_of, host, indices, on_gpu, placed, write_front
from ._lists import check_ids, query_lengths
from ._mla_tensors import adjacent, counting, in_use, queries
from ._modules import CachedModule
from ._plans import Schedule, Step
from ._scales import is_number
from ._step_arrays import step_array
from ._wrapper import Wrapper, same_dtype, undone_on_error


class BatchMLAPagedAttentionWrapper(Wrapper):
    """Attention of absorbed queries [tokens, heads, 512 + 64] over one KV head. Signatures are FlashInfer's; other dims run where a kernel has them.

    ckv_cache and kpe_cache that are slices of one tensor are read in place, as engines keep them. Two tensors of their own cost a copy of the
    pages in use, every run.
    """

    def __init__(
        self, float_workspace_buffer, use_cuda_graph=False, qo_indptr=None, kv_indptr=None, kv_indices=None, kv_len_arr=None, backend="auto"
    ):
        fixed = None
        if use_cuda_graph:
            for name, buffer in {"qo_indptr": qo_indptr, "kv_indptr": kv_indptr, "kv_indices": kv_indices, "kv_len_arr": kv_len_arr}.items():
                if buffer is None:
                    raise ValueError(f"`{name}`: expected a buffer in CUDA-graph mode, got None")
            fixed = len(kv_len_arr)
        self._set_up(float_workspace_buffer, "NHD", use_cuda_graph, fixed, backend)
        self._qo_indptr_buf, self._kv_indptr_buf, self._kv_indices_buf, self._kv_len_arr_buf = qo_indptr, kv_indptr, kv_indices, kv_len_arr
        self._cached_module = CachedModule(self, _arguments)

    @undone_on_error
    def plan(
        self,
        qo_indptr,
        kv_indptr,
        kv_indices,
        kv_len_arr,
        num_heads,
        head_dim_ckv,
        head_dim_kpe,
        page_size,
        causal,
        sm_scale,
        q_data_type,
        kv_data_type,
        use_profiler=False,
    ) -> None:
        """Plans a step. qo_indptr, kv_indptr [requests + 1], kv_len_arr [requests] tokens of keys: int32, best on the host; kv_indices [page ids].
        sm_scale: that of the model before absorption, 1 / sqrt(128 + 64)."""
        self._set_heads(num_heads, 1, head_dim_ckv + head_dim_kpe, head_dim_ckv, q_data_type, kv_data_type, None, page_size)
        self._set_attention(
            causal=causal, pos_encoding_mode="NONE", window_left=-1, logits_soft_cap=None, sm_scale=sm_scale, rope_scale=None, rope_theta=None
        )
        self._head_dim_ckv, self._head_dim_kpe, self._use_profiler = head_dim_ckv, head_dim_kpe, use_profiler
        self._q_data_type, self._kv_data_type = q_data_type, kv_data_type
        kv_len = host(indices(kv_len_arr, "kv_len_arr"))
        requests = len(kv_len)
        for x, name in ((qo_indptr, "qo_indptr"), (kv_indptr, "kv_indptr")):
            if len(x) <= requests:
                raise ValueError(f"`{name}`: expected {requests + 1} entries for the {requests} requests of `kv_len_arr`, got {len(x)}")
        # Longer ones are FlashInfer's custom, too: what stands behind the requests is not read.
        qo_indptr, kv_indptr = indices(qo_indptr, "qo_indptr")[: requests + 1], indices(kv_indptr, "kv_indptr")[: requests + 1]
        (begins, _), (lists, _) = query_lengths(qo_indptr, "qo_indptr"), query_lengths(kv_indptr, "kv_indptr")
        kv_len = placed(kv_len, lists)
        ids = indices(kv_indices, "kv_indices")
        check_ids(ids, lists, "kv_indices", "kv_indptr")
        if self._use_cuda_graph:
            if requests != self._fixed_batch_size:
                raise ValueError(f"`kv_len_arr`: expected {self._fixed_batch_size} requests, fixed in CUDA-graph mode, got {requests}")
            write_front(self._qo_indptr_buf, qo_indptr, "qo_indptr")
            write_front(self._kv_indptr_buf, kv_indptr, "kv_indptr")
            write_front(self._kv_len_arr_buf, kv_len_arr, "kv_len_arr")
            write_front(self._kv_indices_buf, ids, "kv_indices")
        else:
            like = self._float_workspace_buffer
            self._qo_indptr_buf, self._kv_indptr_buf = step_array(qo_indptr, "qo_indptr", like), step_array(kv_indptr, "kv_indptr", like)
            self._kv_len_arr_buf, self._kv_indices_buf = step_array(kv_len_arr, "kv_len_arr", like), placed(ids, like)
        self._plan_lists(begins, lists, kv_len)

    def _plan_lists(self, begins, lists, kv_len):
        pages = lists[1:] - lists[:-1]
        too_long = (kv_len < 0) | (kv_len > pages * self._page_size)
        if bool(too_long.any()):
            r = [bool(x) for x in too_long].index(True)
            raise ValueError(f"`kv_len_arr`: request {r}: expected 0 .. {int(pages[r]) * self._page_size}, its pages' tokens, got {int(kv_len[r])}")
        self._last_entry = int(lists[-1])
        lengths = {"kv_len": kv_len, "qo_indptr": begins, "list_indptr": lists, "pages": self._kv_indices_buf}
        self._plan_step(Step(lengths, len(kv_len), int(begins[-1])), Schedule())

    def _plan_on_host(self, arguments):
        """A step from the host's arrays, with the heads and dtypes of the plan before."""
        begins, lists, kv_len, self._causal = arguments
        self._plan_lists(begins, lists, kv_len)

    def run(
        self,
        q_nope,
        q_pe,
        ckv_cache,
        kpe_cache,
        out=None,
        lse=None,
        return_lse=False,
        profiler_buffer=None,
        kv_len=None,
        page_table=None,
        return_lse_base_on_e=False,
        o_scale=None,
        *,
        ckv_scale=None,
        ckv_scale_arr=None,
        kpe_scale=None,
    ):
        """One layer.

        q_nope [tokens, heads, ckv], q_pe [tokens, heads, kpe]; ckv_cache [pages, page_size, ckv], kpe_cache [pages, page_size, kpe]; kpe 0: None
        ckv_scale, kpe_scale   of fp8 caches: numbers. ckv_scale_arr float32 [pages, page_size, ckv / 128] in the place of ckv_scale: the values are
                               made as q's dtype, which costs a copy of the pages in use
        Returns out [tokens, heads, ckv], or (out, lse float32 [tokens, heads]): base 2, or with return_lse_base_on_e natural.
        """
        if self._heads is None:
            raise RuntimeError("run: expected a plan() before it, got none")
        if o_scale is not None or kv_len is not None or page_table is not None:
            raise UnsupportedError(
                "`o_scale`, `kv_len`, `page_table`: expected None; they belong to FlashInfer's cutlass backend, which is not for Hopper"
            )
        ckv_scale, pe_factor, kpe_scale = self._scales(ckv_scale, ckv_scale_arr, kpe_scale)
        scales = {"k_scale": ckv_scale, "v_scale": ckv_scale}
        return self._run(
            q_nope,
            q_pe,
            ckv_cache,
            kpe_cache,
            ckv_scale_arr,
            pe_factor,
            kpe_scale,
            scales,
            out=out,
            lse=lse,
            return_lse=return_lse,
            base_e=return_lse_base_on_e,
        )

    def _run(self, q_nope, q_pe, ckv_cache, kpe_cache, scale_arr, pe_factor, kpe_scale, scales, **outputs):
        if self._heads is None:
            raise RuntimeError("run: expected a plan() before it, got none")
        (q_dtype, kv_dtype), ckv, kpe = self._heads[4:6], self._head_dim_ckv, self._head_dim_kpe
        wanted = {"q_nope": (q_nope, ckv, q_dtype), "q_pe": (q_pe, kpe, q_dtype)}
        wanted |= {"ckv_cache": (ckv_cache, ckv, kv_dtype), "kpe_cache": (kpe_cache, kpe, kv_dtype)}
        for name, (x, dim, dtype) in wanted.items():
            if dim and (x is None or x.ndim != 3 or x.shape[-1] != dim):
                raise ValueError(f"`{name}`: expected 3 dimensions, the last one {dim}, as plan says, got {None if x is None else list(x.shape)}")
            if dim:
                same_dtype(x, name, dtype, "plan's " + ("q_data_type" if name.startswith("q") else "kv_data_type"))
        for x, name, beside, of in ((q_pe, "q_pe", q_nope, "q_nope"), (kpe_cache, "kpe_cache", ckv_cache, "ckv_cache")) if kpe else ():
            if x.shape[:2] != beside.shape[:2]:
                raise ValueError(f"`{name}`: expected {[*beside.shape[:2], kpe]}, beside `{of}` {list(beside.shape)}, got {list(x.shape)}")
        q = queries(q_nope, q_pe, pe_factor)
        k, pages, copied, kv_dtype = self._keys(ckv_cache, kpe_cache, scale_arr, kpe_scale, q)
        k = k[:, :, None]
        return self._attend(q, k, k[..., : self._head_dim_ckv], "NHD", pages=pages, own_pages=copied, kv_dtype=kv_dtype, **scales, **outputs)

    run_return_lse = functools.partialmethod(run, return_lse=True)

    def _scales(self, ckv_scale, ckv_scale_arr, kpe_scale):
        """ckv_scale or None, how much larger kpe's scale is, and kpe's."""
        fp8 = self._heads[5] in ("e4m3", "e5m2")
        given = [n for n, x in (("ckv_scale", ckv_scale), ("ckv_scale_arr", ckv_scale_arr), ("kpe_scale", kpe_scale)) if x is not None]
        if not fp8:
            if given:
                raise ValueError(f"`{given[0]}`: expected None, the caches are no fp8, got a scale")
            return None, 1.0, 1.0
        if (ckv_scale is None) == (ckv_scale_arr is None):
            raise ValueError(
                "`ckv_scale`: Exactly one of ckv_scale or ckv_scale_arr is expected for an fp8 cache, got " + ("both" if ckv_scale is not None else "none")
            )
        shape = list(getattr(ckv_scale_arr, "shape", ()))
        if ckv_scale_arr is not None and (len(shape) != 3 or shape[2] == 0 or self._head_dim_ckv % shape[2]):
            raise ValueError(
                f"`ckv_scale_arr`: Invalid shape of ckv_scale_arr: expected [pages, page_size, {-(-self._head_dim_ckv // 128)}], a scale for every 128 dims, got {shape}"
            )
        if kpe_scale is None and self._head_dim_kpe:
            raise ValueError("`kpe_scale`: expected a number for an fp8 cache, got None")
        for name, x in (("ckv_scale", ckv_scale), ("kpe_scale", kpe_scale)):
            if x is not None and not (is_number(x) and x > 0):
                raise ValueError(f"`{name}`: expected a number above 0, got {x!r}")
        kpe_scale = 1.0 if kpe_scale is None else float(kpe_scale)
        return (None, 1.0, kpe_scale) if ckv_scale is None else (float(ckv_scale), kpe_scale / ckv_scale, kpe_scale)

    def _keys(self, ckv, kpe, scale_arr, kpe_scale, q):
        """Keys [pages, page_size, ckv + kpe], their page ids, whether they are a copy's, and their dtype if it is not the plan's."""
        ids = self._kv_indices_buf
        if scale_arr is None:
            both = ckv if not self._head_dim_kpe else adjacent(ckv, kpe)
            if both is not None:
                return both, ids, False, None
        used, pages = ids if self._use_cuda_graph else ids[: self._last_entry], ckv.shape[0]
        if pages == 0:
            return concatenate([ckv, kpe], -1) if self._head_dim_kpe else ckv, ids, False, None
        if not on_gpu(used) and not self._use_cuda_graph and len(used) and not 0 <= int(used.min()) <= int(used.max()) < pages:
            raise ValueError(f"`kv_indices`: expected 0 .. {pages - 1}, pages of ckv_cache, got {int(used.min())} .. {int(used.max())}")
        used = used.clip(0, pages - 1)  # a graph's buffer holds anything behind the step's ids
        made = in_use(used, ckv, kpe, scale_arr, kpe_scale, q.dtype)
        return made, counting(used), True, dtype_of(made) if scale_arr is not None else None


def _arguments(args):
    """float, int and pinned workspace, qo_indptr, kv_indptr, kv_len, heads, head_dim_ckv, causal: of fast_mla_decode_plan."""
    if len(args) != 9:
        raise TypeError(f"plan: expected 9 arguments, as FlashInfer's MLA module has, got {len(args)}")
    return host(args[3]), host(args[4]), host(args[5]), bool(args[8])


__all__ = ["BatchMLAPagedAttentionWrapper"]
