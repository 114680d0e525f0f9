"""kvloom.flashinfer: bad input names the argument, what was expected, what came."""

import subprocess
import sys

import kvloom
import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, PAGE, NumPy, Pages, rows

fw = NumPy()
f32 = {"q_data_type": "float32"}


@pytest.fixture
def pages(rng):
    return Pages(rng, fw, [9, 4])


@pytest.fixture
def workspace():
    return np.empty(1 << 16, np.uint8)


def decode(workspace, pages, **options):
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, **f32, **options)
    return wrapper


def test_imports_no_framework():
    code = "import sys, kvloom.flashinfer; sys.exit(bool({'torch', 'numpy', 'cupy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_construction(workspace):
    make = flashinfer.BatchDecodeWithPagedKVCacheWrapper
    with pytest.raises(KeyError, match="`kv_layout`: expected 'NHD' or 'HND', got 'DHN'"):
        make(workspace, "DHN")
    with pytest.raises(ValueError, match="`backend`: expected one of auto, fa2"):
        make(workspace, backend="fa7")
    with pytest.raises(ValueError, match="`paged_kv_indices_buffer`: expected a buffer in CUDA-graph mode"):
        make(workspace, use_cuda_graph=True, paged_kv_indptr_buffer=np.zeros(2, np.int32), paged_kv_last_page_len_buffer=np.zeros(1, np.int32))
    with pytest.raises(ValueError, match="`float_workspace_buffer`: float_workspace_buffer must be 16-byte aligned, got address"):
        make(workspace[1:])
    with pytest.raises(TypeError, match="`float_workspace_buffer`: expected a uint8 tensor, got list"):
        make([1, 2])
    with pytest.raises(kvloom.UnsupportedError, match="docs/variants.md"):
        make(workspace, jit_args=["x", 0, 0, 0, 0, 64, 64, [], [], [], [], "Mine", "struct Mine {};"])


def test_plan(workspace, pages):
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    tables, heads = (pages.indptr, pages.indices, pages.last), (HEADS, KV_HEADS, DIM, PAGE)
    cases = [
        (TypeError, "`window`: no such argument of plan", tables, heads, {"window": 3}),
        (TypeError, "`indptr`: expected int32", (pages.indptr.astype(np.float32), *tables[1:]), heads, {}),
        (TypeError, "`indices`: expected an int32 array", (tables[0], None, tables[2]), heads, {}),
        (ValueError, "`indptr`: expected 1 dimension", (tables[0][None], *tables[1:]), heads, {}),
        (ValueError, "`last_page_len`: expected 2 entries", (*tables[:2], tables[2][:1]), heads, {}),
        (ValueError, r"`last_page_len`: request 1: expected 1 .. 4 \(page_size\), got 5", (*tables[:2], np.array([1, 5])), heads, {}),
        (ValueError, "`num_qo_heads`: expected a multiple of num_kv_heads, 3", tables, (HEADS, 3, DIM, PAGE), {}),
        (ValueError, "`page_size`: expected a number of tokens above 0", tables, (HEADS, KV_HEADS, DIM, 0), {}),
        (KeyError, "`pos_encoding_mode`: expected 'NONE'", tables, heads, {"pos_encoding_mode": "YARN"}),
        (ValueError, "`sm_scale`: expected a number above 0", tables, heads, {"sm_scale": 0.0}),
        (ValueError, "`q_len_per_req`: expected 1 or more", tables, heads, {"q_len_per_req": 0}),
        (ValueError, "`q_len_per_req`: expected 1 in a wrapper without use_tensor_cores, got 2", tables, heads, {"q_len_per_req": 2}),
        (ValueError, "`window_right`: expected 0", tables, heads, {"window_right": 3}),
        (ValueError, "`q_data_type`: expected f32, f16, .*, got 'int8'", tables, heads, {"q_data_type": "int8"}),
        (ValueError, "`kv_data_type`: expected f32, f16, .*, got 'int8'", tables, heads, {"kv_data_type": "int8"}),
        (kvloom.UnsupportedError, "NVFP4", tables, heads, {"kv_data_type": "uint8"}),
        (ValueError, r"`indptr`: expected entries from 0 on that do not decrease, got \[0, 3, 2\]", (np.array([0, 3, 2]), *tables[1:]), heads, {}),
        (ValueError, "`indices`: expected at least 4 page ids, as `indptr` says, got 2", (tables[0], tables[1][:2], tables[2]), heads, {}),
    ]
    wrapper.plan(*tables, *heads, **f32)
    before = dict(vars(wrapper))
    for error, message, lists, dims, options in cases:
        with pytest.raises(error, match=message):
            wrapper.plan(*lists, *dims, **{**f32, **options})
    assert vars(wrapper) == before  # nothing is left of a plan that failed
    with pytest.raises(TypeError, match="at most 23 positional arguments"):
        wrapper.plan(*tables, *heads, *[None] * 17)
    with pytest.raises(TypeError, match="`window_left`: got it by position and by name"):
        wrapper.plan(*tables, *heads, "NONE", -1, window_left=-1)


