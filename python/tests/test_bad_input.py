"""What is wrong is named, with what was expected, what came and what to do; nothing is written and nothing crashes."""

import numpy as np
import pytest

import kvloom
from exporters import CUDA, Exchange, Versioned

f32 = np.float32


def make_engine(**fields):
    options = {name: fields.pop(name) for name in list(fields) if name in kvloom.Options.__dataclass_fields__}
    spec = kvloom.Spec(**{"num_qo_heads": 4, "num_kv_heads": 2, "head_dim": 32, "page_size": 4, "causal": True, **fields})
    return kvloom.Engine(spec, max_requests=3, max_query_tokens=16, **{"backend": "cpu", **options})


@pytest.fixture
def engine():
    return make_engine()


@pytest.fixture
def plan(engine):
    return engine.plan([5, 3], block_table=np.array([[0, 1], [2, 0]]))


@pytest.fixture
def good():
    return {"q": np.zeros((2, 4, 32), f32), "k": np.zeros((3, 4, 2, 32), f32), "v": np.zeros((3, 4, 2, 32), f32)}


@pytest.mark.parametrize(
    "name, value, error, text",
    [
        ("q", np.zeros((2, 32), f32), ValueError, r"`q`: expected \[2, 4, 32\] f32 on cpu, got \[2, 32\] f32 on cpu; the shape is another"),
        ("q", np.zeros((3, 4, 32), f32), ValueError, r"`q`: expected \[2, 4, 32\] f32 on cpu, got \[3, 4, 32\]"),
        ("q", np.zeros((2, 4, 32), np.float16), TypeError, r"`q`: expected \[2, 4, 32\] f32 on cpu, got \[2, 4, 32\] f16 on cpu; convert it"),
        ("q", np.zeros((2, 4, 32), np.int32), TypeError, r"`q`: .* got \[2, 4, 32\] int32"),
        ("q", np.zeros((2, 4, 32), ">f4"), TypeError, r"`q`: got an array of dtype >f4"),
        ("q", np.zeros((2, 4, 32), "U1"), TypeError, r"`q`: got an array of dtype <U1"),
        ("q", np.zeros((1,) * 12, f32), TypeError, r"`q`: got an array of dtype float32 with 12 dimensions"),
        ("q", np.zeros((2, 4, 64), f32)[..., ::2], ValueError, r"q: stride: got 2 along the last dimension, wanted 1"),
        ("q", None, TypeError, r"`q`: expected \[2, 4, 32\] f32 on cpu, got None"),
        ("q", [1.0], TypeError, r"`q`: expected a tensor .*got list"),
        ("q", "q", TypeError, r"`q`: expected a tensor .*got str"),
        ("q", b"q", ValueError, r"`q`: expected \[2, 4, 32\] f32 on cpu, got \[1\] uint8"),
        ("k", np.zeros((3, 4, 4, 32), f32), ValueError, r"`k`: expected \[pages, 4, 2, 32\] f32 on cpu, got \[3, 4, 4, 32\]"),
        ("k", np.zeros((3, 2, 4, 32), f32), ValueError, r"`k`: expected \[pages, 4, 2, 32\]"),
        ("v", np.zeros((2, 4, 2, 32), f32), ValueError, r"page id: got 2, wanted 0 \.\. 1"),
        ("layout", "HND", ValueError, r"`k`: expected \[pages, 2, 4, 32\]"),
        ("layout", "NDH", ValueError, r"`layout`: expected 'NHD' or 'HND', got 'NDH'"),
        ("out", np.zeros((2, 4, 16), f32), ValueError, r"`out`: expected \[2, 4, 32\]"),
        ("out", np.zeros((2, 4, 32)), TypeError, r"`out`: .* got \[2, 4, 32\] float64"),
        ("out", np.broadcast_to(np.zeros((1, 4, 32), f32), (2, 4, 32)), ValueError, r"`out`: .*may not be written"),
        ("lse", np.zeros((2, 3), f32), ValueError, r"`lse`: expected \[2, 4\] f32"),
        ("lse", np.zeros((4, 2), f32), ValueError, r"`lse`: expected \[2, 4\] f32"),
        ("pages", np.zeros(8, np.uint32), TypeError, r"`pages`: expected int32 or int64, got \[8\] uint32"),
        ("pages", np.zeros(8), TypeError, r"`pages`: expected int32 or int64"),
        ("pages", np.array(3), ValueError, r"`pages`: expected a one-dimensional array"),
        ("pages", [0, "1"], TypeError, r"`pages`: element 1: expected an integer"),
        ("pages", [0, 2**70], TypeError, r"`pages`: element 1: expected an integer"),
        ("pages", [0], ValueError, r"pages: got 1 entries, wanted at least 3"),
        ("pages", [0, 1, 9, 9], ValueError, r"page id: got 9"),
        ("sink", np.zeros(4, f32), ValueError, r"sink: got an array, wanted none"),
        ("sink", np.zeros(3, f32), ValueError, r"`sink`: expected \[4\] f32 on cpu, got \[3\]"),
        ("alibi_slopes", np.zeros(4), TypeError, r"`alibi_slopes`: expected \[4\] f32 on cpu, got \[4\] float64"),
        ("alibi_slopes", np.zeros(8, f32)[::2], ValueError, r"`alibi_slopes`: .* got strides \[2\]; make it contiguous"),
        ("mask", np.zeros(4, f32), TypeError, r"`mask`: expected a contiguous uint8 array"),
        ("mask_indptr", np.zeros(3, np.int32), TypeError, r"`mask_indptr`: expected a contiguous int64 array \[requests \+ 1\], at least 3 long"),
        ("mask_indptr", np.zeros(2, np.int64), ValueError, r"`mask_indptr`: .*at least 3 long"),
        ("page_pos", np.zeros(8, np.int64), TypeError, r"`page_pos`: expected a contiguous int32 array"),
        ("page_pos", np.zeros(1, np.int32), ValueError, r"`page_pos`: .*at least 4 long"),
        ("q_scale", 2.0, ValueError, r"scale.q: got 2 with f32, wanted 1"),
        ("k_scale", "1", TypeError, r"`k_scale`: expected .*got str"),
        ("v_scale", np.ones(3, f32), ValueError, r"`v_scale`: expected \[2\] f32"),
        ("params", [1], TypeError, r"`params`: expected a dict"),
        ("params", {"a": 1.0}, ValueError, r"a"),
        ("params", {1: 1.0}, TypeError, r"`params`: expected names, got 1"),
        ("params", {"a": None}, TypeError, r"`params`: a: expected a number or an array, got None"),
        ("stream", "s", None, None),
    ],
)
def test_run(engine, plan, good, name, value, error, text):
    out = np.full((2, 4, 32), 7, f32)
    arguments = {**good, "out": out, name: value}
    if error is None:  # streams are for GPUs: on the CPU they are not looked at
        engine.run(plan, **arguments)
        return
    with pytest.raises(error, match=text):
        engine.run(plan, **arguments)
    assert np.all(out == 7)


