"""A variant of one's own, as two Python functions: documents packed into one prompt, where a token sees its own document alone, with scores that
fall with distance. What comes out is what each document gives by itself."""

import numpy as np

import kvloom
from arrays import TOLERANCE, apart, normal, there

HEADS, DIM = 4, 64
lengths = [70, 5, 133]
document = there(np.repeat(np.arange(3, dtype=np.int32), lengths))
slopes = there(np.array([0.5, 0.25, 0.125, 0.0], np.float32))


def falling(score, b, h, q_idx, kv_idx):
    return score - slopes[h] * abs(q_idx - kv_idx)


def same_document(b, h, q_idx, kv_idx):
    return document[q_idx] == document[kv_idx]


rng = np.random.default_rng(7)
q, k, v = (normal(rng, sum(lengths), HEADS, DIM) for _ in "qkv")

packed_documents = kvloom.variant(falling, same_document)
print(packed_documents.text[packed_documents.text.index("struct") :])  # the C++ that the functions became
packed = kvloom.attention(q, k, v, variant=packed_documents, causal=True)

start = np.cumsum([0, *lengths])
each = kvloom.attention(q, k, v, qo_indptr=start, kv_indptr=start, variant=kvloom.variant(falling), causal=True)
worst = apart(packed, each)
print(f"packed and apart differ by at most {worst:.1e}")
assert worst < TOLERANCE
