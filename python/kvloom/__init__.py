"""kvloom: attention for LLM serving, on any CPU and on NVIDIA GPUs.

    spec = kvloom.Spec(num_qo_heads=32, num_kv_heads=8, head_dim=128, dtype="bf16", page_size=16, causal=True)
    engine = kvloom.Engine(spec, max_requests=64, max_query_tokens=4096)
    plan = engine.plan(kv_len, qo_indptr, block_table=table)     # once a step: lengths and page tables, on the host
    engine.run(plan, q, k, v, out=o)                             # once a layer

Tensors are NumPy's, torch's, JAX's, CuPy's, or anything with DLPack or a buffer; they are read where they are, and written, but for JAX's, which can't
be: outputs are new ones. On a GPU work goes into the framework's current stream; JAX's arrays are waited for. Causal is bottom-right aligned; LSE is the natural logarithm; a row that keeps no key gives 0 and -inf.
"""

from . import hooks
from ._attention import attention
from ._core import Plan, version
from ._engine import Engine, workspace_size
from ._errors import CapacityError, DeviceMemoryError, Error, InternalError, IoError, MismatchError, UnsupportedError
from ._ops import append_kv, append_slots, apply_rope, load_ops, merge_states, merge_states_n, merge_states_ragged, pack_mask
from ._sparse import BlockSparse
from ._spec import Capacity, LevelGroup, Options, Rope, Spec, Variant
from ._variant import variant

__version__ = version()

__all__ = [
    "append_kv",
    "append_slots",
    "apply_rope",
    "attention",
    "BlockSparse",
    "Capacity",
    "CapacityError",
    "DeviceMemoryError",
    "Engine",
    "Error",
    "hooks",
    "InternalError",
    "IoError",
    "LevelGroup",
    "load_ops",
    "merge_states",
    "merge_states_n",
    "merge_states_ragged",
    "MismatchError",
    "Options",
    "pack_mask",
    "Plan",
    "Rope",
    "Spec",
    "UnsupportedError",
    "Variant",
    "variant",
    "version",
    "workspace_size",
]
