"""Plans and runs: the ways to describe a step, levels, positions, pictures."""

import json

import numpy as np
import pytest

import kvloom
import reference
from exporters import CUDA, Exchange

from reference import close

f32 = np.float32
HEADS, KV_HEADS, DIM, PAGE = 4, 2, 32, 4


def make_engine(**fields):
    options = {name: fields.pop(name) for name in list(fields) if name in kvloom.Options.__dataclass_fields__ or name.startswith("max_")}
    spec = kvloom.Spec(**{"num_qo_heads": HEADS, "num_kv_heads": KV_HEADS, "head_dim": DIM, "page_size": PAGE, "causal": True, **fields})
    return kvloom.Engine(spec, **{"max_requests": 8, "max_query_tokens": 64, "backend": "cpu", **options})


@pytest.fixture
def pools(rng):
    return [rng.standard_normal((40, PAGE, KV_HEADS, DIM), dtype=f32) for _ in "kv"]


def attend(q, pools, pages, kv_len, **features):
    keys = [pool[np.asarray(pages)].reshape(-1, KV_HEADS, DIM)[:kv_len] for pool in pools]
    return reference.attention(q, *keys, **{"causal": True, **features})


def test_steps(rng, pools):
    """Prefill, then decode, into one plan; a plan serves several layers."""
    engine = make_engine()
    table = rng.permutation(40)[:24].reshape(3, 8)
    plan = engine.plan([7, 20, 1], [0, 7, 20, 21], block_table=table)
    for q_len, kv_len in (([7, 13, 1], [7, 20, 1]), ([1, 1, 1], [8, 21, 2]), ([0, 0, 2], [8, 21, 4]), ([0, 0, 0], [0, 0, 0])):
        indptr = np.cumsum([0, *q_len])
        engine.replan(plan, kv_len, indptr, block_table=table)
        assert plan.total_tokens == indptr[-1] and plan.num_requests == 3
        for layer in (pools, pools[::-1]):
            q = rng.standard_normal((indptr[-1], HEADS, DIM), dtype=f32)
            o, lse = engine.run(plan, q, *layer, return_lse=True)
            for r in range(3):
                rows = slice(indptr[r], indptr[r + 1])
                wanted, wanted_lse = attend(q[rows], layer, table[r], kv_len[r])
                close(o[rows], wanted)
                close(lse[rows], wanted_lse)


def test_equal_input_equal_bytes():
    table = np.arange(24).reshape(3, 8)
    plans = [make_engine(num_ctas=3).plan([7, 20, 30], block_table=t) for t in (table, table.astype(np.int32), table.tolist(), tuple(map(tuple, table)))]
    assert len({bytes(p) for p in plans}) == len({p.graph_key for p in plans}) == 1


def test_pages_given_to_run(rng, pools):
    engine = make_engine()
    table = np.array([[3, 9], [11, 30]])
    plan = engine.plan([7, 5], block_table=table)
    q = rng.standard_normal((2, HEADS, DIM), dtype=f32)
    other = np.array([[4, 1], [2, 0]], np.int32)
    close(engine.run(plan, q, *pools), np.concatenate([attend(q[r : r + 1], pools, table[r], n)[0] for r, n in enumerate([7, 5])]))
    close(engine.run(plan, q, *pools, pages=other), np.concatenate([attend(q[r : r + 1], pools, other[r], n)[0] for r, n in enumerate([7, 5])]))


def test_lists_cut_out_of_wider_arrays(rng, pools):
    """Lengths and page lists are their elements, whatever lies between."""
    engine, q = make_engine(), rng.standard_normal((2, HEADS, DIM), dtype=f32)
    wide = rng.permutation(40)[:16].reshape(2, 8)
    kv_len, indptr, lists = (np.array(x) for x in ([[12, -9], [10, -9]], [[0, 9], [1, 9], [2, 9]], [[0, 9], [3, 9], [6, 9]]))
    plan = engine.plan(kv_len[:, :1], indptr[:, :1], pages=wide[:, :3], list_indptr=lists[:, :1])
    out = engine.run(plan, q, *pools)
    for r, n in enumerate([12, 10]):
        close(out[r : r + 1], attend(q[r : r + 1], pools, wide[r, :3], n)[0])


