"""The package on a GPU with JAX's arrays (KVLOOM_TEST_GPU=1 says that there is one): they are read where they are and never written, outputs are JAX's,
and what is asynchronous in JAX is waited for. Without a GPU: test_fake_gpu_jax.py, by where a type comes from."""

import os

import numpy as np
import pytest

import kvloom
import kvloom.flash_attn
import reference
from reference import close

if os.environ.get("KVLOOM_TEST_GPU") != "1":
    pytest.skip("no GPU is promised (KVLOOM_TEST_GPU=1)", allow_module_level=True)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
jax = pytest.importorskip("jax", reason="JAX is not installed")
if jax.default_backend() != "gpu":
    pytest.skip(f"JAX has no GPU here: its backend is {jax.default_backend()}", allow_module_level=True)
jnp = jax.numpy

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 128, 16
RNG = np.random.default_rng(7)
GPU = jax.devices()[0]


def normal(*shape, dtype="float16"):
    return jnp.asarray(RNG.standard_normal(shape).astype("float32"), dtype)


def host(x):
    return np.asarray(x).astype("float32")


def pools(pages=12, **more):
    return [normal(pages, PAGE, KV_HEADS, DIM, **more) for _ in "kv"]


def attend(q, kv, ids, kv_len):
    keys = [host(p)[ids].reshape(-1, KV_HEADS, DIM)[:kv_len] for p in kv]
    return reference.attention(host(q), *keys, causal=True)


def is_ours(x, dtype):
    return isinstance(x, jax.Array) and x.dtype == dtype and x.devices() == {GPU}


def make_engine(**more):
    spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="f16", page_size=PAGE, causal=True)
    return kvloom.Engine(spec, max_requests=8, max_query_tokens=256, backend="cuda", **more)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention(dtype):
    q, k, v = normal(40, HEADS, DIM, dtype=dtype), normal(100, KV_HEADS, DIM, dtype=dtype), normal(100, KV_HEADS, DIM, dtype=dtype)
    before = [host(x).copy() for x in (q, k, v)]
    o, lse = kvloom.attention(q, k, v, causal=True, return_lse=True)
    assert is_ours(o, q.dtype) and is_ours(lse, jnp.float32)
    wanted, wanted_lse = reference.attention(*before, causal=True)
    close(host(o), wanted, {"float16": "f16", "bfloat16": "bf16"}[dtype], "cuda")
    assert np.abs(host(lse) - wanted_lse).max() < 2e-3
    assert all(np.array_equal(host(x), b) for x, b in zip((q, k, v), before))
    assert np.array_equal(host(kvloom.attention(q, k, v, causal=True)), host(o))


def test_one_call_with_pages():
    """Lengths and tables that are JAX's on the GPU: copied to the host, page ids brought back."""
    kv, table = pools(), np.array([[3, 8, 1, 0], [7, 2, 5, 11]])
    q = normal(2, HEADS, DIM)
    o = kvloom.attention(q, *kv, kv_len=jnp.asarray([50, 20]), block_table=jnp.asarray(table), causal=True)
    assert is_ours(o, q.dtype)
    for r, kv_len in enumerate((50, 20)):
        close(host(o[r : r + 1]), attend(q[r : r + 1], kv, table[r], kv_len)[0], "f16", "cuda")


def test_steps():
    engine, kv = make_engine(), pools()
    table = np.array([[3, 8, 1, 0], [7, 2, 5, 11]], dtype="int32")
    pages, plan = jnp.asarray(table), engine.plan([50, 20], block_table=table)
    for q_len, kv_len in (([1, 1], [51, 21]), ([5, 3], [60, 64])):
        begins = np.cumsum([0, *q_len])
        engine.replan(plan, kv_len, begins, block_table=table)
        q = normal(int(begins[-1]), HEADS, DIM)
        out = engine.run(plan, q, *kv, pages=pages)
        assert is_ours(out, q.dtype)
        for r in range(2):
            rows = slice(begins[r], begins[r + 1])
            close(host(out[rows]), attend(q[rows], kv, table[r], kv_len[r])[0], "f16", "cuda")


