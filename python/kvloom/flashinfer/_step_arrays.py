"""A step's lengths and lists where engines look for them: attributes like `_paged_kv_indptr_buf`, where the wrapper is. No kernel here reads them, and a copy
to a GPU costs plan more than all else that it does, so they are copied when somebody asks."""

from __future__ import annotations

from ._arrays import copied, host, indices, on_gpu, placed


class OnHost:
    """An array of ours that moves when it is asked for."""

    __slots__ = ("array",)

    def __init__(self, array):
        self.array = array


class StepArray:
    """Such an attribute of a wrapper."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, wrapper, owner=None):
        if wrapper is None:
            return self
        attributes = vars(wrapper)
        try:
            x = attributes[self.name]
        except KeyError:
            raise AttributeError(f"{type(wrapper).__name__!r} object has no attribute {self.name!r}") from None
        if type(x) is OnHost:
            x = attributes[self.name] = placed(x.array, wrapper._float_workspace_buffer)
        return x

    def __set__(self, wrapper, x):
        vars(wrapper)[self.name] = x


def step_array(x, name: str, like):
    """What plan sets such an attribute to: integers of the caller's, who may write the next step into them, that shall be where `like` is."""
    x = indices(x, name)
    return OnHost(copied(host(x))) if on_gpu(like) and not on_gpu(x) else placed(x, like)