def test_plans_that_nothing_has_made(engine, good):
    with pytest.raises(TypeError, match=r"`plan`: expected a kvloom.Plan that Engine.plan\(\) has made, got one that nothing has; plans come from"):
        engine.run(kvloom.Plan.__new__(kvloom.Plan), **good)
    with pytest.raises(TypeError, match="`plan`: expected a kvloom.Plan, got int"):
        engine.run(5, **good)


@pytest.mark.parametrize("name", ["q", "k", "v", "out", "lse", "pages", "sink", "params"])
def test_two_devices(engine, plan, good, name):
    shapes = {"out": (2, 4, 32), "lse": (2, 4), "pages": (4,), "sink": (4,), "params": (4,)}
    there = Versioned(np.zeros(shapes.get(name) or good[name].shape, np.int32 if name == "pages" else f32), device=(CUDA, 1))
    with pytest.raises(ValueError, match=f"`{name}`.* on cuda:1; "):
        engine.run(plan, **{**good, name: {"a": there} if name == "params" else there})


@pytest.mark.parametrize(
    "arguments, error, text",
    [
        ({"kv_len": None}, TypeError, "`kv_len`: expected the tokens of each request, got None"),
        ({"kv_len": [5, -1]}, ValueError, "-1"),
        ({"kv_len": [5.5, 1]}, TypeError, "`kv_len`: element 0: expected an integer"),
        ({"kv_len": np.array([5.0, 1.0])}, TypeError, "`kv_len`: expected int32 or int64"),
        ({"kv_len": [5, 3, 1]}, ValueError, r"`block_table`: expected \[3 lists, entries\].*got \[2, 2\]"),
        ({"qo_indptr": [0, 1]}, ValueError, "`qo_indptr`: expected 3 entries for 2 requests, got 2"),
        ({"qo_indptr": [0, 2, 1]}, ValueError, "qo_indptr"),
        ({"qo_indptr": [0, 1, 10**12]}, ValueError, "qo_indptr|tokens"),
        ({"qo_indptr": [0, 8, 60]}, kvloom.CapacityError, "16"),
        ({"block_table": np.zeros(4, int)}, ValueError, r"`block_table`: expected \[2 lists, entries\].*got \[4\]"),
        ({"block_table": np.zeros((2, 1), int)}, ValueError, "pages|table"),
        ({"block_table": [[0, 1], [2]]}, ValueError, "`block_table`: row 1: expected 2 entries, as row 0 has, got 1; fill rows up"),
        ({"block_table": [[0, 1], 2]}, TypeError, "`block_table`: row 1: expected a list, as row 0 is, got int"),
        ({"block_table": [[0, 1], [2, "0"]]}, TypeError, "`block_table`: row 1: element 1: expected an integer"),
        ({"block_table": [0, 1, 2, 0]}, ValueError, r"`block_table`: expected \[2 lists, entries\].*got \[4\]"),
        ({"block_table": [[0, 1]]}, ValueError, r"`block_table`: expected \[2 lists, entries\].*got \[1, 2\]"),
        ({"block_table": np.array([[0, -1], [2, 0]])}, ValueError, "page id: got -1|-1"),
        ({"pages": [0, 1, 2]}, ValueError, "`block_table`: expected it alone"),
        ({"block_table": None, "pages": [0, 1, 2]}, ValueError, "`list_indptr`: expected where each request's `pages` begin, got None"),
        ({"block_table": None, "pages": [0, 1, 2], "list_indptr": [0]}, ValueError, "`list_indptr`: expected 2 or 3 entries, got 1"),
        ({"block_table": None, "pages": [0, 1, 2], "list_indptr": [0, 9]}, ValueError, "pages"),
        ({"block_table": None}, ValueError, "`block_table`: expected it, or `pages` with `list_indptr` .*, got None"),
        ({"q_pos": [1]}, ValueError, "`q_pos`: expected 2 entries, one for every query token, got 1"),
        ({"q_pos0": [1, 2, 3]}, ValueError, "`q_pos0`: expected 2 entries, one for every request, got 3"),
        ({"prefix": np.zeros((2, 1), int)}, ValueError, "`prefix`: .*in 2 dimensions"),
        ({"q_pos": [1, 2**40]}, ValueError, "`q_pos`: element 1: expected 32 bits"),
        ({"kv_position": "id"}, ValueError, "`kv_position`: expected 'linear', 'page_table' or 'page_id', got 'id'"),
        ({"groups": 3}, TypeError, "int"),
        ({"groups": [object()]}, AttributeError, "tokens"),
        ({"groups": [kvloom.LevelGroup(tokens=[0, 9], list_begin=0, kv_end=4)]}, ValueError, "9"),
    ],
)
def test_plan(engine, arguments, error, text):
    good = {"kv_len": [5, 3], "block_table": np.array([[0, 1], [2, 0]])}
    with pytest.raises(error, match=text):
        engine.plan(**{**good, **arguments})
    plan = engine.plan(**good)
    before = bytes(plan)
    with pytest.raises(error, match=text):
        engine.replan(plan, **{**good, **arguments})
    assert bytes(plan) == before  # the old step is still there