def test_fp8_caches():
    spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="bf16", kv_dtype="e4m3", page_size=PAGE, causal=True)
    engine, table = kvloom.Engine(spec, max_requests=2, max_query_tokens=2, backend="cuda"), np.array([[3, 8]], dtype="int32")
    q, kv = normal(1, HEADS, DIM, dtype="bfloat16"), pools(dtype="float8_e4m3fn")
    out = engine.run(engine.plan([30], block_table=table), q, *kv, pages=jnp.asarray(table))
    assert is_ours(out, jnp.bfloat16)
    close(host(out), attend(q, kv, [3, 8], 30)[0], "bf16", "cuda")


def test_what_jax_still_computes_is_waited_for():
    engine, kv, table = make_engine(), pools(), np.array([[3, 8]], dtype="int32")
    plan, pages, late = engine.plan([30], block_table=table), jnp.asarray(table), normal(1, HEADS, DIM)
    wanted = attend(late, kv, [3, 8], 30)[0]

    @jax.jit
    def slowly(q, a):
        for _ in range(20):  # 20 products of 8192 x 8192: 30 ms and more
            a = jnp.tanh(a @ a)
        return q + (0 * a[0, 0]).astype(q.dtype)

    a = jnp.full((8192, 8192), 1e-4, jnp.bfloat16)
    jax.block_until_ready(slowly(late, a))
    for _ in range(3):
        close(host(engine.run(plan, slowly(late, a), *kv, pages=pages)), wanted, "f16", "cuda")


def test_inputs_that_nobody_holds():
    """What JAX may take back when the call returns has been read by then; what it makes of the result comes after it."""
    engine, kv, table = make_engine(), pools(64), RNG.permutation(64).reshape(8, 8).astype("int32")
    plan, pages = engine.plan([128] * 8, np.arange(0, 257, 32), block_table=table), jnp.asarray(table)
    q = normal(256, HEADS, DIM)
    wanted = host(engine.run(plan, q, *kv, pages=pages))
    for r in range(8):
        rows = slice(32 * r, 32 * r + 32)
        close(wanted[rows], attend(q[rows], kv, table[r], 128)[0], "f16", "cuda")
    sums = []
    for i in range(30):
        out = engine.run(plan, q + 0, *(x + 0 for x in kv), pages=pages + 0)
        sums.append(out * 2)
        del out
        sums.append([jnp.full_like(x, i) for x in (q, *kv)])
    assert all(np.array_equal(host(s), 2 * wanted) for s in sums[::2])


def test_lengths_on_the_gpu():
    engine, kv = make_engine(policy="stream"), pools()
    table = np.array([[3, 8, 1, 0], [7, 2, 5, 11]], dtype="int32")
    plan = engine.plan_on_device(jnp.asarray([50, 20]), block_table=jnp.asarray(table))
    for lengths in ([50, 20], [64, 1], [17, 33]):
        engine.replan_on_device(plan, jnp.asarray(lengths), block_table=jnp.asarray(table))
        q = normal(2, HEADS, DIM)
        out, lse = engine.run(plan, q, *kv, return_lse=True)
        engine.check(plan)
        for r, kv_len in enumerate(lengths):
            wanted, wanted_lse = attend(q[r : r + 1], kv, table[r], kv_len)
            close(host(out[r : r + 1]), wanted, "f16", "cuda")
            assert np.abs(host(lse[r : r + 1]) - wanted_lse).max() < 2e-3


def test_merges():
    sides = [(normal(5, 3, 2, 64), normal(5, 3, 2, dtype="float32")) for _ in "ab"]
    a, b = [(o[:, 0], lse[:, 0]) for o, lse in sides]
    o, lse = kvloom.merge_states(*a, *b)
    assert is_ours(o, jnp.float16) and is_ours(lse, jnp.float32)
    wanted = reference.merge([host(a[0]), host(b[0])], [host(a[1]), host(b[1])])
    close(host(o), wanted[0], "f16")
    close(host(lse), wanted[1])
    o, lse = kvloom.merge_states_n(*sides[0])
    wanted = reference.merge([host(sides[0][0][:, i]) for i in range(3)], [host(sides[0][1][:, i]) for i in range(3)])
    close(host(o), wanted[0], "f16")
    close(host(lse), wanted[1])


