"""What stays fixed for the life of an engine."""

from __future__ import annotations

import dataclasses
import os
import typing

from ._frameworks import dtype_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rope:
    """Rotary positions, fused: queries and keys are turned as they are read.

    angle(pos, i) = pos * theta^(-2 i / rotary_dim) / scaling. With high_freq_factor > 0 the scaling is that of Llama 3.1, by wavelength.
    """

    mode: typing.Literal["none", "interleaved", "half_split"] = "half_split"
    rotary_dim: int = 0  # even, at most head_dim; 0: the whole head
    theta: float = 10000.0
    scaling: float = 1.0
    low_freq_factor: float = 0.0
    high_freq_factor: float = 0.0
    original_context: float = 8192.0


@dataclasses.dataclass(frozen=True)
class Variant:
    """An attention of one's own: C++ text with hooks (docs/variants.md). `name` stands for the text's file in messages. `params`: values for its
    parameters where a run gives none of the name (kvloom.variant keeps the arrays here that its functions use)."""

    text: str
    name: str = "variant"
    params: dict = dataclasses.field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> Variant:
        with open(path, encoding="utf-8") as file:
            return cls(file.read(), os.fspath(path))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """One kind of attention: heads, dims, dtypes, variant.

    num_qo_heads   query heads, a multiple of num_kv_heads
    num_kv_heads   default: num_qo_heads
    head_dim       of Q and K; head_dim_vo of V and the output, default the same (MLA: 576 and 512)
    dtype          of Q: "f32", "f16", "bf16", "e4m3", "e5m2", or a dtype of NumPy, torch or JAX; kv_dtype of K and V, default the same;
                   o_dtype of the output, default that of Q (fp8: bf16)
    page_size      tokens a page; None: K and V are ragged, [tokens, num_kv_heads, head_dim]
    sm_scale       0: 1 / sqrt(head_dim)

    A key at kv_pos is kept by a row at q_pos where causal (kv_pos <= q_pos), window_left (kv_pos >= q_pos - window_left: W keeps W + 1 keys)
    and window_right allow it; -1: no bound. logit = sm_scale * q.k, + ALiBi slope * (kv_pos - q_pos), soft cap c: c * tanh(logit / c). A sink
    adds exp(sink[head]) to the denominator, once. reduction "sum": the weight of a key is sigmoid(logit + sigmoid_bias), and there is no LSE.
    alibi, custom_mask and sink say that every run brings alibi_slopes, mask and mask_indptr, sink.
    """

    num_qo_heads: int
    num_kv_heads: int = 0
    head_dim: int
    head_dim_vo: int = 0
    dtype: typing.Any = "f32"
    kv_dtype: typing.Any = None
    o_dtype: typing.Any = None
    page_size: int | None = None
    sm_scale: float = 0.0
    causal: bool = False
    window_left: int = -1
    window_right: int = -1
    soft_cap: float = 0.0
    alibi: bool = False
    custom_mask: bool = False
    sink: bool = False
    reduction: typing.Literal["softmax", "sum"] = "softmax"
    sigmoid_bias: float = 0.0
    rope: Rope | None = None
    variant: Variant | str | None = None  # a str is the text of one

    def __post_init__(self):
        def default(name, value):
            object.__setattr__(self, name, value)

        default("num_kv_heads", self.num_kv_heads or self.num_qo_heads)
        default("head_dim_vo", self.head_dim_vo or self.head_dim)
        default("dtype", dtype_name(self.dtype))
        default("kv_dtype", dtype_name(self.kv_dtype, "kv_dtype") if self.kv_dtype is not None else self.dtype)
        default("o_dtype", dtype_name(self.o_dtype, "o_dtype") if self.o_dtype is not None else "bf16" if self.dtype in ("e4m3", "e5m2") else self.dtype)
        if isinstance(self.variant, str):
            if self.variant and not any(mark in self.variant for mark in ("\n", "{", "KVLOOM_VARIANT")):
                raise ValueError(f"`variant`: expected C++ text, got {self.variant!r}; of a file: kvloom.Variant.from_file(path)")
            default("variant", Variant(self.variant))
        elif not (self.variant is None or isinstance(self.variant, Variant)):
            remedy = "; make one of a function by kvloom.variant(score_mod, mask_mod)" if callable(self.variant) else ""
            raise TypeError(f"`variant`: expected a Variant, or the text of one, got {type(self.variant).__name__}{remedy}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Capacity:
    """The worst step that will ever be planned; buffers are sized by it.

    max_query_tokens, max_kv_tokens: sums of q_len and kv_len over a step; max_kv_tokens 0: not bounded. max_level_rows: query tokens gathered
    by shared levels (requests that share a prefix: their tokens); 0: no shared levels.
    """

    max_requests: int
    max_query_tokens: int
    max_kv_tokens: int = 0
    max_level_rows: int = 0
    max_groups: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """Where and how an engine runs.

    backend        "auto": a GPU if there is one that runs the spec, else the CPU
    threads        CPU; 0: one a core, shared by all such engines
    num_ctas       0: the backend's own; equal numbers give equal bits; clusters of two where CTAs work so (family sm90, many rows)
    policy         how work is split; "fixed_split": a request's bits do not depend on its batch (split_tokens: its chunk)
    levels         "automatic": shared prefixes are found from the page tables, where Capacity.max_level_rows allows them
    check_pages    plan reads every page id that a row can see, and run refuses one out of range
    device         GPU's ordinal; -1: that of the current context, else 0
    cuda_arch      "sm_90a": plan and explain for it without a device
    kernel         "sm80": this family of kernels and no other
    early_launch   Hopper and up: a run's kernel may take its place while the work in front of it in the stream ends
    """

    backend: typing.Literal["auto", "cpu", "cuda"] = "auto"
    threads: int = 0
    num_ctas: int = 0
    policy: typing.Literal["automatic", "none", "heap", "stream", "fill", "fixed_split"] = "automatic"
    levels: typing.Literal["automatic", "off"] = "automatic"
    split_tokens: int = 0
    check_pages: bool = True
    check_pointers: bool = True
    cpu_target: str | None = None
    device: int = -1
    cuda_arch: str | None = None
    kernel: str | None = None
    early_launch: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class LevelGroup:
    """Query tokens that all attend to one list of KV blocks: a row group of an explicit level. Levels of a row merge in ascending order.

    tokens            rows of Q, any order
    list_begin        first entry of the list in `pages` (ragged: first token)
    kv_begin, kv_end  tokens of the list that count
    kv_pos0           position of list token 0; kv_index0: its column in the custom mask
    kv_head           -1: all
    """

    tokens: typing.Any
    list_begin: int
    kv_end: int
    kv_begin: int = 0
    kv_pos0: int = 0
    kv_index0: int = 0
    kv_head: int = -1
    level: int = 0