def test_lengths_on_a_gpu(engine):
    there = Versioned(np.array([5, 3]), device=(CUDA, 0))
    with pytest.raises(ValueError, match=r"`kv_len`: expected integers on cpu, got \[2\] int64 on cuda:0; the host reads them: keep a copy there"):
        engine.plan(there, block_table=np.array([[0, 1], [2, 0]]))


def test_planning_on_a_device_wants_one(engine, plan):
    """Of what a GPU's engine refuses: test_fake_gpu_bad_input.py."""
    there, before = Versioned(np.array([5, 3]), device=(CUDA, 0)), bytes(plan)
    for call in (engine.plan_on_device, lambda *x, **y: engine.replan_on_device(plan, *x, **y)):
        for kv_len in (there, np.array([5, 3]), None, "x"):
            with pytest.raises(kvloom.UnsupportedError, match=r"expected an engine that runs on a GPU .*, got one on the CPU; plan\(\) is for all"):
                call(kv_len, block_table=there)
    with pytest.raises(TypeError, match="`plan`: expected a kvloom.Plan, got Versioned"):
        engine.replan_on_device(there, there)
    with pytest.raises(TypeError, match="`plan`: expected a kvloom.Plan, got NoneType"):
        engine.check(None)
    with pytest.raises(TypeError, match="`num_token`: plan_on_device has no such argument; did you mean `num_tokens`"):
        engine.plan_on_device(there, num_token=3)
    with pytest.raises(kvloom.MismatchError, match="`plan`"):
        make_engine(head_dim=64).check(plan)
    engine.check(plan)
    assert bytes(plan) == before


