"""Speculative decoding with a tree of drafts: six draft tokens hang off one context, branches apart. One call attends all of them: each token sees
the context and its own ancestors (a mask), at the position that it would have in the text (q_pos). Checked against each branch by itself.

context ... c   +-- 0 -- 2 -- 4        token:    0  1  2  3  4  5
                +-- 1 -- 3             parent:   -  -  0  1  2  2
                    (2 -- 5)           depth:    1  1  2  2  3  3
"""

import numpy as np

import kvloom
from arrays import TOLERANCE, apart, normal, there

HEADS, KV_HEADS, DIM, CONTEXT = 4, 2, 64, 100
parent = [-1, -1, 0, 1, 2, 2]


def path_to(token):
    """The token and its ancestors, root first."""
    return [*path_to(parent[token]), token] if token >= 0 else []


paths = [path_to(token) for token in range(len(parent))]
keep = np.zeros((len(parent), CONTEXT + len(parent)), bool)
keep[:, :CONTEXT] = True
for token, path in enumerate(paths):
    keep[token, CONTEXT + np.array(path)] = True
mask, mask_indptr = kvloom.pack_mask([keep])

rng = np.random.default_rng(1)
q = normal(rng, len(parent), HEADS, DIM)
k, v = (normal(rng, CONTEXT + len(parent), KV_HEADS, DIM) for _ in "kv")
tree = kvloom.attention(q, k, v, mask=there(mask), mask_indptr=there(mask_indptr), q_pos=[CONTEXT + len(path) - 1 for path in paths])

worst = 0.0
for token, path in enumerate(paths):
    branch = [*range(CONTEXT), *(CONTEXT + t for t in path)]
    alone = kvloom.attention(q[token : token + 1], k[branch], v[branch])
    worst = max(worst, apart(alone[0], tree[token]))
print(f"{len(parent)} drafts in one call; largest difference from decoding branch by branch {worst:.2g}")
assert worst < TOLERANCE
