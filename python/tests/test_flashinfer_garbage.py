"""kvloom.flashinfer: anything in the place of any argument. A call works, or raises what fits and names the argument."""

import kvloom
import kvloom.flashinfer as flashinfer
import numpy as np
import pytest

f32, i32 = np.float32, np.int32
RNG = np.random.default_rng(0)
WORKSPACE = np.empty(1 << 16, np.uint8)
INDPTR, INDICES, LAST, QO = np.array([0, 2, 3], i32), np.array([1, 0, 2], i32), np.array([1, 4], i32), np.array([0, 1, 2], i32)
K, Q = RNG.standard_normal((5, 4, 2, 32), dtype=f32), RNG.standard_normal((2, 4, 32), dtype=f32)
HEADS = {"num_qo_heads": 4, "num_kv_heads": 2, "page_size": 4}
TABLES = {"paged_kv_indptr": INDPTR, "paged_kv_indices": INDICES, "paged_kv_last_page_len": LAST}

GARBAGE = [None, 3, -1, 2.5, "x", [], [1, 2], {}, object(), b"abc", float("nan"), True, (1, 2), 10**12]
GARBAGE += [np.zeros(0, f32), np.zeros((2, 2), f32), np.zeros(3, np.int64), np.zeros((1, 2, 3, 4, 5), f32), np.array(5)]


def made(name, *args):
    return getattr(flashinfer, name)(*args or (WORKSPACE,))


def decode_plan():
    dims = {
        "head_dim": 32,
        "q_data_type": "float32",
        "sm_scale": 0.2,
        "window_left": -1,
        "logits_soft_cap": 0.0,
        "fixed_split_size": None,
        "q_len_per_req": 1,
    }
    tables = {"indptr": INDPTR, "indices": INDICES, "last_page_len": LAST}
    return made("BatchDecodeWithPagedKVCacheWrapper").plan, {**tables, **HEADS, **dims, "pos_encoding_mode": "NONE"}


def decode_run():
    wrapper = made("BatchDecodeWithPagedKVCacheWrapper")
    wrapper.plan(INDPTR, INDICES, LAST, 4, 2, 32, 4, q_data_type="float32")
    options = dict.fromkeys(("q_scale", "k_scale", "v_scale", "out", "lse", "window_left", "sinks"))
    return wrapper.run, {"q": Q, "paged_kv_cache": (K, K), **options}


def prefill_plan():
    options = dict.fromkeys(("custom_mask", "packed_custom_mask", "prefix_len_ptr", "token_pos_in_items_ptr", "head_dim_vo"))
    return made("BatchPrefillWithPagedKVCacheWrapper").plan, {
        "qo_indptr": QO,
        **TABLES,
        **HEADS,
        "head_dim_qk": 32,
        "q_data_type": "float32",
        **options,
    }


def ragged_run():
    wrapper = made("BatchPrefillWithRaggedKVCacheWrapper")
    wrapper.plan(QO, np.array([0, 3, 5], i32), 4, 2, 32, q_data_type="float32")
    flat = K.reshape(-1, 2, 32)[:5]
    return wrapper.run, {"q": Q, "k": flat, "v": flat, "out": None, "lse": None, "o_scale": None}


def single_prefill():
    options = {"custom_mask": None, "kv_layout": "NHD", "sm_scale": None, "window_left": -1, "logits_soft_cap": None, "scale_q": None}
    return flashinfer.single_prefill_with_kv_cache, {"q": Q, "k": K[0], "v": K[0], **options}


def single_decode():
    return flashinfer.single_decode_with_kv_cache, {"q": Q[0], "k": K[0], "v": K[0], "kv_layout": "NHD"}


def merge_state():
    return flashinfer.merge_state, {"v_a": Q, "s_a": Q[:, :, 0], "v_b": Q, "s_b": Q[:, :, 0]}


def merge_states():
    return flashinfer.merge_states, {"v": Q[:, None], "s": Q[:, None, :, 0]}


def append():
    where = {"batch_indices": np.array([0, 0, 0, 1], i32), "positions": np.arange(4, dtype=i32)}
    tables = {"kv_indices": INDICES, "kv_indptr": INDPTR, "kv_last_page_len": LAST}
    return flashinfer.append_paged_kv_cache, {"append_key": K[0], "append_value": K[0], **where, "paged_kv_cache": (K.copy(), K.copy()), **tables}


def positions():
    return flashinfer.get_batch_indices_positions, {"append_indptr": INDPTR, "seq_lens": LAST}