def test_masks_end_where_their_bytes_end():
    engine = make_engine(custom_mask=True)
    plan = engine.plan([5, 3], block_table=np.array([[0, 1], [2, 0]]))
    tensors = {"q": np.zeros((2, 4, 32), f32), "k": np.zeros((3, 4, 2, 32), f32), "v": np.zeros((3, 4, 2, 32), f32)}
    mask = np.full(2, 255, np.uint8)
    engine.run(plan, **tensors, mask=mask, mask_indptr=np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="`mask_indptr`: entry 2: expected 0 .. 1, the bytes of `mask`, got 2"):
        engine.run(plan, **tensors, mask=mask[:1], mask_indptr=np.array([0, 1, 2]))
    with pytest.raises(ValueError, match="mask_indptr: request 1: got 0 bytes"):
        engine.run(plan, **tensors, mask=mask, mask_indptr=np.array([0, 1, 1]))
    with pytest.raises(ValueError, match="mask: got none, wanted an array; variant.custom_mask needs it"):
        engine.run(plan, **tensors)


@pytest.mark.parametrize(
    "fields, error, text",
    [
        ({"num_qo_heads": 3}, ValueError, "num_qo_heads"),
        ({"num_qo_heads": 0, "num_kv_heads": 0}, ValueError, "heads"),
        ({"num_qo_heads": 2.5}, TypeError, "`num_qo_heads`: expected a number of 32 bits, got 2.5"),
        ({"head_dim": 2**40}, TypeError, "`head_dim`: expected a number of 32 bits"),
        ({"head_dim": 5}, kvloom.UnsupportedError, "head dim 5 is below 16"),
        ({"dtype": "f64"}, ValueError, "`dtype`: expected f32, f16, bf16, e4m3 or e5m2 .*got 'f64'"),
        ({"o_dtype": "e4m3"}, ValueError, "o_dtype"),
        ({"page_size": 0}, ValueError, "page_size"),
        ({"sm_scale": "a"}, TypeError, "`sm_scale`: expected a number"),
        ({"soft_cap": float("nan")}, ValueError, "soft_cap"),
        ({"window_left": -7}, ValueError, "window_left|range.left"),
        ({"reduction": "max"}, ValueError, "`reduction`: expected one of 'softmax', 'sum', got 'max'"),
        ({"variant": "struct X {}"}, ValueError, "KVLOOM_VARIANT"),
        ({"rope": kvloom.Rope(mode="neox")}, ValueError, "`mode`: expected one of 'none', 'interleaved', 'half_split', got 'neox'"),
        ({"rope": kvloom.Rope(rotary_dim=7)}, ValueError, "rotary_dim"),
        ({"policy": "best"}, ValueError, "`policy`: expected one of .*got 'best'"),
        ({"backend": "tpu"}, ValueError, "`backend`: expected one of 'cpu', 'cuda', 'auto', got 'tpu'"),
        ({"threads": -1}, ValueError, "threads"),
        ({"cpu_target": "sse"}, (ValueError, kvloom.UnsupportedError), "cpu_target|sse"),
    ],
)
def test_engine(fields, error, text):
    with pytest.raises(error, match=text):
        make_engine(**fields)


