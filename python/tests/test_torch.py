"""kvloom.torch: operators that torch.compile traces, on the CPU. On a GPU: test_gpu_torch.py."""

import shutil

import numpy as np
import pytest

import kvloom
import reference
from reference import close

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch")

import kvloom.torch as kt  # noqa: E402

HEADS, KV_HEADS, DIM, PAGE = 6, 2, 32, 4

# What torch's own compilers warn of is theirs.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::FutureWarning:torch", "ignore::UserWarning:torch")

BACKENDS = ["eager", "aot_eager"]
if shutil.which("g++") or shutil.which("c++"):  # what inductor compiles with on a CPU
    BACKENDS.append("inductor")


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(7)
    torch._dynamo.reset()
    with torch._dynamo.config.patch(error_on_recompile=False):
        yield


def compiled(function, backend="aot_eager", **options):
    return torch.compile(function, fullgraph=True, backend=backend, **options)


def qkv(n, m):
    return [torch.randn(s) for s in ((n, HEADS, DIM), (m, KV_HEADS, DIM), (m, KV_HEADS, DIM))]


def make_step(causal=True, page_size=PAGE, **fields):
    spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=page_size, causal=causal, **fields)
    return kt.Step(kvloom.Engine(spec, max_requests=4, max_query_tokens=64, backend="cpu"))


def rows_of(pool, table, n):
    return pool[table].reshape(-1, KV_HEADS, DIM)[:n].numpy()


def wanted_of(q, pools, table, kv_len, indptr, **fields):
    parts = []
    for r, n in enumerate(kv_len):
        keys = (rows_of(p, table[r], n) for p in pools)
        parts.append(reference.attention(q[indptr[r] : indptr[r + 1]].numpy(), *keys, causal=True, **fields))
    return np.concatenate([o for o, _ in parts]), np.concatenate([lse for _, lse in parts])


