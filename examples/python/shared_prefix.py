"""Sixteen requests answer about one long document: their page tables begin with the same pages. The planner sees it, and attends the document
once for all of them (a level of its own) instead of once a request; the answer is the same."""

import numpy as np

import kvloom

REQUESTS, HEADS, KV_HEADS, DIM, PAGE = 16, 8, 2, 64, 16
SHARED, OWN = 64, 3  # pages of the document, and of each request

table = np.empty((REQUESTS, SHARED + OWN), np.int32)
table[:, :SHARED] = np.arange(SHARED)
table[:, SHARED:] = SHARED + np.arange(REQUESTS * OWN).reshape(REQUESTS, OWN)
kv_len = np.full(REQUESTS, SHARED * PAGE + 40, np.int32)

rng = np.random.default_rng(1)
q = rng.standard_normal((REQUESTS, HEADS, DIM), dtype=np.float32)
k, v = rng.standard_normal((2, SHARED + REQUESTS * OWN, PAGE, KV_HEADS, DIM), dtype=np.float32)

spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, page_size=PAGE, causal=True)
fields = {"max_requests": REQUESTS, "max_query_tokens": REQUESTS, "backend": "cpu"}
shared = kvloom.Engine(spec, max_level_rows=REQUESTS, **fields)
alone = kvloom.Engine(spec, levels="off", **fields)

plan = shared.plan(kv_len, block_table=table)
print(plan.explain())
worst = np.abs(shared.run(plan, q, k, v) - alone.run(alone.plan(kv_len, block_table=table), q, k, v)).max()
print(f"with and without the shared level: at most {worst:.1e} apart")
assert "2 levels" in plan.explain() and worst < 1e-5