def test_engine_keywords():
    spec = kvloom.Spec(num_qo_heads=1, head_dim=32)
    with pytest.raises(TypeError, match="`max_tokens`: no such field of an engine; there are: max_requests, "):
        kvloom.Engine(spec, max_requests=1, max_query_tokens=1, max_tokens=3)
    with pytest.raises(TypeError, match="`max_query_tokens`: expected the largest number"):
        kvloom.Engine(spec, max_requests=1)
    with pytest.raises(TypeError, match="`max_requests`: given beside `capacity`"):
        kvloom.Engine(spec, kvloom.Capacity(max_requests=1, max_query_tokens=1), max_requests=2)
    with pytest.raises(TypeError, match="`spec`: expected a kvloom.Spec, got str"):
        kvloom.Engine("spec", max_requests=1, max_query_tokens=1)


def test_plans_of_other_engines(engine, plan, good):
    other = make_engine(head_dim=64)
    with pytest.raises(kvloom.MismatchError, match="`plan`: expected one that this engine made"):
        other.run(plan, **good)
    with pytest.raises(kvloom.MismatchError, match="`plan`"):
        other.replan(plan, [1], block_table=np.array([[0]]))
    with pytest.raises(TypeError, match="`plan`: expected a kvloom.Plan, got str"):
        engine.run("plan", **good)


def test_keywords_that_are_none(engine, plan, good):
    with pytest.raises(TypeError, match="`output`: run has no such argument; did you mean `out`\\? There are: plan, q, k, v, out, lse, "):
        engine.run(plan, **good, output=good["q"])
    with pytest.raises(
        TypeError, match="`block_tables`: plan has no such argument; did you mean `block_table`\\? There are: kv_len, qo_indptr, pages"
    ):
        engine.plan([1], block_tables=[[0]])
    with pytest.raises(TypeError, match="`x`: replan has no such argument; there are: plan, kv_len"):
        engine.replan(plan, [1], x=1)
    with pytest.raises(TypeError, match="`lists_per_kv_head`: expected True or False, got int"):
        engine.plan([1], lists_per_kv_head=1)
    with pytest.raises(TypeError, match="`layout`: expected a str, got NoneType"):
        engine.run(plan, **good, layout=None)
    with pytest.raises(TypeError, match="`matrix`: expected a kvloom.BlockSparse, got int"):
        engine.plan_sparse(3)
    with pytest.raises(TypeError, match="`matrix`: expected a kvloom.BlockSparse, got int"):
        kvloom.attention(np.zeros((2, 2, 32), f32), np.zeros((2, 2, 32), f32), np.zeros((2, 2, 32), f32), matrix=3)


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda e, p, g: e.run(), "`plan`, `q`, `k`, `v`: run got nothing for them; expected run(plan, q, k, v, ..)"),
        (lambda e, p, g: e.run(p, g["q"], v=g["v"]), "`k`: run got nothing for it; expected run(plan, q, k, v, ..)"),
        (lambda e, p, g: e.run(p, **g, plan=p), "`plan`: run got it twice, by place and by name"),
        (lambda e, p, g: e.run(p, g["q"], g["k"], g["v"], g["q"]), "run: expected at most 4 arguments by place (plan, q, k, v), the rest by name: out, lse, "),
        (lambda e, p, g: e.run(outt=g["q"]), "`outt`: run has no such argument; did you mean `out`? "),
        (lambda e, p, g: e.plan(qo_indptr=[0]), "`kv_len`: plan got nothing for it; expected plan(kv_len, ..)"),
        (lambda e, p, g: e.replan(p), "`kv_len`: replan got nothing for it; expected replan(plan, kv_len, ..)"),
        (lambda e, p, g: e.plan_on_device(), "`kv_len`: plan_on_device got nothing for it; "),
        (lambda e, p, g: e.replan_on_device(), "`plan`, `kv_len`: replan_on_device got nothing for them; "),
        (lambda e, p, g: e.check(), "`plan`: check got nothing for it; "),
        (lambda e, p, g: e.plan_sparse(1, 2), "plan_sparse: expected at most 1 arguments by place (matrix); got 2"),
    ],
)
def test_arguments_that_are_missing_or_too_many(engine, plan, good, call, text):
    with pytest.raises(TypeError) as caught:
        call(engine, plan, good)
    assert str(caught.value).startswith(text)


