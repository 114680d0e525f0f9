"""The engines of a wrapper, and its step's plan for each of them.

FlashInfer's run may ask for another attention than plan was told of (forward(sm_scale=, causal=, ...)), so a step is described once here and
planned for every Spec that a run asks for: at once for the one that plan knew, else when it is first asked for."""

from __future__ import annotations

import collections
import threading
import typing

from .. import _core
from .._engine import Engine, workspace_size
from .._engines import engine_for
from .._errors import MismatchError
from .._frameworks import current_stream
from .._spec import Capacity, Options, Spec
from ._arrays import address, as_bytes, copied, framework_of, is_torch, module_of, on_gpu

_MOST = 8  # engines a wrapper keeps, the last used ones; in CUDA-graph mode all: captured graphs read their plans


def _at_least(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


class Step(typing.NamedTuple):
    """What plan knows of a step. lengths: keywords of Engine.plan, on the host; page ids as Engine.plan takes them."""

    lengths: dict
    requests: int
    tokens: int
    kv_tokens: int = 0
    level_rows: int = 0
    groups: int = 0
    matrix: typing.Any = None  # a BlockSparse, instead of lengths
    own: bool = False  # nobody else writes the arrays of lengths


class Schedule(typing.NamedTuple):
    """How work is split. split_tokens > 0: every request in chunks of so many, its bits do not depend on its batch; split False: never."""

    split_tokens: int = 0
    split: bool = True

    @property
    def policy(self) -> str:
        return "fixed_split" if self.split_tokens else "automatic" if self.split else "none"


class Planned:
    """An engine and the plan of a step."""

    __slots__ = ("engine", "plan", "number", "captured", "used")

    def __init__(self, engine):
        self.engine = engine
        self.plan = None
        self.number = -1
        self.captured = set()  # graph keys
        self.used = False  # by a run, so that a graph may hold it

    def refresh(self, step: Step, number: int, stream: int | None = None):
        """Plans the step; with a stream its copy to the GPU starts there: graphs launch, and copy nothing."""
        if step.matrix is not None:
            self.plan = self.engine.plan_sparse(step.matrix)
        elif self.plan is None:
            self.plan = self.engine.plan(**step.lengths)
        else:
            self.engine.replan(self.plan, **step.lengths)
        if self.captured and self.plan.graph_key not in self.captured:
            raise MismatchError(
                "plan: this step launches other kernels than the CUDA graphs that were captured with this wrapper: expected one of the same kind "
                "(decode steps, or prefill steps), got another; capture again, or plan it with a wrapper of its own"
            )
        if stream is not None:
            self.plan.upload(stream)
        self.number = number


class Plans:
    """`workspace`: the caller's buffer, used where it is large enough; else engines have memory of their own. `device`: a GPU's ordinal, or None.
    `fixed`: CUDA-graph mode, the number of requests; steps must not have more query tokens than the first one."""

    def __init__(self, workspace, device: int | None, fixed: int | None = None):
        self.workspace = workspace
        self.device = device
        self.fixed = fixed
        self.kv_bound = self.most_tokens = 0  # of fixed's steps
        self.step: Step | None = None
        self.number = 0
        self.schedule = Schedule()
        self.planned: collections.OrderedDict = collections.OrderedDict()
        self.latest: tuple = (None, None, None)  # Spec, Schedule, Planned: the last of `planned`
        self.asked: Spec | None = None  # by the last plan, while no run has asked for it
        self.instead: dict = {}  # Specs that plans ask for and no run does: what runs ask for

    def stream(self) -> int | None:
        """Where a plan is uploaded by plan(); None: run does it."""
        return current_stream(self.workspace, self.device) if self.fixed is not None and self.device is not None else None

    def options(self, schedule: Schedule) -> Options:
        return Options(
            backend="cpu" if self.device is None else "cuda",
            device=-1 if self.device is None else self.device,
            policy=schedule.policy,
            split_tokens=schedule.split_tokens,
            levels="off",
            check_pages=self.device is None,
        )

    def capacity(self, step: Step, schedule: Schedule, before: Capacity | None = None) -> Capacity:
        """Covers the step; grows by doubling."""
        if self.fixed is not None:
            requests, tokens, kv_tokens = self.fixed, max(self.most_tokens, step.tokens), max(self.kv_bound, step.kv_tokens)
        else:
            requests, tokens, kv_tokens = _at_least(step.requests), _at_least(step.tokens), _at_least(step.kv_tokens)
        rows, groups = _at_least(step.level_rows) if step.level_rows else 0, _at_least(step.groups) if step.groups else 0
        if before is not None:
            requests, tokens = max(requests, before.max_requests), max(tokens, before.max_query_tokens)
            kv_tokens = max(kv_tokens, before.max_kv_tokens)
            rows, groups = max(rows, before.max_level_rows), max(groups, before.max_groups)
        return Capacity(
            max_requests=max(requests, 1),
            max_query_tokens=max(tokens, 1),
            max_kv_tokens=max(kv_tokens, 1) if schedule.split_tokens else 0,
            max_level_rows=rows,
            max_groups=groups,
        )

    def size(self, spec: Spec, step: Step, schedule: Schedule) -> int:
        """Bytes of the caller's buffer that suffice for an engine for this step, if it begins at a multiple of 16, as it must."""
        return workspace_size(spec, self.capacity(step, schedule), self.options(schedule)) + self._align() - 16

    def set(self, step: Step, schedule: Schedule, spec: Spec) -> Planned:
        """A new step, planned for `spec`, or for what runs have asked for instead after such plans."""
        if self.fixed is not None and step.requests > self.fixed:
            raise ValueError(
                f"plan: batch size: expected at most {self.fixed}, fixed in CUDA-graph mode by the wrapper's buffers, got {step.requests}; pad with "
                "requests of no pages"
            )
        self.most_tokens = self.most_tokens or step.tokens
        # A run may plan the step later for another Spec: by then the caller may have written the next one into the same arrays.
        if not step.own:
            step = step._replace(lengths={n: copied(x) if n in ("kv_len", "qo_indptr", "list_indptr") else x for n, x in step.lengths.items()})
        before, self.step, self.schedule = (self.step, self.number, self.schedule), step, schedule
        self.number += 1
        try:
            if self.fixed is not None:
                for key, entry in self.planned.items():
                    if key[1] == schedule and entry.used:
                        entry.refresh(step, self.number, self.stream())
                    elif entry.captured and key[1] != schedule:
                        raise MismatchError(
                            f"plan: fixed_split_size, disable_split_kv: expected those of the CUDA graphs that were captured with this wrapper, {key[1]}, got "
                            f"{schedule}; capture again, with a wrapper of its own"
                        )
            self.asked = None
            planned = self.get(self.instead.get(spec, spec) if self.instead else spec)
            self.asked = spec
            return planned
        except Exception:
            self.step, self.number, self.schedule = before
            for entry in self.planned.values():
                entry.number = -1  # planned anew when it is asked for
            raise

    def get(self, spec: Spec) -> Planned:
        """The engine of `spec`, with the step planned."""
        if self.asked is not None:
            if spec is not self.asked and spec != self.asked:
                self.instead[self.asked] = spec
            elif self.instead:
                self.instead.pop(spec, None)
            self.asked = None
        known = spec is self.latest[0] and self.schedule == self.latest[1]  # nearly always; a Spec's hash is that of all its fields
        entry = self.latest[2] if known else self.planned.get((spec, self.schedule))
        if entry is not None and entry.number == self.number:
            return entry
        if self.step is None:
            raise RuntimeError("run: expected a plan() before it, got none")
        if entry is None or not _covers(entry.engine.capacity, self.step, self.schedule):
            if entry is not None and self.fixed is not None:
                raise ValueError(
                    f"plan: query tokens: expected at most {entry.engine.capacity.max_query_tokens}, those of the wrapper's first plan, which CUDA "
                    f"graphs were captured with, got {self.step.tokens}; plan the largest step first"
                )
            entry = Planned(self._engine(spec, entry.engine.capacity if entry is not None else None))
            self.planned[spec, self.schedule] = entry
            known = False
        entry.refresh(self.step, self.number, self.stream())
        if not known:
            self.planned.move_to_end((spec, self.schedule))
            self.latest = spec, self.schedule, entry
            while self.fixed is None and len(self.planned) > _MOST:
                self.planned.popitem(last=False)
        return entry

    def clear(self):
        """Lets go of the engines."""
        self.planned.clear()
        self.latest = None, None, None

    def _engine(self, spec: Spec, before: Capacity | None) -> Engine:
        capacity, options = self.capacity(self.step, self.schedule, before), self.options(self.schedule)
        return Engine(spec, capacity, options, workspace=self._memory(workspace_size(spec, capacity, options)))

    def _align(self) -> int:
        return 64 if self.device is None else 256

    def _memory(self, need: int):
        """`need` aligned bytes of the caller's buffer, or None."""
        if self.workspace is None or need == 0:
            return None
        buffer = as_bytes(self.workspace, "float_workspace_buffer")
        begin = -address(buffer) % self._align()
        return buffer[begin : begin + need] if buffer.shape[0] >= begin + need else None


def _covers(capacity: Capacity, step: Step, schedule: Schedule) -> bool:
    return (
        capacity.max_requests >= step.requests
        and capacity.max_query_tokens >= step.tokens
        and (not schedule.split_tokens or capacity.max_kv_tokens >= step.kv_tokens)
        and capacity.max_level_rows >= step.level_rows
        and (capacity.max_groups >= step.groups or not step.groups)
    )


_one: collections.OrderedDict = collections.OrderedDict()
_one_lock = threading.Lock()
_ONE_MOST = 64
_captured: list = []  # what CUDA graphs launch must stay: nobody says when a graph is gone


def one_request(spec: Spec, device: int | None, q_len: int, kv_len: int) -> Planned:
    """A planned step of one ragged request. Plans are kept, the last used ones: calls of one request come a layer at a time. Engines are those of
    engine_for, one a Spec."""
    engine = engine_for(spec, device, 1, max(q_len, 1))
    key = (spec, device, q_len, kv_len)
    with _one_lock:
        entry = _one.pop(key, None)
        if entry is None or entry.engine is not engine:
            entry = Planned(engine)
            entry.plan = engine.plan([kv_len], [0, q_len], list_indptr=[0, kv_len])
        _one[key] = entry
        while len(_one) > _ONE_MOST:
            _one.popitem(last=False)
        return entry


def keep_if_captured(entry: Planned, q):
    """Called where work for `q` is about to be launched from an entry that may be dropped later."""
    if on_gpu(q) and is_torch(q) and module_of(q).cuda.is_current_stream_capturing() and entry not in _captured:
        _captured.append(entry)


def check_workspace(buffer, name: str = "float_workspace_buffer"):
    """FlashInfer's rule: 16-byte aligned. Returns the GPU's ordinal, or None."""
    as_bytes(buffer, name)
    if buffer.shape[0] and address(buffer) % 16:
        raise ValueError(
            f"`{name}`: {name} must be 16-byte aligned, got address {address(buffer):#x}; give a whole allocation, not a slice of one"
        )
    return _core.gpu_of(buffer, name) if framework_of(buffer) != "numpy" else None
