"""What differs between NumPy, torch, CuPy and JAX: making outputs, naming dtypes, the current stream. Imports none of them: who hands over a
framework's tensor has imported it."""

import sys

_NAMES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
_SHORT = {long: short for short, long in _NAMES.items()} | {short: short for short in _NAMES} | {"float": "f32", "half": "f16"}


def dtype_name(dtype, argument: str = "dtype") -> str:
    """f32, f16, bf16, e4m3 or e5m2 of a name, a NumPy, ml_dtypes, torch or JAX dtype."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    short = _SHORT.get(name.removeprefix("torch."))
    if short is None:
        raise ValueError(f"`{argument}`: expected f32, f16, bf16, e4m3 or e5m2 (or a framework's dtype of those), got {dtype!r}")
    return short


def torch_dtype(short: str):
    """torch's dtype of f32, f16, bf16, e4m3 or e5m2."""
    return getattr(sys.modules["torch"], _NAMES[short])


def framework_of(tensor) -> str:
    """The top-level module of a tensor's type: "numpy", "torch", "cupy", "jaxlib", ..."""
    for base in type(tensor).__mro__:
        name = base.__module__.partition(".")[0]
        if name in ("numpy", "torch", "cupy", "jaxlib", "jax"):
            return name
    return type(tensor).__module__.partition(".")[0]


def _numpy_dtype(name):
    numpy = sys.modules["numpy"]
    if hasattr(numpy, _NAMES[name]):
        return numpy.dtype(_NAMES[name])
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(f"NumPy has no {_NAMES[name]} by itself: install ml_dtypes, or choose another dtype") from None
    return numpy.dtype(getattr(ml_dtypes, _NAMES[name]))


class _Fresh:
    """An array of JAX's that nobody has seen yet, to be written before anybody does: JAX's own can't be, and say so where they are asked by version."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, stream=None, **_):
        return self.array.__dlpack__()  # waits until it is there

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def empty(like, shape, dtype: str):
    """An uninitialised tensor of `like`'s framework, where `like` is."""
    framework = framework_of(like)
    if framework == "torch":
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=torch_dtype(dtype), device=like.device)
    if framework == "cupy":
        return sys.modules["cupy"].empty(shape, dtype=_NAMES[dtype])
    if framework in ("jaxlib", "jax"):
        device = next(iter(like.devices()))
        if device.platform != "cpu":
            return _Fresh(sys.modules["jax"].numpy.empty(shape, dtype=_NAMES[dtype], device=device))
        # JAX's arrays can't be written: NumPy's are, and converted() makes JAX's of them.
        import numpy as host

        return host.empty(shape, _numpy_dtype(dtype))
    numpy = sys.modules.get("numpy")
    if numpy is None:
        raise TypeError(f"`out`: no way is known to make an output for a {type(like).__name__}: give `out` (and `lse`, if wanted)")
    return numpy.empty(shape, _numpy_dtype(dtype))


def converted(like, made):
    """`made`, an output that empty() gave, in `like`'s framework."""
    if isinstance(made, _Fresh):
        return made.array
    if framework_of(like) in ("jaxlib", "jax"):
        return sys.modules["jax"].numpy.asarray(made)
    return made


def current_stream(tensor, device: int) -> int:
    """Address of the stream that the tensor's framework works in; 0, the default stream, for those without one (JAX: who uses that waits for it)."""
    framework = framework_of(tensor)
    if framework == "torch":
        return sys.modules["torch"].cuda.current_stream(device).cuda_stream
    if framework == "cupy":
        return sys.modules["cupy"].cuda.get_current_stream().ptr
    return 0


def ramp(like, device: int, size: int):
    """0, 1, .. size - 1 as int32 on GPU `device`, in `like`'s framework; there when this returns, whatever stream reads it then."""
    framework = framework_of(like)
    if framework == "torch":
        torch = sys.modules["torch"]
        if torch.cuda.is_current_stream_capturing():
            raise ValueError("`qo_indptr`: got None in the capture of a graph; plan a step without it on this engine before, or give it")
        made = torch.arange(size, dtype=torch.int32, device=torch.device("cuda", device))
        torch.cuda.current_stream(device).synchronize()
        return made
    if framework == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            made = cupy.arange(size, dtype=cupy.int32)
            cupy.cuda.get_current_stream().synchronize()
        return made
    if framework in ("jaxlib", "jax"):
        numpy = sys.modules["jax"].numpy
        return numpy.arange(size, dtype="int32", device=next(iter(like.devices()))).block_until_ready()
    raise TypeError(
        f"`qo_indptr`: got None with lengths in a {type(like).__name__}, expected 0, 1, .. up to the number of requests on the GPU; "
        "it is made for tensors of torch, CuPy and JAX alone"
    )


