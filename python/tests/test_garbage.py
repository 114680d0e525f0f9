"""Arguments drawn from a bag of everything: exceptions of the named kinds, never a crash, and the engine works on."""

import random

import numpy as np

import kvloom
from exporters import CUDA, Exchange, Unversioned, Versioned

BAG = [
    None,
    0,
    1,
    -1,
    3.5,
    2**62,
    2**80,
    float("nan"),
    "NHD",
    "",
    b"\0\1",
    [],
    [0],
    [0, 1, 2],
    [0, 5, 2],
    [[0]],
    (1, 2),
    {},
    {"a": 1},
    object(),
    int,
    True,
    range(3),
    np.float32(1),
    np.zeros(0, np.int32),
    np.zeros(3, np.int64),
    np.array([0, 1, 2]),
    np.array([0, 2, 2], np.int32),
    np.array([9, -9, 2**31 - 1]),
    np.array([[0, 1], [2, 3]]),
    np.zeros((2, 0), np.int64),
    np.zeros((2, 4, 32), np.float32),
    np.zeros((2, 4, 32), np.float16),
    np.zeros((3, 4, 2, 32), np.float32),
    np.zeros((3, 4, 2, 32), np.float32)[::-1],
    np.zeros((0, 4, 2, 32), np.float32),
    np.zeros((2, 4), np.float32),
    np.zeros(4, np.float32),
    np.zeros(2, np.uint8),
    np.zeros(3, bool),
    np.zeros((2, 4, 32), "c8"),
    np.array(["a"]),
    np.array([None]),
    np.zeros(3, "M8[s]"),
    np.zeros((), np.float32),
    memoryview(b"abc"),
    memoryview(bytearray(96)).cast("f", (2, 4, 3)),
    Versioned(np.zeros((2, 4, 32), np.float32)),
    Versioned(np.zeros(3, np.int32), device=(CUDA, 0)),
    Unversioned(np.zeros((3, 4, 2, 32), np.float32)),
    Exchange(np.zeros((2, 4, 32), np.float32)),
    Exchange(np.zeros(3, np.int64), device=(CUDA, 3)),
    Versioned(np.zeros((2, 4, 32), np.float32), device=(99, 0)),
    np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**40, 4, 32), (0, 0, 0)),
    np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), (2**40,), (0,))[:0],
]
EXPECTED = (ValueError, TypeError, AttributeError, kvloom.Error, MemoryError, NotImplementedError)


def test_garbage():
    rng = random.Random(11)
    spec = kvloom.Spec(num_qo_heads=4, num_kv_heads=2, head_dim=32, page_size=4)
    engine = kvloom.Engine(spec, max_requests=3, max_query_tokens=16, backend="cpu")
    table = np.array([[0, 1], [2, 0]])
    plan = engine.plan([5, 3], block_table=table)
    step = {"kv_len": [5, 3], "qo_indptr": [0, 1, 2], "block_table": table}
    tensors = {"q": np.zeros((2, 4, 32), np.float32), "k": np.zeros((3, 4, 2, 32), np.float32), "v": np.zeros((3, 4, 2, 32), np.float32)}
    append = {
        "k_new": np.ones((2, 2, 32), np.float32),
        "v_new": None,
        "k": np.zeros((3, 4, 2, 32), np.float32),
        "v": None,
        "request": [0, 1],
        "pos": [4, 2],
        "block_table": table,
    }
    more = {
        engine.plan: (step, ["pages", "list_indptr", "q_pos0", "q_pos", "prefix", "groups", "lists_per_kv_head", "kv_position"]),
        lambda **x: engine.replan(plan, **x): (step, ["pages", "list_indptr", "q_pos0", "q_pos", "prefix", "groups"]),
        lambda **x: engine.run(plan, **x): (
            tensors,
            [
                "out",
                "lse",
                "pages",
                "page_pos",
                "layout",
                "alibi_slopes",
                "sink",
                "mask",
                "mask_indptr",
                "q_scale",
                "k_scale",
                "v_scale",
                "bare_state",
                "params",
                "stream",
                "return_lse",
            ],
        ),
        kvloom.attention: (
            {**tensors, **step},
            [
                "pages",
                "list_indptr",
                "kv_indptr",
                "matrix",
                "layout",
                "window_left",
                "sm_scale",
                "soft_cap",
                "sink",
                "mask",
                "mask_indptr",
                "rope",
                "variant",
                "params",
                "out",
                "lse",
                "o_dtype",
                "options",
            ],
        ),
        kvloom.append_kv: (append, ["rope_pos", "pages", "list_indptr", "slots", "layout", "rope", "k_scale", "v_scale"]),
        lambda **x: kvloom.merge_states(**x): (
            {"o_a": tensors["q"], "lse_a": np.zeros((2, 4), np.float32), "o_b": tensors["q"], "lse_b": np.zeros((2, 4), np.float32)},
            ["out", "lse", "stream"],
        ),
        kvloom.merge_states_ragged: ({"o": tensors["q"], "lse": np.zeros((2, 4), np.float32), "indptr": [0, 1, 2]}, ["out", "lse_out"]),
        kvloom.apply_rope: ({"x": tensors["q"].copy(), "pos": [0, 1], "rope": kvloom.Rope()}, []),
        kvloom.pack_mask: ({"masks": [np.zeros((2, 3), bool)]}, []),
        kvloom.BlockSparse: ({"indptr": [0, 1], "indices": [0], "block_shape": (2, 2), "shape": (2, 4)}, []),
        kvloom.BlockSparse.variable: ({"block_rows": [2], "block_cols": [2, 4], "map": np.ones((1, 2), bool)}, []),
    }
    refused = {}
    for call, (good, optional) in more.items():
        for _ in range(400):
            arguments = dict(good)
            for name in rng.sample([*good, *optional], rng.choice((1, 1, 2, 4)) if len(good) + len(optional) >= 4 else 1):
                arguments[name] = rng.choice(BAG)
            try:
                call(**arguments)
            except EXPECTED as error:
                refused[type(error)] = refused.get(type(error), 0) + 1
    assert refused[ValueError] > 1000 and refused[TypeError] > 1000, refused
    engine.replan(plan, **step)
    assert np.array_equal(engine.run(plan, **{**tensors, "v": np.ones_like(tensors["v"])}), np.ones((2, 4, 32), np.float32))