def test_run(rng, workspace, pages):
    q, cache = rows(rng, fw, 2), (pages.k, pages.v)
    with pytest.raises(RuntimeError, match=r"run: expected a plan\(\) before it"):
        flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace).run(q, cache)
    wrapper = decode(workspace, pages)
    cases = [
        (ValueError, "`q.dtype`: expected f32, as plan's q_data_type says, got f16", (q.astype(np.float16), cache), {}),
        (ValueError, "`k.dtype`: expected f32, as plan's kv_data_type says, got f16", (q, tuple(x.astype(np.float16) for x in cache)), {}),
        (ValueError, "`out.dtype`: expected f32, as plan's o_data_type says", (q, cache), {"out": np.zeros((2, HEADS, DIM), np.float16)}),
        (ValueError, "`q`: expected 2 rows", (q[:1], cache), {}),
        (ValueError, r"`k`: expected", (q, (pages.k[:, :2], pages.v)), {}),
        (ValueError, r"`paged_kv_cache`: expected \(k, v\), or one tensor \[pages, 2, page_size, heads, dim\]", (q, pages.k[0]), {}),
        (ValueError, r"`paged_kv_cache`: expected \(k, v\), got 3", (q, (pages.k,) * 3), {}),
        (ValueError, "`q_len_per_req`: expected 1, as planned, got 2", (q, cache), {"q_len_per_req": 2}),
        (TypeError, "expected no more positional arguments", (q, cache, 1.0, 1.0, 1.0), {}),
        (kvloom.UnsupportedError, "`kv_cache_sf`", (q, cache), {"kv_cache_sf": 1}),
        (ValueError, "`k_scale`: expected a number", (q, cache), {"k_scale": np.ones(2, np.float32)}),
        (ValueError, "pages", (q, (pages.k[:2], pages.v[:2])), {}),
    ]
    for error, message, args, options in cases:
        with pytest.raises(error, match=message):
            wrapper.run(*args, **options)


def test_prefill(rng, workspace, pages):
    paged, ragged = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace), flashinfer.BatchPrefillWithRaggedKVCacheWrapper(workspace)
    heads = (HEADS, KV_HEADS, DIM, PAGE)
    with pytest.raises(ValueError, match="`paged_kv_indptr`: expected 4 entries, as `qo_indptr` has, got 3"):
        paged.plan([0, 1, 2, 3], pages.indptr, pages.indices, pages.last, *heads, **f32)
    with pytest.raises(ValueError, match=r"`custom_mask`: expected 13 elements"):
        paged.plan([0, 1, 2], pages.indptr, pages.indices, pages.last, *heads, custom_mask=np.ones(12, bool), **f32)
    with pytest.raises(ValueError, match=r"`packed_custom_mask`: expected 3 bytes"):
        paged.plan([0, 1, 2], pages.indptr, pages.indices, pages.last, *heads, packed_custom_mask=np.ones(2, np.uint8), **f32)
    with pytest.raises(ValueError, match="`kv_indptr`: expected 3 entries"):
        ragged.plan([0, 1, 2], [0, 4], *heads[:3], **f32)
    with pytest.raises(kvloom.UnsupportedError, match="`v_indptr`: expected None or the entries of `kv_indptr`"):
        ragged.plan([0, 1, 2], [0, 4, 8], *heads[:3], v_indptr=[0, 1, 2], **f32)
    ragged.plan([0, 1, 2], [0, 4, 8], *heads[:3], **f32)
    k = rows(rng, fw, 7, heads=KV_HEADS)
    with pytest.raises(ValueError, match="wanted at least 8"):
        ragged.run(rows(rng, fw, 2), k, k)
    with pytest.raises(ValueError, match=r"`q`: expected \[tokens, heads, head_dim\]"):
        flashinfer.single_prefill_with_kv_cache(k[0], k, k)
    with pytest.raises(ValueError, match=r"`custom_mask`: expected \[2, 7\], got \[7, 2\]"):
        flashinfer.single_prefill_with_kv_cache(rows(rng, fw, 2), k, k, custom_mask=np.ones((7, 2), bool))
    with pytest.raises(ValueError, match="`v`: expected dtype f32, as k has, got f16"):
        flashinfer.single_prefill_with_kv_cache(rows(rng, fw, 2), k, k.astype(np.float16))


def test_around(pages):
    with pytest.raises(ValueError, match="`bitorder`: expected 'big' or 'little'"):
        flashinfer.packbits(np.ones(3, bool), "middle")
    with pytest.raises(ValueError, match="`x`: expected 3 elements"):
        flashinfer.segment_packbits(np.ones(4, bool), [0, 3])
    with pytest.raises(ValueError, match="`mask`: expected"):
        flashinfer.merge_state_in_place(*([np.ones((2, 1, 8), np.float32), np.ones((2, 1), np.float32)] * 2), mask=np.ones(3, bool))
    new = np.ones((1, KV_HEADS, DIM), np.float32)
    before = pages.k.copy()
    with pytest.raises(ValueError, match="pos"):
        flashinfer.append_paged_kv_cache(new, new, [0], [99], (pages.k, pages.v), pages.indices, pages.indptr, pages.last)
    with pytest.raises(ValueError, match="`positions`: expected 1 entries"):
        flashinfer.append_paged_kv_cache(new, new, [0], [1, 2], (pages.k, pages.v), pages.indices, pages.indptr, pages.last)
    few = new[:, :1]
    for pair, name in (((few, new), "append_key"), ((new, few), "append_value")):
        with pytest.raises(ValueError, match=rf"`{name}`: expected \[tokens, {KV_HEADS}, head_dim\], the cache's KV heads \(NHD\), got \[1, 1, {DIM}\]"):
            flashinfer.append_paged_kv_cache(*pair, [0], [1], (pages.k, pages.v), pages.indices, pages.indptr, pages.last)
    assert np.array_equal(before, pages.k)


def test_what_is_not_attention_is_refused_by_name():
    with pytest.raises(AttributeError, match="top_k_top_p_sampling_from_probs.*attention"):
        flashinfer.top_k_top_p_sampling_from_probs
    with pytest.raises(AttributeError, match="no attribute 'nothing_of_the_kind'"):
        flashinfer.nothing_of_the_kind