def on_host(x):
    """x, or its copy on the host where it is on a GPU, which waits for it."""
    if framework_of(x) in ("jaxlib", "jax"):
        import numpy as host

        return host.asarray(x)
    for move in ("cpu", "get"):  # torch, CuPy
        if hasattr(x, move) and not isinstance(x, dict):
            return getattr(x, move)()
    return x


def int_list(x) -> list[int]:
    """Lengths from anywhere as a list; on a GPU that waits for them."""
    return x.tolist() if hasattr(x, "tolist") else [int(i) for i in x]


def int_column(values: list[int]) -> memoryview:
    """[n, 1] int32, n > 0."""
    column = memoryview(bytearray(4 * len(values))).cast("i", (len(values), 1))
    for i, value in enumerate(values):
        column[i, 0] = value
    return column


def to_device(x, like):
    """Integers where `like` is, in its framework."""
    framework = framework_of(like)
    if framework == "torch":
        torch = sys.modules["torch"]
        if isinstance(x, (memoryview, list, tuple, range)):
            narrow = isinstance(x, memoryview) and x.format == "i"
            return torch.tensor(x.tolist() if isinstance(x, memoryview) else list(x), dtype=torch.int32 if narrow else torch.int64, device=like.device)
        return torch.as_tensor(x, device=like.device)
    if framework == "cupy":
        return sys.modules["cupy"].asarray(x)
    if framework in ("jaxlib", "jax"):
        import numpy as host

        # On the host first: JAX makes int32 of int64 unless it is told otherwise, and page ids may be either.
        return sys.modules["jax"].device_put(host.asarray(on_host(x), "int32"), next(iter(like.devices())))
    raise TypeError(f"no way is known to bring integers to the GPU of a {type(like).__name__}: use torch, CuPy or JAX, or kvloom.Engine")


def flattened(x, dims, name: str):
    """x with its first two dimensions as one; a copy where its strides want one."""
    if not hasattr(x, "reshape"):
        raise TypeError(f"`{name}`: expected a tensor of NumPy, torch, JAX or CuPy, got {type(x).__name__}")
    return x.reshape((dims[0] * dims[1], *dims[2:]))


def rotated(x, positions: list[int], cos, sin, interleaved: bool):
    """x [batch, seqlen, heads, dim] turned by tables [seqlen_ro, rotary_dim / 2], in fp32; a copy."""
    torch = framework_of(x) == "torch"
    half = cos.shape[-1]
    if 2 * half > x.shape[-1] or cos.shape != sin.shape:
        raise ValueError(
            f"`rotary_cos`, `rotary_sin`: expected [seqlen, at most {x.shape[-1] // 2}] both, got {list(cos.shape)} and {list(sin.shape)}"
        )
    if positions and not 0 <= min(positions) <= max(positions) < cos.shape[0]:
        raise ValueError(f"`rotary_cos`: expected a row for position {max(positions)}, got {cos.shape[0]} rows")
    cos, sin = (t[positions].reshape((*x.shape[:2], 1, half)) for t in (cos, sin))
    wide = (lambda t: t.float()) if torch else (lambda t: t.astype("float32"))
    first, second = (slice(0, 2 * half, 2), slice(1, 2 * half, 2)) if interleaved else (slice(0, half), slice(half, 2 * half))
    a, b, cos, sin = wide(x[..., first]), wide(x[..., second]), wide(cos), wide(sin)
    out = x.clone() if torch else x.copy()
    turned = a * cos - b * sin, b * cos + a * sin
    out[..., first], out[..., second] = (t.to(x.dtype) if torch else t.astype(x.dtype) for t in turned)
    return out
