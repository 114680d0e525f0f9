"""Step: what a compiled graph knows of an engine and its plan."""

from __future__ import annotations

import itertools
import weakref

import torch

import kvloom

from ._keywords import dims_of, outputs, packed, torch_dtype

_steps: weakref.WeakValueDictionary[str, Step] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def step_of(name: str) -> Step:
    """The Step that a graph calls by its name, planned."""
    step = _steps.get(name)
    if step is None:
        alive = ", ".join(sorted(_steps)) or "none"
        raise ValueError(
            f"`step`: expected the name of a kvloom.torch.Step that is alive ({alive}), got '{name}'; keep the Step beside what calls it"
        )
    if step.planned is None:
        raise ValueError(f"`step`: '{name}' has no plan yet; call its plan(kv_len, ...) before the model")
    return step


class Step:
    """An engine and the plan of the step at hand, under a name that graphs hold: steps change, the graph does not.

        step = kvloom.torch.Step(kvloom.Engine(spec, max_requests=64, max_query_tokens=4096))
        step.plan(kv_len, qo_indptr, block_table=table)     # every step, outside of compiled code
        out = step.run(q, k_cache, v_cache)                 # every layer, inside

    name: default step0, step1, ... in order of making; no two that are alive share one.

    In a CUDA graph: plan() before the capture, and before every replay of it, in the stream of the replay. A graph serves the steps whose
    `step.planned.graph_key` is that of its capture. Or, with lengths that stay on the GPU, plan_on_device() once before the capture and again
    inside, before the model: the graph plans at every replay.
    """

    def __init__(self, engine: kvloom.Engine, name: str | None = None):
        if not isinstance(engine, kvloom.Engine):
            raise TypeError(f"`engine`: expected a kvloom.Engine, got {type(engine).__name__}")
        name = f"step{next(_numbers)}" if name is None else name
        if name in _steps:
            raise ValueError(f"`name`: '{name}' is another Step's; give one of its own")
        self.engine = engine
        self.name = name
        self.planned: kvloom.Plan | None = None
        # What run() asks of the engine, as plain numbers that a compiler can read.
        self._dim = engine.spec.head_dim_vo
        self._dtype = torch_dtype(engine.spec.o_dtype)
        _steps[name] = self

    def plan(self, kv_len, qo_indptr=None, **lists) -> kvloom.Plan:
        """Plans the next step (arguments of Engine.plan), into the memory of the last one, and starts its copy to the GPU."""
        if self.planned is None:
            self.planned = self.engine.plan(kv_len, qo_indptr, **lists)
        else:
            self.engine.replan(self.planned, kv_len, qo_indptr, **lists)
        self._upload()
        return self.planned

    def plan_on_device(self, kv_len, qo_indptr=None, **lists) -> kvloom.Plan:
        """Plans the next step where its lengths are (arguments of Engine.plan_on_device), into the memory of the last one: one small kernel in the
        current stream, which a CUDA graph may hold; outside of compiled code. Of lengths that can't be planned run() makes NaN, and check() says why."""
        if self.planned is None:
            self.planned = self.engine.plan_on_device(kv_len, qo_indptr, **lists)
        else:
            self.engine.replan_on_device(self.planned, kv_len, qo_indptr, **lists)
        return self.planned

    def check(self) -> None:
        """Waits for the current stream, and raises what plan() would have of the lengths that plan_on_device() was given (Engine.check)."""
        if self.planned is None:
            raise ValueError(f"`step`: '{self.name}' has no plan yet; call its plan_on_device(kv_len, ...) before")
        self.engine.check(self.planned)

    def plan_sparse(self, matrix: kvloom.BlockSparse) -> kvloom.Plan:
        """Plans a block-sparse matrix (Engine.plan_sparse), into memory of its own."""
        self.planned = self.engine.plan_sparse(matrix)
        self._upload()
        return self.planned

    def _upload(self):
        if self.engine.backend == "cuda":
            self.planned.upload(torch.cuda.current_stream(self.engine.device).cuda_stream)

    def run(
        self,
        q,
        k,
        v,
        *,
        out=None,
        lse=None,
        return_lse: bool = False,
        pages=None,
        page_pos=None,
        layout: str = "NHD",
        alibi_slopes=None,
        sink=None,
        mask=None,
        mask_indptr=None,
        q_scale=None,
        k_scale=None,
        v_scale=None,
        bare_state: bool = False,
        params: dict | None = None,
    ):
        """Engine.run of the step's plan. Returns out, or (out, lse) where an LSE is wanted."""
        rows, heads, _ = dims_of(q, "q", "[tokens, heads, head_dim]")
        out, lse = outputs(q, (rows, heads, self._dim), self._dtype, out, lse, return_lse)
        keywords = packed(
            {
                "pages": pages,
                "page_pos": page_pos,
                "layout": layout,
                "alibi_slopes": alibi_slopes,
                "sink": sink,
                "mask": mask,
                "mask_indptr": mask_indptr,
                "q_scale": q_scale,
                "k_scale": k_scale,
                "v_scale": v_scale,
                "bare_state": bare_state,
                "params": params,
            }
        )
        torch.ops.kvloom.run(self.name, q, k, v, out, lse, *keywords)
        return out if lse is None else (out, lse)

    def __repr__(self):
        return f"<kvloom.torch.Step {self.name}: {self.engine!r}{'' if self.planned is not None else ', not planned'}>"
