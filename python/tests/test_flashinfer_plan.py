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


def test_steps_one_after_the_other(rng, fw, workspace, monkeypatch):
    """A plan that differs by lengths and ids alone is short; what is wrong with it is refused as ever, and leaves the step before."""
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
    anew = []
    monkeypatch.setattr(type(wrapper), "_plan_anew", lambda self, *a, _plan=type(wrapper)._plan_anew, **o: (anew.append(1), _plan(self, *a, **o))[1])

    def step(kv_len, **options):
        pages, q = Pages(rng, fw, kv_len), rows(rng, fw, len(kv_len))
        wrapper.plan(pages.indptr, pages.indices, pages.last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=fw.dtype("float32"), **options)
        return pages, q

    def check(pages, q):
        out, lse = wrapper.run(q, (pages.k, pages.v), return_lse=True)
        close(fw.host(out), wanted(q, pages)[0])

    check(*step(KV_LEN))
    for kv_len in ([10, 1, 5, 34], [1, 0, 0, 70], [0, 0, 0, 0], [3, 90, 2, 2]):
        check(*step(kv_len, block_tables=np.zeros((4, 2), np.int32)))
        assert [int(n) for n in wrapper._kv_lens] == kv_len
    assert len(anew) == 1
    pages, q = step([7, 8, 9, 10])
    assert np.array_equal(fw.host(wrapper._paged_kv_indptr_buf), fw.host(pages.indptr))
    assert np.array_equal(fw.host(wrapper._paged_kv_last_page_len_buf), fw.host(pages.last))
    assert wrapper._plan_info[:2] == [4, 4]
    good = fw.host(pages.indptr).copy(), fw.host(pages.last).copy(), fw.host(pages.indices).copy()
    plan = functools.partial(wrapper.plan, q_data_type=fw.dtype("float32"))
    for name, bad in {
        "last_page_len": (good[0], good[2], good[1] + PAGE),
        "indptr": (good[0][::-1].copy(), good[2], good[1]),
        "indices": (good[0], good[2][:2], good[1]),
        "pages": (good[0], good[2] - 1000, good[1]),
    }.items():
        arrays = [fw.tensor(x, "int32") for x in bad]
        with pytest.raises(ValueError, match=name):
            plan(*arrays, HEADS, KV_HEADS, DIM, PAGE)
        check(pages, q)
    with pytest.raises(ValueError, match="`sm_scale`"):
        step([7, 8, 9, 10], sm_scale=np.zeros(3))
    check(pages, q)
    pages.indptr[:], pages.last[:] = 0, 0  # the caller's next step
    del anew[:]
    check(*step([5, 6, 7]))
    check(*step([5, 6, 8]))
    assert len(anew) == 1
    wrapper.reset_workspace_buffer(workspace)
    check(*step([6, 7, 9]))
    assert len(anew) == 2
