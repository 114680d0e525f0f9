"""A server's steps by FlashInfer's names, without a GPU and torch, or with both (--gpu): keys are appended to pages, a prefill step and a decode step run through the
wrappers, and the shared prompt's part is merged with each request's own by its state."""

import numpy as np

import kvloom.flashinfer as flashinfer
from arrays import ON_GPU, TOLERANCE, apart, normal, there, zeros

HEADS, KV_HEADS, DIM, PAGE = 8, 2, 64, 16
rng = np.random.default_rng(1)
FORM = HEADS, KV_HEADS, DIM, PAGE
DTYPE = "bfloat16" if ON_GPU else "float32"


def int32(*values):
    return there(np.array(values, np.int32))


# Two requests: 40 and 25 tokens, in 3 and 2 pages of a pool.
cache = zeros(8, 2, PAGE, KV_HEADS, DIM)
indptr, indices, last_page_len = int32(0, 3, 5), int32(6, 1, 3, 0, 4), int32(8, 9)
qo_indptr = int32(0, 40, 65)
k, v = (normal(rng, 65, KV_HEADS, DIM) for _ in "kv")
where = flashinfer.get_batch_indices_positions(qo_indptr, flashinfer.get_seq_lens(indptr, last_page_len, PAGE), 65)
flashinfer.append_paged_kv_cache(k, v, *where, cache, indices, indptr, last_page_len)

workspace = there(np.empty(16 << 20, np.uint8))
prefill = flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace)
prefill.plan(qo_indptr, indptr, indices, last_page_len, *FORM, causal=True, q_data_type=DTYPE)
q = normal(rng, 65, HEADS, DIM)
out = prefill.run(q, cache)
alone = flashinfer.single_prefill_with_kv_cache(q[:40], k[:40], v[:40], causal=True)
print(f"prefill: pages and contiguous keys are at most {apart(out[:40], alone):.1e} apart")

decode = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
decode.plan(indptr, indices, last_page_len, *FORM, q_data_type=DTYPE)
q = normal(rng, 2, HEADS, DIM)
whole = decode.run(q, cache)

# The same in two parts, each with its LSE: a request's first 16 keys, and the others.
parts = []
for pages, lists, last in ((int32(6, 0), int32(0, 1, 2), int32(16, 16)), (int32(1, 3, 4), int32(0, 2, 3), int32(8, 9))):
    decode.plan(lists, pages, last, *FORM, q_data_type=DTYPE)
    parts += decode.run(q, cache, return_lse=True)
merged, _ = flashinfer.merge_state(*parts)
print(f"decode: whole and merged are at most {apart(whole, merged):.1e} apart")
assert max(apart(out[:40], alone), apart(whole, merged)) < TOLERANCE
