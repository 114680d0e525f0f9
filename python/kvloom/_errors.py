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


def _arguments_of(method: str) -> tuple[list[str], list[str], list[str]]:
    """Names of the arguments of Engine's method: those by place, those of them that must be given, and those by name alone."""
    import inspect

    from . import _core

    signature = (inspect.getdoc(getattr(_core.Engine, method)) or "").partition("\n")[0]
    by_place, needed, by_name = [], [], None
    for part in signature.partition("(")[2].split(", "):
        name, colon, rest = part.partition(":")
        if part == "*":
            by_name = []
        elif colon and not part.startswith("*"):
            (by_place if by_name is None else by_name).append(name)
            if by_name is None and "=" not in rest:
                needed.append(name)
    return by_place, needed, by_name or []


def refuse_unknown(method: str, name: str):
    """The TypeError for a keyword that Engine's method does not have."""
    import difflib

    by_place, _, by_name = _arguments_of(method)
    known = by_place + by_name
    near = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean `{near[0]}`? There are" if near else "there are"
    raise TypeError(f"`{name}`: {method} has no such argument; {hint}: {', '.join(known)}")


def refuse_call(method: str, given: tuple, named: dict):
    """The TypeError for arguments of Engine's method that are missing, too many, or given twice."""
    by_place, needed, by_name = _arguments_of(method)
    for name in named:
        if name not in by_place and name not in by_name:
            refuse_unknown(method, name)
    if len(given) > len(by_place):
        rest = f", the rest by name: {', '.join(by_name)}" if by_name else ""
        raise TypeError(f"{method}: expected at most {len(by_place)} arguments by place ({', '.join(by_place)}){rest}; got {len(given)}")
    for name in by_place[: len(given)]:
        if name in named:
            raise TypeError(f"`{name}`: {method} got it twice, by place and by name")
    missing = [f"`{name}`" for name in needed[len(given) :] if name not in named]
    raise TypeError(f"{', '.join(missing)}: {method} got nothing for {'it' if len(missing) == 1 else 'them'}; expected {method}({', '.join(needed)}, ..)")