def packing():
    return flashinfer.segment_packbits, {"x": np.ones(3, bool), "indptr": INDPTR, "bitorder": "little"}


def rope():
    return flashinfer.apply_rope, {
        "q": Q,
        "k": Q,
        "indptr": QO,
        "offsets": np.array([0, 1], i32),
        "rotary_dim": None,
        "interleave": False,
        "rope_scale": 1.0,
    }


def rope_by_table():
    flat = Q.reshape(2, -1)
    table = {"cos_sin_cache": np.zeros((4, 32), f32), "is_neox": True}
    return flashinfer.apply_rope_with_cos_sin_cache, {"positions": np.array([0, 1]), "query": flat, "key": flat, "head_size": 32, **table}


def cascade():
    arrays = {"qo_indptr_arr": [QO], "paged_kv_indptr_arr": [INDPTR], "paged_kv_indices_arr": [INDICES], "paged_kv_last_page_len": [LAST]}
    return made("MultiLevelCascadeAttentionWrapper", 1, WORKSPACE).plan, {**arrays, **HEADS, "head_dim": 32}


def blocks():
    dims = {"M": 4, "N": 8, "R": 2, "C": 4, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 32}
    return made("BlockSparseAttentionWrapper").plan, {"indptr": np.arange(3), "indices": np.array([0, 1]), **dims, "mask": None, "block_mask": None}


def blocks_of_any_sizes():
    sizes = {"block_mask_map": np.ones((2, 1, 1), bool), "block_row_sz": np.full((2, 1), 2), "block_col_sz": np.full((2, 1), 3)}
    return made("VariableBlockSparseAttentionWrapper").plan, {**sizes, "num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 32}


def batch_attention():
    tables = {"qo_indptr": QO, "kv_indptr": INDPTR, "kv_indices": INDICES, "kv_len_arr": np.array([5, 4])}
    return flashinfer.BatchAttention().plan, {**tables, **HEADS, "head_dim_qk": 32, "head_dim_vo": 32, "causal": False, "sm_scale": None}


LATENT = {"num_heads": 4, "head_dim_ckv": 32, "head_dim_kpe": 16, "page_size": 4, "causal": False, "sm_scale": 0.1}
LATENT |= {
    "qo_indptr": QO,
    "kv_indptr": INDPTR,
    "kv_indices": INDICES,
    "kv_len_arr": np.array([5, 4]),
    "q_data_type": "float32",
    "kv_data_type": "float32",
}


def latent_plan():
    return made("BatchMLAPagedAttentionWrapper").plan, dict(LATENT)


def latent_run():
    wrapper = made("BatchMLAPagedAttentionWrapper")
    wrapper.plan(**LATENT)
    return wrapper.run, {"q_nope": Q, "q_pe": Q[..., :16], "ckv_cache": K[:, :, 0], "kpe_cache": K[:, :, 0, :16], "ckv_scale": None, "out": None}


def page_tables():
    tables = {"block_tables": np.array([[0, 1], [2, 3]], i32), "seq_lens": np.array([5, 4]), "max_seq_len": 8}
    rest = {"bmm1_scale": 0.1, "bmm2_scale": 1.0, "sinks": None, "window_left": -1}
    return flashinfer.xqa_batch_decode_with_kv_cache, {"query": Q, "kv_cache": (K, K), "workspace_buffer": WORKSPACE, **tables, **rest}


def construction():
    options = {"kv_layout": "NHD", "use_cuda_graph": False, "backend": "auto", "jit_args": None}
    return flashinfer.BatchPrefillWithPagedKVCacheWrapper, {"float_workspace_buffer": WORKSPACE, **options}


CALLS = [decode_plan, decode_run, prefill_plan, ragged_run, single_prefill, single_decode, merge_state, merge_states, append, packing, rope]
CALLS += [rope_by_table, cascade, blocks, blocks_of_any_sizes, batch_attention, latent_plan, latent_run, page_tables, construction]


@pytest.mark.parametrize("call", CALLS, ids=lambda c: c.__name__)
def test_garbage(call):
    function, good = call()
    function(**good)
    for name in good:
        for garbage in GARBAGE:
            function, good = call()
            try:
                function(**{**good, name: garbage})
            except kvloom.UnsupportedError as error:  # each kernel with its reason, or the argument
                assert "no kernel" in str(error) or "`" in str(error), (name, garbage, error)
            except (ValueError, TypeError, KeyError, kvloom.Error) as error:
                # The library's own words name the field: "run: out: address: ...", "Engine: spec.soft_cap: ...".
                assert "`" in str(error) or ": got " in str(error), (name, garbage, error)
