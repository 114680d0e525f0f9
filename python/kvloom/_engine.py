"""Engine: plan once a step, run once a layer."""

from __future__ import annotations

import html

from . import _core
from ._spec import Capacity, Options, Spec


class Engine(_core.Engine):
    """Attention of one Spec. Threads may share an engine; its calls take turns.

    Engine(spec, max_requests=64, max_query_tokens=4096, max_kv_tokens=1 << 20, backend="cpu")

    Keywords are the fields of Capacity and Options, which may also be given whole. `workspace`: a uint8 array on the engine's device, 64-byte
    aligned (GPU: 256), of workspace_size() bytes or more; None: the engine's own memory. On a GPU the kernel is compiled, or found in the
    cache, now.

    Raises ValueError and TypeError (the field is named), UnsupportedError (every kernel considered, with its reason), MismatchError (a
    workspace that is too small: both sizes).
    """

    spec: Spec
    capacity: Capacity
    options: Options

    def __init__(self, spec: Spec, capacity: Capacity | None = None, options: Options | None = None, *, workspace=None, **fields):
        if not isinstance(spec, Spec):
            raise TypeError(f"`spec`: expected a kvloom.Spec, got {type(spec).__name__}")
        capacity, options = split_fields(capacity, options, fields)
        super().__init__(spec, capacity, options, workspace)
        self.spec = spec
        self.capacity = capacity
        self.options = options

    def __repr__(self):
        return f"<kvloom.Engine {self.kernel_key}>" if "spec" in vars(self) else "<kvloom.Engine, not made>"

    def _repr_html_(self):
        return f"<pre>{html.escape(self.explain())}</pre>"


def split_fields(capacity, options, fields) -> tuple[Capacity, Options]:
    """Keywords that are fields of Capacity or of Options, as those."""
    of_capacity = {k: v for k, v in fields.items() if k in Capacity.__dataclass_fields__}
    of_options = {k: v for k, v in fields.items() if k in Options.__dataclass_fields__}
    for name in fields:
        if name not in of_capacity and name not in of_options:
            known = ", ".join([*Capacity.__dataclass_fields__, *Options.__dataclass_fields__])
            raise TypeError(f"`{name}`: no such field of an engine; there are: {known}")
    if capacity is not None and of_capacity:
        raise TypeError(f"`{next(iter(of_capacity))}`: given beside `capacity`; say it in one place")
    if options is not None and of_options:
        raise TypeError(f"`{next(iter(of_options))}`: given beside `options`; say it in one place")
    if capacity is None:
        for name in ("max_requests", "max_query_tokens"):
            if name not in of_capacity:
                raise TypeError(f"`{name}`: expected the largest number that a step will have, got nothing")
    return capacity or Capacity(**of_capacity), options or Options(**of_options)


def workspace_size(spec: Spec, capacity: Capacity | None = None, options: Options | None = None, **fields) -> int:
    """Exact bytes of an engine's workspace: it can be made with so many and not with one fewer. Arguments as Engine's."""
    return _core.workspace_size(spec, *split_fields(capacity, options, fields))
