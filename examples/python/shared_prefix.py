"""Sixteen requests answer about one long document: their page tables begin with the same pages. The planner sees it, and attends the document
once for all of them (a level of its own) instead of once a request; the answer is the same."""

import numpy as np

import kvloom
from arrays import BACKEND, DTYPE, TOLERANCE, apart, normal, there

REQUESTS, HEADS, KV_HEADS, DIM, PAGE = 16, 8, 2, 64, 16
SHARED, OWN = 64, 3  # pages of the document, and of each request

table = np.empty((REQUESTS, SHARED + OWN), np.int32)
table[:, :SHARED] = np.arange(SHARED)
table[:, SHARED:] = SHARED + np.arange(REQUESTS * OWN).reshape(REQUESTS, OWN)
kv_len = np.full(REQUESTS, SHARED * PAGE + 40, np.int32)

rng = np.random.default_rng(1)
q = normal(rng, REQUESTS, HEADS, DIM)
k, v = (normal(rng, SHARED + REQUESTS * OWN, PAGE, KV_HEADS, DIM) for _ in "kv")

spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=PAGE, dtype=DTYPE, causal=True)
fields = {"max_requests": REQUESTS, "max_query_tokens": REQUESTS, "backend": BACKEND}
shared = kvloom.Engine(spec, max_level_rows=REQUESTS, **fields)
alone = kvloom.Engine(spec, levels="off", **fields)

plan = shared.plan(kv_len, block_table=table)
print(plan.explain())
pages = there(table)
worst = apart(shared.run(plan, q, k, v, pages=pages), alone.run(alone.plan(kv_len, block_table=table), q, k, v, pages=pages))
print(f"with and without the shared level: at most {worst:.1e} apart")
assert "2 levels" in plan.explain() and worst < TOLERANCE
