"""Continuous batching in one page: requests come and go, prompts are computed in chunks beside the decode steps of others, pages are handed out and
taken back. Every step is one plan and one run, whatever is in it. The model is a layer of attention with random weights; what a request
says does not depend on who else is there, which is checked by serving each alone."""

import numpy as np

import kvloom
from arrays import BACKEND, DTYPE, host, tensor, there, zeros

HEADS, DIM, PAGE, PAGES, VOCABULARY, CHUNK, MOST = 4, 64, 16, 64, 128, 32, 8
rng = np.random.default_rng(3)
embedding, out_weights = (rng.standard_normal((n, HEADS * DIM), dtype=np.float32) for n in (VOCABULARY, HEADS * DIM))
qkv_weights = [rng.standard_normal((HEADS * DIM, HEADS * DIM), dtype=np.float32) / 16 for _ in "qkv"]
spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=HEADS, head_dim=DIM, page_size=PAGE, dtype=DTYPE, causal=True)
# fixed_split: the bits of a request's attention are the same in any batch.
engine = kvloom.Engine(spec, max_requests=MOST, max_query_tokens=MOST * CHUNK, max_kv_tokens=PAGES * PAGE, backend=BACKEND, policy="fixed_split", split_tokens=256)


def times(x, w):
    """x @ w row by row: the bits of a product of matrices hang on how many rows there are."""
    return np.stack([row @ w for row in x])


class Request:
    def __init__(self, prompt, new):
        self.tokens, self.length, self.computed, self.pages = list(prompt), len(prompt) + new, 0, []

    def next_tokens(self):
        return self.tokens[self.computed : self.computed + CHUNK]


def serve(waiting):
    """All requests to their ends. Returns how many tokens every step had."""
    free, running, sizes = list(range(PAGES)), [], []
    caches = [zeros(PAGES, PAGE, HEADS, DIM) for _ in "kv"]
    waiting = list(waiting)
    while waiting or running:
        while waiting and len(running) < MOST and len(free) >= -(-waiting[0].length // PAGE):
            running.append(waiting.pop(0))
            running[-1].pages = [free.pop() for _ in range(-(-running[-1].length // PAGE))]
        step = [r.next_tokens() for r in running]
        q_len, begin = [len(x) for x in step], [r.computed for r in running]
        table = np.zeros((len(running), max(len(r.pages) for r in running)), np.int32)
        for row, r in zip(table, running):
            row[: len(r.pages)] = r.pages
        slots = np.array([r.pages[p // PAGE] * PAGE + p % PAGE for r, n in zip(running, q_len) for p in range(r.computed, r.computed + n)])

        x = embedding[np.concatenate(step)]
        q, k, v = (tensor(times(x, w).reshape(-1, HEADS, DIM)) for w in qkv_weights)
        kvloom.append_kv(k, v, *caches, slots=there(slots))
        plan = engine.plan(np.add(begin, q_len), np.cumsum([0, *q_len]), block_table=table)
        attended = host(engine.run(plan, q, *caches, pages=there(table)))
        logits = times(times(attended.reshape(len(x), -1), out_weights), embedding.T)

        for r, n, last in zip(running, q_len, np.cumsum(q_len) - 1):
            r.computed += n
            if r.computed == len(r.tokens) < r.length:  # a prompt's last chunk, or a decode step
                r.tokens.append(int(logits[last].argmax()))
        for r in [r for r in running if r.computed == r.length - 1 or len(r.tokens) == r.length]:
            running.remove(r)
            free += r.pages
        sizes.append(sum(q_len))
    return sizes


prompts = [rng.integers(0, VOCABULARY, n).tolist() for n in rng.integers(1, 100, 20)]
together = [Request(p, 24) for p in prompts]
sizes = serve(together)
print(f"{len(prompts)} requests, {len(sizes)} steps of {min(sizes)} to {max(sizes)} tokens, {sum(len(r.tokens) for r in together)} tokens in all")
for request, prompt in zip(together, prompts):
    alone = Request(prompt, 24)
    serve([alone])
    assert alone.tokens == request.tokens, (alone.tokens, request.tokens)
print("each says the same alone; the first one:", *together[0].tokens[len(prompts[0]) :])
