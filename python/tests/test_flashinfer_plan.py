"""kvloom.flashinfer: what plan remembers of a step, and what of it engines read."""

import functools

import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import DIM, HEADS, KV_HEADS, PAGE, Pages, rows
from kvloom.flashinfer import _step_arrays
from reference import close
from test_flashinfer_decode import wanted

KV_LEN = [9, 0, 4, 33]


def test_what_engines_read_is_of_the_step(rng, fw, workspace, monkeypatch):
    """Lengths of the host are copied to where the wrapper is when they are read; the caller has written the next ones by then."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    assert not hasattr(wrapper, "_kv_len_arr_buf")
    monkeypatch.setattr(_step_arrays, "on_gpu", lambda x: x is workspace)
    wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=fw.dtype("float32"))
    before = [fw.host(x).copy() for x in (pages.indptr, pages.last)]
    pages.indptr[:] = 0
    pages.last[:] = 0
    read = wrapper._paged_kv_indptr_buf, wrapper._paged_kv_last_page_len_buf
    for x, y in zip(read, before):
        assert type(x) is type(workspace) and np.array_equal(fw.host(x), y)
    assert wrapper._paged_kv_indptr_buf is read[0] and np.array_equal(fw.host(wrapper._qo_indptr_buf), np.arange(len(KV_LEN) + 1))


def test_a_step_said_otherwise(rng, fw, workspace):
    """What plan says besides lengths is remembered from step to step; what engines have set since, and what differs, counts."""
    pages = Pages(rng, fw, KV_LEN)
    wrapper, q = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace), rows(rng, fw, 4)
    plan = functools.partial(wrapper.plan, pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=fw.dtype("float32"))
    whole, windowed = wanted(q, pages)[0], wanted(q, pages, window_left=3)[0]
    plan()
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), whole)
    plan(window_left=3)
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), windowed)
    plan(window_left=3)
    wrapper._window_left = -1
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), whole)
    plan(window_left=3)
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), windowed)
    with pytest.raises(ValueError, match="`num_qo_heads`"):
        wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, 0, DIM, PAGE)
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), windowed)
    plan()
    close(fw.host(wrapper.run(q, (pages.k, pages.v))), whole)
    scale = fw.tensor(np.array(0.5))  # an array may be written between two plans
    for value in (0.5, 0.25):
        scale[...] = value
        plan(sm_scale=scale)
        close(fw.host(wrapper.run(q, (pages.k, pages.v))), wanted(q, pages, sm_scale=value)[0])