@pytest.mark.parametrize("backend", BACKENDS)
def test_attention(backend):
    q, k, v = qkv(9, 20)
    sink, slopes = torch.randn(HEADS), torch.rand(HEADS)

    @torch.compile(fullgraph=True, backend=backend)
    def f(q, k, v):
        out, lse = kt.attention(q * 2, k, v, causal=True, window_left=6, soft_cap=5.0, sink=sink, alibi_slopes=slopes, return_lse=True)
        return out + 1, lse

    o, lse = f(q, k, v)
    fields = {"window_left": 6, "soft_cap": 5.0, "sink": sink.numpy(), "slopes": slopes.numpy()}
    wanted = reference.attention(2 * q.numpy(), k.numpy(), v.numpy(), causal=True, **fields)
    close(o - 1, wanted[0])
    close(lse, wanted[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_everything_of_a_layer(backend):
    """Append, run, merge; the caches are halves of one tensor, and what was written is read by torch's own operators in the same graph."""
    step, other = make_step(), make_step(causal=False, page_size=None)
    cache = torch.zeros(10, 2, PAGE, KV_HEADS, DIM)
    table = torch.tensor([[3, 1, 8], [2, 9, 0]], dtype=torch.int32)
    extra_k, extra_v = torch.randn(2, 5, KV_HEADS, DIM)
    rope = kvloom.Rope(theta=500.0)

    @torch.compile(fullgraph=True, backend=backend)
    def layer(q, k, v, cache, slots, pos):
        before = cache.sum()
        q, k = q.clone(), k.clone()
        kt.apply_rope(q, pos, rope)
        kt.apply_rope(k, pos, rope)
        kt.append_kv(k, v, cache[:, 0], cache[:, 1], slots=slots)
        o, lse = step.run(q, cache[:, 0], cache[:, 1], return_lse=True)
        o, lse = kt.merge_states(o, lse, *other.run(q, extra_k, extra_v, return_lse=True))
        return o, lse, before, cache.sum()

    kv_len = np.zeros(2, int)
    other_plan = {2: [5], 5: [5], 8: [5]}
    copies = [np.zeros((10 * PAGE, KV_HEADS, DIM)) for _ in "kv"]
    for q_len in ([5, 3], [1, 1], [2, 3]):
        indptr = np.cumsum([0, *q_len])
        n = int(indptr[-1])
        pos = torch.tensor([kv_len[r] + i for r in range(2) for i in range(q_len[r])])
        request = [r for r in range(2) for _ in range(q_len[r])]
        kv_len += q_len
        slots = torch.empty(n, dtype=torch.int64)
        kvloom.append_slots(slots, request=request, pos=pos, page_size=PAGE, num_pages=10, block_table=table)
        step.plan(kv_len, indptr, block_table=table)
        other.plan(other_plan.get(n, [5]), [0, n], list_indptr=[0])
        q, k, v = qkv(n, n)
        o, lse, before, after = layer(q, k, v, cache, slots, pos)
        assert float(before) == pytest.approx(sum(c.sum() for c in copies), abs=1e-3)
        turned = [reference.rope(x.numpy(), pos, theta=500.0) for x in (q, k)]
        copies[0][slots], copies[1][slots] = turned[1], v.numpy()
        assert float(after) == pytest.approx(sum(c.sum() for c in copies), abs=1e-3)
        halves = [cache[:, i].contiguous() for i in range(2)]
        assert np.allclose(halves[0].reshape(-1, KV_HEADS, DIM), copies[0], atol=1e-5)
        mine = wanted_of(torch.from_numpy(turned[0]), halves, table, kv_len, indptr)
        theirs = reference.attention(turned[0], extra_k.numpy(), extra_v.numpy())
        wanted = reference.merge([mine[0], theirs[0]], [mine[1], theirs[1]])
        close(o, wanted[0])
        close(lse, wanted[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_outputs_of_the_caller_are_written_where_they_are(backend):
    q, k, v = qkv(6, 12)
    wide, lse = torch.full((8, HEADS, DIM), 3.0), torch.full((6, HEADS), 3.0)

    @torch.compile(fullgraph=True, backend=backend)
    def f(q, k, v, wide, lse):
        before = wide.mean()
        out = kt.attention(q, k, v, out=wide[1:7], lse=lse)[0]
        return before, out.sum(), wide.sum()

    before, total, all_of_it = f(q, k, v, wide, lse)
    wanted = reference.attention(q.numpy(), k.numpy(), v.numpy())
    close(wide[1:7], wanted[0])
    close(lse, wanted[1])
    assert before == 3 and wide[0].eq(3).all() and wide[7].eq(3).all()
    assert float(all_of_it - total) == pytest.approx(6 * HEADS * DIM, rel=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_merges(backend):
    o, lse = torch.randn(4, 3, HEADS, DIM), torch.randn(4, 3, HEADS)
    indptr = torch.tensor([0, 2, 2, 9, 12])

    @torch.compile(fullgraph=True, backend=backend)
    def f(o, lse, indptr):
        a = kt.merge_states_n(o, lse)
        b = kt.merge_states_ragged(o.flatten(0, 1), lse.flatten(0, 1), indptr)
        # In place: an output is an input of one side.
        c = o[:, 0].clone(), lse[:, 0].clone()
        kt.merge_states(*c, o[:, 1], lse[:, 1], out=c[0], lse=c[1])
        return *a, *b, *c

    got = f(o, lse, indptr)
    flat, flat_lse = o.flatten(0, 1).numpy(), lse.flatten(0, 1).numpy()
    ragged = [reference.merge(flat[a:b], flat_lse[a:b]) for a, b in zip(indptr, indptr[1:])]
    wanted = [
        *reference.merge(o.numpy().swapaxes(0, 1), lse.numpy().swapaxes(0, 1)),
        np.stack([x for x, _ in ragged]),
        np.stack([x for _, x in ragged]),
        *reference.merge(o[:, :2].numpy().swapaxes(0, 1), lse[:, :2].numpy().swapaxes(0, 1)),
    ]
    for x, y in zip(got, wanted, strict=True):
        close(x, y)


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_graph_serves_every_shape_and_every_step(backend):
    step = make_step()
    pools = [torch.randn(40, PAGE, KV_HEADS, DIM) for _ in "kv"]
    table = torch.randperm(40)[:30].reshape(3, 10).int()

    def f(q, k, v):
        return step.run(q.view(-1, HEADS, DIM), k, v)

    run = torch.compile(f, fullgraph=True, backend=backend, dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for q_len, kv_len in (([7, 3, 2], [9, 20, 2]), ([1, 1, 1], [10, 21, 3]), ([4, 0, 30], [14, 21, 33])):
            indptr = np.cumsum([0, *q_len])
            step.plan(kv_len, indptr, block_table=table)
            q = torch.randn(int(indptr[-1]), HEADS * DIM)
            o = run(q, *pools)
            close(o, wanted_of(q.view(-1, HEADS, DIM), pools, table, kv_len, indptr)[0])


def test_dynamic_shapes_of_attention():
    f = compiled(lambda q, k, v: kt.attention(q, k, v, causal=True), dynamic=True)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for n, m in ((5, 9), (2, 30), (17, 17)):
            q, k, v = qkv(n, m)
            close(f(q, k, v), reference.attention(q.numpy(), k.numpy(), v.numpy(), causal=True)[0])


def test_lengths_as_tensors_and_lists():
    q, pools = torch.randn(2, HEADS, DIM), [torch.randn(9, PAGE, KV_HEADS, DIM) for _ in "kv"]
    table = torch.tensor([[3, 8], [1, 2]])

    def f(q, k, v, kv_len, table):
        return kt.attention(q, k, v, kv_len=kv_len, block_table=table, causal=True), kt.attention(q, k, v, kv_len=[5, 8], block_table=table)

    a, b = compiled(f)(q, *pools, torch.tensor([5, 8]), table)
    close(a, wanted_of(q, pools, table, [5, 8], [0, 1, 2])[0])
    close(b, a)
    ragged = compiled(lambda q, k, v: kt.attention(q, k, v, qo_indptr=[0, 1, 2], kv_indptr=torch.tensor([0, 5, 13])))
    keys = [torch.cat([p[table[0]].reshape(-1, KV_HEADS, DIM)[:5], p[table[1]].reshape(-1, KV_HEADS, DIM)]) for p in pools]
    close(ragged(q, *keys), a)


def test_traced_variant_and_its_parameters():
    slopes = torch.rand(HEADS)
    variant = kvloom.variant(lambda s, b, h, i, j: s - slopes[h] * abs(i - j))
    q, k, v = qkv(5, 9)
    o = compiled(lambda q, k, v: kt.attention(q, k, v, variant=variant))(q, k, v)
    s = slopes.numpy()
    close(o, reference.attention(q.numpy(), k.numpy(), v.numpy(), logit=lambda x, h, i, j: x - s[h] * abs(i - j))[0])
    text = """
struct Scaled {
  struct Params {
    float factor;
    KVLOOM_PARAMS(KVLOOM_PARAM(factor, 0.5, 2.0))
  };
  static float logit(float score, const kvloom::Coord&, const Params& p) { return score * p.factor; }
};
KVLOOM_VARIANT(Scaled)
"""
    f = compiled(lambda q, k, v, factor: kt.attention(q, k, v, variant=text, params={"factor": factor}))
    for factor in (0.5, 1.25):  # a number that the graph takes as an input
        close(f(q, k, v, factor), reference.attention(q.numpy(), k.numpy(), v.numpy(), logit=lambda x, h, i, j: x * factor)[0])


def test_fp8_cache_with_scales():
    step = make_step(kv_dtype=torch.float8_e4m3fn)
    pools = [torch.zeros(4, PAGE, KV_HEADS, DIM, dtype=torch.float8_e4m3fn) for _ in "kv"]
    k, v = torch.randn(2, 6, KV_HEADS, DIM)
    q = torch.randn(1, HEADS, DIM)
    step.plan([6], block_table=torch.tensor([[1, 3]]))
    k_scale = torch.tensor([0.5, 0.5])

    def f(q, k, v, k_pool, v_pool):
        kt.append_kv(k, v, k_pool, v_pool, slots=torch.tensor([4, 5, 6, 7, 12, 13]), k_scale=0.5, v_scale=0.25)
        return step.run(q, k_pool, v_pool, k_scale=k_scale, v_scale=0.25)

    o = compiled(f)(q, k, v, *pools)
    stored = [p.float().numpy()[[1, 3]].reshape(-1, KV_HEADS, DIM)[:6] * s for p, s in zip(pools, (0.5, 0.25))]
    assert np.abs(stored[0] - k.numpy()).max() < 0.2 and np.abs(stored[0]).sum() > 0
    close(o, reference.attention(q.numpy(), *stored, causal=True)[0])


def _samples():
    q, k, v = qkv(4, 8)
    out, lse = torch.empty(4, HEADS, DIM), torch.empty(4, HEADS)
    step = make_step(page_size=None)
    step.plan([8], [0, 4], list_indptr=[0])
    sink = torch.randn(HEADS)
    pools = [torch.zeros(3, PAGE, KV_HEADS, DIM) for _ in "kv"]
    keywords = kt._keywords.packed
    ops = torch.ops.kvloom
    yield ops.attention, (q, k, v, out, lse, *keywords({"causal": True, "sm_scale": 0.3, "sink": None}))
    yield ops.attention, (q, k, v, out, None, *keywords({"sink": sink, "layout": "NHD"}))
    yield ops.run, (step.name, q, k, v, out, lse, *keywords({})), step
    yield ops.append_kv, (k[:2], v[:2], *pools, *keywords({"slots": torch.tensor([3, 7])}))
    yield ops.append_kv, (k[:2], None, pools[0], None, *keywords({"request": [0, 0], "pos": [0, 5], "block_table": torch.tensor([[2, 1]])}))
    yield ops.merge_states, (q, lse.normal_(), torch.randn_like(q), torch.randn_like(lse), out, torch.empty_like(lse))
    yield ops.merge_states_n, (torch.randn(2, 3, HEADS, DIM), torch.randn(2, 3, HEADS), None, out[:2], torch.empty(2, HEADS))
    yield ops.merge_states_n, (q, lse, torch.tensor([0, 1, 4]), out[:2], torch.empty(2, HEADS))
    yield ops.apply_rope, (q.clone(), torch.tensor([0, 1, 5, 7]), *keywords({"rope": kvloom.Rope()}))


def test_opcheck():
    """torch's own examination: what is mutated is what the schema says, fakes, functionalisation, dynamic shapes."""
    names = set()
    for op, arguments, *_ in _samples():
        torch.library.opcheck(op.default, arguments)
        names.add(op.default.name())
    assert names == {f"kvloom::{x}" for x in ("attention", "run", "append_kv", "merge_states", "merge_states_n", "apply_rope")}


def test_a_schema_that_lies_would_be_found():
    """opcheck is worth its time: an operator that writes what its schema does not say."""
    with torch.library._scoped_library("kvloom_test", "FRAGMENT") as library:
        library.define("merge(Tensor o_a, Tensor lse_a, Tensor o_b, Tensor lse_b, Tensor(a!) out, Tensor lse) -> ()")
        library.impl("merge", lambda *t: torch.ops.kvloom.merge_states(*t), "CompositeExplicitAutograd")
        torch.library.register_fake("kvloom_test::merge", lambda *t: None, lib=library)
        q, lse = torch.randn(4, HEADS, DIM), torch.randn(4, HEADS)
        with pytest.raises(Exception, match="lse"):
            torch.library.opcheck(torch.ops.kvloom_test.merge.default, (q, lse, q + 1, lse + 1, torch.empty_like(q), torch.empty_like(lse)))


def test_eager_calls_are_the_same():
    q, k, v = qkv(5, 9)
    assert torch.equal(kt.attention(q, k, v, causal=True), kvloom.attention(q, k, v, causal=True))
    half = kt.attention(q.bfloat16(), k.bfloat16(), v.bfloat16())
    assert half.dtype == torch.bfloat16 and kt.attention(q, k, v, o_dtype=torch.float16).dtype == torch.float16


def test_parameters_of_a_module():
    sink = torch.nn.Parameter(torch.randn(HEADS))
    q, k, v = qkv(3, 5)
    with torch.no_grad():
        o = compiled(lambda q: kt.attention(q, k, v, sink=sink))(q)
    close(o, reference.attention(q.numpy(), k.numpy(), v.numpy(), sink=sink.detach().numpy())[0])


def test_wrong_arguments_are_named():
    q, k, v = qkv(3, 5)
    with pytest.raises(ValueError, match=r"`q`: expected \[tokens, heads, head_dim\], got \[3, 192\]"):
        kt.attention(q.flatten(1), k, v)
    with pytest.raises(TypeError, match="`q`: expected a torch.Tensor, got ndarray"):
        kt.attention(q.numpy(), k, v)
    with pytest.raises(TypeError, match="`sink`: expected a torch.Tensor, a list or a number, got ndarray"):
        kt.attention(q, k, v, sink=np.zeros(HEADS, np.float32))
    with pytest.raises(ValueError, match="window"):
        kt.attention(q, k, v, window_left=-5)
    with pytest.raises(ValueError, match="`k`"):
        kt.attention(q, k[0], v)
    with pytest.raises(TypeError, match="`engine`: expected a kvloom.Engine, got str"):
        kt.Step("engine")
    step = make_step()
    pools = [torch.randn(9, PAGE, KV_HEADS, DIM) for _ in "kv"]
    with pytest.raises(ValueError, match=f"'{step.name}' has no plan yet"):
        step.run(q, *pools)
    step.plan([5], block_table=torch.tensor([[1, 2]]))
    with pytest.raises(ValueError, match=r"`q`: expected \[1, 6, 32\]"):
        step.run(q, *pools)
    with pytest.raises(ValueError, match="is another Step's"):
        kt.Step(step.engine, step.name)


def test_a_step_that_is_gone_is_named():
    step = make_step(page_size=None)
    name = step.name
    keywords = kt._keywords.packed({})
    run = compiled(lambda q, k, v, out: torch.ops.kvloom.run(name, q, k, v, out, None, *keywords))
    step.plan([5], [0, 3], list_indptr=[0])
    tensors = (*qkv(3, 5), torch.empty(3, HEADS, DIM))
    run(*tensors)
    del step
    with pytest.raises(ValueError, match=f"expected the name of a kvloom.torch.Step that is alive .*, got '{name}'; keep the Step"):
        run(*tensors)


def test_sparse_plan():
    matrix = kvloom.BlockSparse([0, 1, 3], [1, 0, 1], block_shape=(2, PAGE), shape=(4, 2 * PAGE))
    spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=matrix.page_size)
    step = kt.Step(kvloom.Engine(spec, max_requests=matrix.num_requests, max_query_tokens=4, max_kv_tokens=matrix.kv_tokens))
    step.plan_sparse(matrix)
    q, k, v = qkv(4, 2 * PAGE)
    o = compiled(step.run)(q, matrix.as_pages(k), matrix.as_pages(v))
    assert torch.equal(o, kvloom.attention(q, k, v, matrix=matrix))


def test_arguments_are_those_of_kvloom():
    import ast
    import inspect
    import pathlib

    def names(function):
        return [name for name in inspect.signature(function).parameters if name != "self"]

    for name in ("attention", "append_kv", "merge_states", "merge_states_n", "merge_states_ragged", "apply_rope"):
        left_out = {"matrix", "options", "stream"}
        assert set(names(getattr(kt, name))) == set(names(getattr(kvloom, name))) - left_out, name
    tree = ast.parse((pathlib.Path(kvloom.__file__).parent / "_core.pyi").read_text())
    engine = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Engine")
    run = next(node for node in engine.body if isinstance(node, ast.FunctionDef) and node.name == "run").args
    assert set(names(kt.Step.run)) == {a.arg for a in [*run.args, *run.kwonlyargs]} - {"self", "plan", "stream"}