@pytest.mark.parametrize("policy", ["none", "heap", "stream", "fill", "fixed_split", "automatic"])
def test_policies(rng, pools, policy):
    engine = make_engine(policy=policy, num_ctas=7, max_kv_tokens=200)
    table = rng.permutation(40)[:36].reshape(4, 9)
    kv_len, q_len = [33, 1, 36, 20], [1, 1, 9, 1]
    indptr = np.cumsum([0, *q_len])
    plan = engine.plan(kv_len, indptr, block_table=table)
    q = rng.standard_normal((12, HEADS, DIM), dtype=f32)
    o = engine.run(plan, q, *pools)
    for r in range(4):
        close(o[indptr[r] : indptr[r + 1]], attend(q[indptr[r] : indptr[r + 1]], pools, table[r], kv_len[r])[0])


def test_shared_prefix_levels(rng, pools):
    """A prefix of five pages under three requests: found by itself, and said explicitly; the same answer."""
    prefix, own = [8, 3, 1, 2, 9], [[20], [21], [22]]
    table = np.array([prefix + x for x in own])
    q = rng.standard_normal((3, HEADS, DIM), dtype=f32)
    wanted = np.concatenate([attend(q[r : r + 1], pools, table[r], 22)[0] for r in range(3)])
    engine = make_engine(max_level_rows=64)
    close(engine.run(engine.plan([22] * 3, block_table=table), q, *pools), wanted)
    groups = [kvloom.LevelGroup(tokens=[0, 1, 2], list_begin=0, kv_end=20)]
    groups += [kvloom.LevelGroup(level=1, tokens=[r], list_begin=5 + r, kv_end=2, kv_pos0=20) for r in range(3)]
    plan = engine.plan([22] * 3, pages=prefix + sum(own, []), list_indptr=[0, 0, 0], groups=groups)
    close(engine.run(plan, q, *pools), wanted)
    assert "level" in plan.explain()


