"""Cascades: levels of shared prefixes, planned together and run in one launch."""

from __future__ import annotations

from .._spec import LevelGroup
from ._arrays import arange, concatenate, host, indices, placed, write_front, zeros
from ._lists import check_ids, kv_lengths, query_lengths
from ._plans import Schedule, Step
from ._wrapper import Wrapper, split_cache, undone_on_error


class Level:
    """Segments of queries, and the keys that each attends to. On the host."""

    def __init__(self, number: int, qo_indptr, kv_indptr, last_page_len, page_size: int, ids):
        name = f"[{number}]"
        self.begins = [int(i) for i in query_lengths(qo_indptr, "qo_indptr_arr" + name)[0]]
        lists, kv_len = kv_lengths(kv_indptr, last_page_len, page_size, "paged_kv_indptr_arr" + name, "paged_kv_last_page_len" + name)
        check_ids(ids, lists, "paged_kv_indices_arr" + name, "paged_kv_indptr_arr" + name)
        if len(self.begins) != len(lists):
            raise ValueError(f"`paged_kv_indptr_arr{name}`: expected {len(self.begins)} entries, as `qo_indptr_arr{name}` has, got {len(lists)}")
        self.lists, self.kv_len = [int(i) for i in lists], [int(n) for n in kv_len]

    def segments(self):
        """(segment, first query, query behind the last) of those that have queries."""
        return [(s, a, b) for s, (a, b) in enumerate(zip(self.begins, self.begins[1:])) if b > a]


def lengths_of(levels: list[Level], offsets: list[int], tokens):
    """Keywords of Engine.plan. A request is a run of queries with the same segment in every level; its keys stand level after level, so positions,
    windows and ALiBi count through all of them. offsets: where each level's page ids begin; tokens: [0, 1, ..], on the host."""
    total = levels[-1].begins[-1]
    for number, level in enumerate(levels):
        if level.begins[0] != 0 or level.begins[-1] != total:
            raise ValueError(
                f"`qo_indptr_arr[{number}]`: expected 0 .. {total} (queries), as the last level has, got {level.begins[0]} .. {level.begins[-1]}"
            )
    cuts = sorted({b for level in levels for b in level.begins})
    segments = [level.segments() for level in levels]
    at = [0] * len(levels)
    kv_len, q_pos0, groups = [], [], {}
    for begin, end in zip(cuts, cuts[1:]):
        before = 0
        for number, level in enumerate(levels):
            while segments[number][at[number]][2] <= begin:
                at[number] += 1
            segment, first, last = segments[number][at[number]]
            if level.kv_len[segment]:
                # Pieces of a segment follow each other, and mostly have the same keys before them: then they are one group.
                runs = groups.setdefault((number, segment, before), [])
                if runs and runs[-1][1] == begin:
                    runs[-1] = (runs[-1][0], end)
                else:
                    runs.append((begin, end))
            before += level.kv_len[segment]
        kv_len.append(before)
        q_pos0.append(before - (last - first) + begin - first)
    made = [
        LevelGroup(
            tokens=tokens[runs[0][0] : runs[0][1]] if len(runs) == 1 else concatenate([tokens[a:b] for a, b in runs]),
            list_begin=offsets[number] + levels[number].lists[segment],
            kv_end=levels[number].kv_len[segment],
            kv_pos0=before,
            level=number,
        )
        for (number, segment, before), runs in groups.items()
    ]
    return {"kv_len": kv_len, "qo_indptr": cuts, "q_pos0": q_pos0, "groups": made}


