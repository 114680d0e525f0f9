"""Serving in one page: two prompts are prefilled, then both requests decode token by token, on a paged KV cache. One engine, one plan a step,
one run a layer."""

import numpy as np

import kvloom
from arrays import BACKEND, DTYPE, normal, there, zeros

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 64, 16

rng = np.random.default_rng(7)
spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=PAGE, dtype=DTYPE, causal=True)
engine = kvloom.Engine(spec, max_requests=2, max_query_tokens=128, backend=BACKEND)
print("kernel", engine.kernel_key)

k_cache, v_cache = (zeros(32, PAGE, KV_HEADS, DIM) for _ in "kv")
table = np.zeros((2, 8), np.int32)  # page ids, a row a request
kv_len = np.zeros(2, np.int32)
free_pages = list(range(32))


def step(q_len):
    """q_len[r] new tokens of each request."""
    request = np.repeat([0, 1], q_len)
    pos = np.concatenate([kv_len[r] + np.arange(n) for r, n in enumerate(q_len)])
    for r, n in enumerate(q_len):  # room for them
        for entry in range(-(-kv_len[r] // PAGE), -(-(kv_len[r] + n) // PAGE)):
            table[r, entry] = free_pages.pop()
        kv_len[r] += n

    # The new tokens' keys and values go into their pages first. Random numbers stand for a model's projections.
    k_new, v_new = (normal(rng, len(pos), KV_HEADS, DIM) for _ in "kv")
    slots = np.empty(len(pos), np.int64)
    kvloom.append_slots(slots, request=request, pos=pos, page_size=PAGE, num_pages=32, block_table=table)
    kvloom.append_kv(k_new, v_new, k_cache, v_cache, slots=there(slots))

    # Plan once a step; the plan serves every layer.
    plan = engine.plan(kv_len, np.cumsum([0, *q_len]), block_table=table)
    q = normal(rng, len(pos), HEADS, DIM)
    out, lse = engine.run(plan, q, k_cache, v_cache, pages=there(table), return_lse=True)
    print(f"  {len(pos):3} new tokens over {kv_len[0]:3} + {kv_len[1]:3} keys   out[0] = {out[0, 0, 0]:+.4f}  lse[0] = {lse[0, 0]:+.4f}")
    return plan


print("prefill")
step([70, 33])
print("decode")
for _ in range(3):
    plan = step([1, 1])
print(plan.explain())