def test_one_list_a_kv_head(rng, pools):
    engine = make_engine()
    table = rng.permutation(40)[:16].reshape(2, KV_HEADS, 4)
    kv_len = [[9, 12], [16, 3]]
    q = rng.standard_normal((2, HEADS, DIM), dtype=f32)
    for form in ({"block_table": table}, {"pages": table.ravel(), "list_indptr": np.arange(0, 17, 4)}):
        o = engine.run(engine.plan(np.array(kv_len).ravel(), lists_per_kv_head=True, q_pos0=[99, 99], **form), q, *pools)
        for r in range(2):
            for h in range(KV_HEADS):
                heads = slice(h * HEADS // KV_HEADS, (h + 1) * HEADS // KV_HEADS)
                close(o[r, heads], attend(q[r : r + 1], pools, table[r, h], kv_len[r][h], causal=False)[0][0, heads])


def test_positions_of_pages(rng, pools):
    """A window over pages that are not where they stand in the list."""
    engine = make_engine(window_left=9)
    pages, page_pos = np.array([7, 4, 12]), np.array([0, 40, 44], np.int32)
    q = rng.standard_normal((1, HEADS, DIM), dtype=f32)
    kv_pos = (page_pos[:, None] + np.arange(PAGE)).ravel()[:11]
    plan = engine.plan([11], pages=pages, list_indptr=[0, 3], q_pos0=[46], kv_position="page_table")
    close(engine.run(plan, q, *pools, page_pos=page_pos), attend(q, pools, pages, 11, window_left=9, q_pos=[46], kv_pos=kv_pos)[0])
    plan = engine.plan([11], pages=pages, list_indptr=[0, 3], q_pos0=[30], kv_position="page_id")
    kv_pos = (pages[:, None] * PAGE + np.arange(PAGE)).ravel()[:11]
    close(engine.run(plan, q, *pools), attend(q, pools, pages, 11, window_left=9, q_pos=[30], kv_pos=kv_pos)[0])


def test_bare_states_merge(rng, pools):
    sink = np.linspace(-1, 2, HEADS).astype(f32)
    engine = make_engine(sink=True, causal=False)
    q = rng.standard_normal((1, HEADS, DIM), dtype=f32)
    halves = [
        engine.run(engine.plan([8], block_table=np.array([pages])), q, *pools, sink=sink, bare_state=True, return_lse=True)
        for pages in ([3, 5], [1, 2])
    ]
    o, lse = kvloom.merge_states(*halves[0], *halves[1])
    o, lse = kvloom.merge_states(o, lse, np.zeros_like(o), sink[None])
    wanted, wanted_lse = attend(q, pools, [3, 5, 1, 2], 16, causal=False, sink=sink)
    close(o, wanted)
    close(lse, wanted_lse)


def test_ragged_engine(rng):
    engine = make_engine(page_size=None)
    q, k, v = (rng.standard_normal((n, h, DIM), dtype=f32) for n, h in ((5, HEADS), (20, KV_HEADS), (20, KV_HEADS)))
    plan = engine.plan([7, 9], [0, 2, 5], list_indptr=[11, 0])
    o = engine.run(plan, q, k, v)
    close(o[:2], reference.attention(q[:2], k[11:18], v[11:18], causal=True)[0])
    close(o[2:], reference.attention(q[2:], k[:9], v[:9], causal=True)[0])


def test_words_and_pictures():
    engine = make_engine(num_ctas=2)
    plan = engine.plan([30, 7], block_table=np.arange(16).reshape(2, 8))
    assert engine.kernel_key.startswith("attend.cpu") and engine.kernel_key in repr(engine)
    assert engine.backend == "cpu" and engine.device == -1
    assert "attend.cpu" in engine.explain() and engine._repr_html_().startswith("<pre>")
    assert plan.svg().startswith("<svg") and plan._repr_svg_() == plan.svg()
    assert json.loads(plan.json())
    assert "2 requests" in plan.explain() or "requests" in plan.explain()
    plan.upload()


def test_a_gpu_is_planned_for_without_one():
    engine = make_engine(backend="cuda", cuda_arch="sm_90a", dtype="bf16", head_dim=128)
    assert engine.backend == "cuda" and "sm90" in engine.explain()
    plan = engine.plan([30], block_table=np.arange(8).reshape(1, 8))
    assert "1 request" in plan.explain()
    q, k, out = (Exchange(np.zeros(s, np.uint16), device=(CUDA, 0), code=4) for s in ((1, HEADS, 128), (8, PAGE, KV_HEADS, 128), (1, HEADS, 128)))
    pages = Exchange(np.zeros(8, np.int32), device=(CUDA, 0))
    with pytest.raises(ValueError, match=r"`q`: expected \[1, 4, 128\] bf16 on cuda, got \[1, 4, 128\] bf16 on cpu"):
        engine.run(plan, Exchange(np.zeros((1, HEADS, 128), np.uint16), code=4), k, k)
    with pytest.raises((kvloom.Error, ValueError), match="cuda_arch"):
        engine.run(plan, q, k, k, out=out, pages=pages)


def test_spec_words():
    spec = kvloom.Spec(num_qo_heads=8, head_dim=64, dtype=np.float16, kv_dtype="float8_e4m3fn")
    assert (spec.num_kv_heads, spec.head_dim_vo, spec.dtype, spec.kv_dtype, spec.o_dtype) == (8, 64, "f16", "e4m3", "f16")
    assert kvloom.Spec(num_qo_heads=8, head_dim=64, dtype="e4m3").o_dtype == "bf16"
    assert spec == kvloom.Spec(num_qo_heads=8, num_kv_heads=8, head_dim=64, dtype="f16", kv_dtype="e4m3") and hash(spec)

    class TorchLike:
        def __str__(self):
            return "torch.bfloat16"

    assert kvloom.Spec(num_qo_heads=8, head_dim=64, dtype=TorchLike()).dtype == "bf16"