def test_help_says_it_once():
    for method in ("plan", "replan", "plan_on_device", "replan_on_device", "check", "plan_sparse", "run"):
        assert "Overloaded" not in getattr(kvloom.Engine, method).__doc__


def test_a_block_table_that_is_too_narrow(engine):
    with pytest.raises(ValueError, match=r"plan: kv_len: request 1: got 60 tokens, which take 15 pages of 4, wanted at most block_table.shape\[1\] = 2"):
        engine.plan([5, 60], block_table=np.array([[0, 1], [2, 0]]))


def test_no_gpu_is_a_refusal():
    if kvloom.Engine(kvloom.Spec(num_qo_heads=1, head_dim=64), max_requests=1, max_query_tokens=1).backend == "cuda":
        pytest.skip("this machine has a GPU")
    with pytest.raises(kvloom.Error, match="cuda"):
        make_engine(backend="cuda", head_dim=64)
    there = Exchange(np.zeros((1, 2, 64), f32), device=(CUDA, 0))
    with pytest.raises(kvloom.Error, match="cuda"):
        kvloom.attention(there, there, there, out=Exchange(np.zeros((1, 2, 64), f32), device=(CUDA, 0)))


def test_refusals_are_of_two_kinds():
    for error, builtin in (
        (kvloom.CapacityError, ValueError),
        (kvloom.UnsupportedError, NotImplementedError),
        (kvloom.MismatchError, ValueError),
        (kvloom.DeviceMemoryError, MemoryError),
        (kvloom.IoError, OSError),
        (kvloom.InternalError, RuntimeError),
    ):
        assert issubclass(error, kvloom.Error) and issubclass(error, builtin)


def test_workspace(engine):
    spec, fields = engine.spec, {"max_requests": 3, "max_query_tokens": 16, "backend": "cpu"}
    size = kvloom.workspace_size(spec, **fields)
    memory = np.zeros(size + 128, np.uint8)
    start = -memory.ctypes.data % 64
    kvloom.Engine(spec, **fields, workspace=memory[start : start + size])
    with pytest.raises(kvloom.MismatchError, match=str(size)):
        kvloom.Engine(spec, **fields, workspace=memory[start : start + size - 1])
    with pytest.raises(ValueError, match="align|64"):
        kvloom.Engine(spec, **fields, workspace=memory[start + 1 : start + 1 + size])
    for wrong in (memory[: 2 * size : 2], np.zeros(size, np.int8)):
        with pytest.raises(ValueError, match="`workspace`: expected a writable, contiguous one-dimensional uint8 array"):
            kvloom.Engine(spec, **fields, workspace=wrong)
    with pytest.raises(ValueError, match="`workspace`: expected memory on cpu, got .* on cuda:0"):
        kvloom.Engine(spec, **fields, workspace=Versioned(memory[start : start + size], device=(CUDA, 0)))
