"""The extension. `Any` tensor: NumPy, torch, JAX, CuPy, DLPack or a buffer. `Any` index: an int32 or int64 array, or a list."""

from typing import Any

class Plan:
    @property
    def total_tokens(self) -> int: ...
    @property
    def num_requests(self) -> int: ...
    @property
    def graph_key(self) -> int: ...
    def explain(self) -> str: ...
    def json(self) -> str: ...
    def svg(self) -> str: ...
    def _repr_svg_(self) -> str: ...
    def __bytes__(self) -> bytes: ...
    def upload(self, stream: Any = None) -> None: ...

class Engine:
    def __init__(self, spec: Any, capacity: Any, options: Any, workspace: Any) -> None: ...
    def plan(
        self,
        kv_len: Any,
        qo_indptr: Any = None,
        *,
        pages: Any = None,
        list_indptr: Any = None,
        block_table: Any = None,
        q_pos0: Any = None,
        q_pos: Any = None,
        prefix: Any = None,
        groups: Any = None,
        lists_per_kv_head: bool = False,
        kv_position: str = "linear",
    ) -> Plan: ...
    def replan(
        self,
        plan: Plan,
        kv_len: Any,
        qo_indptr: Any = None,
        *,
        pages: Any = None,
        list_indptr: Any = None,
        block_table: Any = None,
        q_pos0: Any = None,
        q_pos: Any = None,
        prefix: Any = None,
        groups: Any = None,
        lists_per_kv_head: bool = False,
        kv_position: str = "linear",
    ) -> None: ...
    def plan_on_device(
        self,
        kv_len: Any,
        qo_indptr: Any = None,
        *,
        pages: Any = None,
        list_indptr: Any = None,
        block_table: Any = None,
        q_pos0: Any = None,
        prefix: Any = None,
        lists_per_kv_head: bool = False,
        kv_position: str = "linear",
        num_tokens: int | None = None,
        max_q_len: int | None = None,
        kv_tokens: int | None = None,
        stream: Any = None,
    ) -> Plan: ...
    def replan_on_device(
        self,
        plan: Plan,
        kv_len: Any,
        qo_indptr: Any = None,
        *,
        pages: Any = None,
        list_indptr: Any = None,
        block_table: Any = None,
        q_pos0: Any = None,
        prefix: Any = None,
        lists_per_kv_head: bool = False,
        kv_position: str = "linear",
        num_tokens: int | None = None,
        max_q_len: int | None = None,
        kv_tokens: int | None = None,
        stream: Any = None,
    ) -> None: ...
    def check(self, plan: Plan, stream: Any = None) -> None: ...
    def plan_sparse(self, matrix: BlockSparse) -> Plan: ...
    def run(
        self,
        plan: Plan,
        q: Any,
        k: Any,
        v: Any,
        *,
        out: Any = None,
        lse: Any = None,
        return_lse: bool = False,
        pages: Any = None,
        page_pos: Any = None,
        layout: str = "NHD",
        alibi_slopes: Any = None,
        sink: Any = None,
        mask: Any = None,
        mask_indptr: Any = None,
        q_scale: Any = None,
        k_scale: Any = None,
        v_scale: Any = None,
        bare_state: bool = False,
        params: dict[str, Any] | None = None,
        stream: Any = None,
    ) -> Any: ...
    def explain(self) -> str: ...
    @property
    def kernel_key(self) -> str: ...
    @property
    def backend(self) -> str: ...
    @property
    def device(self) -> int: ...

class BlockSparse:
    def __init__(self, *args: Any) -> None: ...
    @property
    def page_size(self) -> int: ...
    @property
    def kv_tokens(self) -> int: ...
    @property
    def num_requests(self) -> int: ...
    @property
    def num_rows(self) -> int: ...
    def page_ids(self) -> bytes: ...


def merge_states(o_a: Any, lse_a: Any, o_b: Any, lse_b: Any, *, out: Any, lse: Any, stream: Any) -> None: ...
def merge_states_n(o: Any, lse: Any, indptr: Any, *, out: Any, lse_out: Any, stream: Any) -> None: ...
def append_kv(
    k_new: Any,
    v_new: Any,
    k: Any,
    v: Any,
    *,
    request: Any,
    pos: Any,
    rope_pos: Any,
    pages: Any,
    list_indptr: Any,
    block_table: Any,
    slots: Any,
    layout: str,
    rope: Any,
    k_scale: float,
    v_scale: float,
    stream: Any,
) -> None: ...
def append_slots(
    request: Any, pos: Any, pages: Any, list_indptr: Any, block_table: Any, page_size: int, num_pages: int, out: Any
) -> None: ...
def apply_rope(x: Any, pos: Any, rope: Any, stream: Any) -> None: ...
def page_list_lengths(indptr: Any, last_page_len: Any, page_size: int, out: Any, indptr_name: str, last_name: str) -> int: ...
def take_page_lists(indptr: Any, last_page_len: Any, page_size: int, begins: Any, last: Any, lengths: Any) -> int: ...
def pack_mask(mask: Any) -> bytearray: ...
def load_ops(device: int = -1) -> None: ...
def attention(
    spec: Any,
    options: Any,
    matrix: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    qo_indptr: Any,
    kv_len: Any,
    pages: Any,
    list_indptr: Any,
    block_table: Any,
    q_pos0: Any,
    q_pos: Any,
    prefix: Any,
    out: Any,
    lse: Any,
    return_lse: bool,
    layout: str,
    alibi_slopes: Any,
    sink: Any,
    mask: Any,
    mask_indptr: Any,
    q_scale: Any,
    k_scale: Any,
    v_scale: Any,
    params: Any,

) -> Any: ...
def shape_and_dtype(tensor: Any, name: str) -> tuple[tuple[int, ...], str]: ...
def shape_and_type(array: Any, name: str) -> tuple[tuple[int, ...], str]: ...
def gpu_of(tensor: Any, name: str) -> int | None: ...
def workspace_size(spec: Any, capacity: Any, options: Any) -> int: ...
def version() -> str: ...