class MultiLevelCascadeAttentionWrapper(Wrapper):
    """Attention of requests that share prefixes, level by level: every level says which queries attend to which of its keys, the last one has each
    request's own. All levels are one plan and one launch; shared keys are read once for all their queries."""

    def __init__(
        self,
        num_levels,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        qo_indptr_buf_arr=None,
        paged_kv_indptr_buf_arr=None,
        paged_kv_indices_buf_arr=None,
        paged_kv_last_page_len_buf_arr=None,
    ):
        if not isinstance(num_levels, int) or num_levels < 1:
            raise ValueError(f"`num_levels`: expected 1 or more, got {num_levels!r}")
        self._num_levels = num_levels
        self._buffers = {
            "qo_indptr_buf_arr": qo_indptr_buf_arr,
            "paged_kv_indptr_buf_arr": paged_kv_indptr_buf_arr,
            "paged_kv_indices_buf_arr": paged_kv_indices_buf_arr,
            "paged_kv_last_page_len_buf_arr": paged_kv_last_page_len_buf_arr,
        }
        bound = None
        if use_cuda_graph:
            for name, buffers in self._buffers.items():
                if buffers is None or len(buffers) != num_levels:
                    raise ValueError(
                        f"`{name}`: expected {num_levels} buffers in CUDA-graph mode, one a level, got {None if buffers is None else len(buffers)}"
                    )
            bound = sum(len(b) - 1 for b in qo_indptr_buf_arr)
        self._set_up(float_workspace_buffer, kv_layout, use_cuda_graph, bound, "auto")
        self._ids = None
        if use_cuda_graph:
            self._ids = zeros((sum(len(b) for b in paged_kv_indices_buf_arr),), float_workspace_buffer, "int32")

    def reset_workspace_buffer(self, float_workspace_buffer, int_workspace_buffers=()) -> None:
        """Other memory for partial results. Integer workspaces, one a level, are not used."""
        super().reset_workspace_buffer(float_workspace_buffer)

    @undone_on_error
    def plan(
        self,
        qo_indptr_arr,
        paged_kv_indptr_arr,
        paged_kv_indices_arr,
        paged_kv_last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
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
    ) -> None:
        """Plans a step. A list of arrays, one a level, each as BatchPrefillWithPagedKVCacheWrapper.plan has them; every level's qo_indptr ends with the
        same number of queries. causal, window_left and positions count through all levels' keys."""
        arrays = {
            "qo_indptr_arr": qo_indptr_arr,
            "paged_kv_indptr_arr": paged_kv_indptr_arr,
            "paged_kv_indices_arr": paged_kv_indices_arr,
            "paged_kv_last_page_len": paged_kv_last_page_len,
        }
        for name, arr in arrays.items():
            if len(arr) != self._num_levels:
                raise ValueError(f"`{name}`: expected {self._num_levels} arrays, one a level, got {len(arr)}")
        ids = [indices(x, f"paged_kv_indices_arr[{number}]") for number, x in enumerate(paged_kv_indices_arr)]
        levels = [Level(n, *x, page_size, i) for n, (*x, i) in enumerate(zip(qo_indptr_arr, paged_kv_indptr_arr, paged_kv_last_page_len, ids))]
        self._set_heads(num_qo_heads, num_kv_heads, head_dim, None, q_data_type, kv_data_type, None, page_size)
        self._set_attention(
            causal=causal,
            pos_encoding_mode=pos_encoding_mode,
            window_left=window_left,
            logits_soft_cap=logits_soft_cap,
            sm_scale=sm_scale,
            rope_scale=rope_scale,
            rope_theta=rope_theta,
        )
        pages, offsets = self._place_ids(ids)
        if self._use_cuda_graph:
            for name, arr in (
                ("qo_indptr_buf_arr", qo_indptr_arr),
                ("paged_kv_indptr_buf_arr", paged_kv_indptr_arr),
                ("paged_kv_last_page_len_buf_arr", paged_kv_last_page_len),
            ):
                for number, (buffer, x) in enumerate(zip(self._buffers[name], arr)):
                    write_front(buffer, indices(x, name), f"{name}[{number}]")
        self._paged_kv_indices_buf = pages
        total = levels[-1].begins[-1]
        lengths = lengths_of(levels, offsets, arange(total, host(pages[:0])))
        lengths["pages"] = pages
        step = Step(lengths, len(lengths["kv_len"]), total, level_rows=max(total * self._num_levels, 1), groups=len(lengths["groups"]))
        self._plan_step(step, Schedule())

    begin_forward = plan

    def _place_ids(self, ids):
        """All levels' page ids as one array where the wrapper is, and where each level's begin."""
        like = self._float_workspace_buffer
        offsets, end = [], 0
        if not self._use_cuda_graph:
            for x in ids:
                offsets.append(end)
                end += len(x)
            return concatenate([placed(x, like) for x in ids]), offsets
        for number, (buffer, x) in enumerate(zip(self._buffers["paged_kv_indices_buf_arr"], ids)):
            write_front(buffer, x, f"paged_kv_indices_buf_arr[{number}]")
            write_front(self._ids[end:], x, f"paged_kv_indices_buf_arr[{number}]")
            offsets.append(end)
            end += len(buffer)
        return self._ids, offsets

    def run(self, q, paged_kv_cache):
        """One layer. q [queries, num_qo_heads, head_dim]; paged_kv_cache as BatchPrefillWithPagedKVCacheWrapper.run has it, for all levels. Returns
        out [queries, num_qo_heads, head_dim]."""
        k, v = split_cache(paged_kv_cache, self._kv_layout)
        return self._attend(q, k, v, self._kv_layout, pages=getattr(self, "_paged_kv_indices_buf", None))

    forward = run