def test_flash_attn():
    q, k, v = normal(2, 5, HEADS, DIM), normal(2, 30, KV_HEADS, DIM), normal(2, 30, KV_HEADS, DIM)
    o = kvloom.flash_attn.flash_attn_func(q, k, v, causal=True)
    assert is_ours(o, q.dtype) and o.shape == q.shape
    for b in range(2):
        close(host(o[b]), reference.attention(host(q[b]), host(k[b]), host(v[b]), causal=True)[0], "f16", "cuda")


def test_beside_torch():
    """Outputs and caches that can be written are torch's; JAX reads torch's memory, and torch JAX's."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    engine, table = make_engine(), np.array([[3, 8]], dtype="int32")
    theirs = [torch.randn(12, PAGE, KV_HEADS, DIM, device="cuda", dtype=torch.float16) for _ in "kv"]
    torch.cuda.synchronize()
    kv = [jax.dlpack.from_dlpack(x) for x in theirs]
    plan, q, pages = engine.plan([30], block_table=table), normal(1, HEADS, DIM), jnp.asarray(table)
    out = torch.full((1, HEADS, DIM), float("nan"), device="cuda", dtype=torch.float16)
    assert engine.run(plan, q, *kv, pages=pages, out=out) is out
    wanted = attend(q, kv, [3, 8], 30)[0]
    close(out.float().cpu().numpy(), wanted, "f16", "cuda")
    out.fill_(0)
    torch.cuda.synchronize()
    engine.run(plan, q, *kv, pages=pages, out=out, stream=torch.cuda.Stream())  # done when it returns, whatever the stream
    close(out.float().cpu().numpy(), wanted, "f16", "cuda")
    close(torch.from_dlpack(engine.run(plan, q, *kv, pages=pages)).float().cpu().numpy(), wanted, "f16", "cuda")
    k, v = (normal(3, KV_HEADS, DIM) for _ in "kv")
    kvloom.append_kv(k, v, *theirs, slots=torch.tensor([5, 40, -1], device="cuda"))
    for pool, new in zip(theirs, (k, v)):
        assert np.array_equal(pool.reshape(-1, KV_HEADS, DIM)[[5, 40]].float().cpu().numpy(), host(new)[:2])


def test_nothing_of_jax_is_written():
    engine, kv, table = make_engine(), pools(), np.array([[3, 8]], dtype="int32")
    plan, pages, q = engine.plan([30], block_table=table), jnp.asarray(table), normal(1, HEADS, DIM)
    out, before = jnp.zeros_like(q), [host(x).copy() for x in kv]
    with pytest.raises(ValueError, match="`out`: .*may not be written"):
        engine.run(plan, q, *kv, pages=pages, out=out)
    with pytest.raises(ValueError, match="`k`: expected a tensor that may be written, got a read-only one"):
        kvloom.append_kv(q[:, :KV_HEADS], q[:, :KV_HEADS], *kv, slots=pages)
    with pytest.raises(ValueError, match="`x`: expected a tensor that may be written, got a read-only one"):
        kvloom.apply_rope(q, jnp.asarray([0]), kvloom.Rope())
    assert not host(out).any() and all(np.array_equal(host(x), b) for x, b in zip(kv, before))


def test_wrong_places():
    engine, kv, table = make_engine(), pools(), np.array([[3, 8]], dtype="int32")
    plan, q = engine.plan([30], block_table=table), normal(1, HEADS, DIM)
    there = jax.device_put(q, jax.devices("cpu")[0])
    with pytest.raises(ValueError, match=r"`q`: expected \[1, 8, 128\] f16 on cuda:0, got \[1, 8, 128\] f16 on cpu; move it there"):
        engine.run(plan, there, *kv, pages=jnp.asarray(table))
    with pytest.raises((TypeError, ValueError), match="`q`: expected .* f16 on cuda:0, got .* f32"):
        engine.run(plan, q.astype("float32"), *kv, pages=jnp.asarray(table))
    with pytest.raises(ValueError, match=r"`pages`: expected integers on cuda:0, got .* on cpu"):
        engine.run(plan, q, *kv, pages=table)
    with pytest.raises(ValueError, match="`q`: its __dlpack__ refuses: "):
        jax.jit(lambda q: engine.run(plan, q, *kv, pages=jnp.asarray(table)))(q)
