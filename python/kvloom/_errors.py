"""Exceptions for what is no mistake in an argument. Arguments that can never work are ValueError and TypeError."""


class Error(Exception):
    """A refusal of the library, or a fault of the device."""


class CapacityError(Error, ValueError):
    """A step that is valid, but larger than the engine was made for."""


class UnsupportedError(Error, NotImplementedError):
    """No kernel for this combination; the message has a line for each kernel that was considered, with its reason."""


class DeviceMemoryError(Error, MemoryError):
    """Not enough memory, of the host or of the GPU."""


class IoError(Error, OSError):
    """A file that can't be read, or a GPU whose driver reports a fault."""


class MismatchError(Error, ValueError):
    """A plan of another engine, or a workspace that is too small."""


class InternalError(Error, RuntimeError):
    """A bug of the library."""


def refuse_unknown(method: str, name: str):
    """The TypeError for a keyword that Engine's method does not have."""
    import difflib
    import inspect

    from . import _core

    signature = (inspect.getdoc(getattr(_core.Engine, method)) or "").partition("\n")[0]
    known = [part.partition(":")[0].strip() for part in signature.partition("(")[2].split(", ") if ":" in part and not part.startswith("*")]
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean `{near[0]}`? There are" if near else "there are"
    raise TypeError(f"`{name}`: {method} has no such argument; {hint}: {', '.join(known)}")
