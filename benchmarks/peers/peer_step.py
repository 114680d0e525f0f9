"""The tensors of one row for engines of torch, and the right answer for sampled rows of it."""
import random

ROTATE_BYTES = 1 << 30  # copies of K and V until they are larger than any cache by far
MOST_COPIES = 16
SAMPLES = 12


class Step:
    """Q [tokens, heads, dim]; K and V as pools of pages where the row has pages, in random order, else as tokens after tokens."""

    def __init__(self, torch, row, device):
        self.torch, self.row, self.device = torch, row, device
        self.q_len, self.kv_len, self.page = row["q_len"], row["kv_len"], row["page_size"]
        self.group = row["qo_heads"] // row["kv_heads"]
        self.scale = row["head_dim_qk"] ** -0.5
        self.equal = len(set(self.q_len)) == 1 and len(set(self.kv_len)) == 1
        self.type = torch.bfloat16
        self.kv_type = torch.float8_e4m3fn if row["kv_dtype"] == "e4m3" else torch.bfloat16
        self.qo_indptr = [0]
        for q in self.q_len:
            self.qo_indptr.append(self.qo_indptr[-1] + q)
        torch.manual_seed(1)
        self.q = self.normal(self.qo_indptr[-1], row["qo_heads"], row["head_dim_qk"], kind=self.type)
        self.lists = self.page_lists() if self.page else None
        slots = (self.num_pages * self.page) if self.page else sum(self.kv_len)
        self.k_shape, self.v_shape = ((slots, row["kv_heads"], row[d]) for d in ("head_dim_qk", "head_dim_vo"))
        size = 1 if self.kv_type != self.type else 2
        one = size * slots * row["kv_heads"] * (row["head_dim_qk"] + (0 if row["v_in_k"] else row["head_dim_vo"]))
        self.copies = max(1, min(MOST_COPIES, ROTATE_BYTES // one))
        self.caches = [self.cache() for _ in range(self.copies)]
        self.slopes = torch.tensor([2.0 ** (-8.0 * (h + 1) / row["qo_heads"]) for h in range(row["qo_heads"])], device=device)
        self.contiguous = {}

    def normal(self, *shape, kind):
        return self.torch.randn(*shape, dtype=self.type, device=self.device).to(kind)

    def cache(self):
        k = self.normal(*self.k_shape, kind=self.kv_type)
        return k, k[..., : self.row["head_dim_vo"]] if self.row["v_in_k"] else self.normal(*self.v_shape, kind=self.kv_type)

    def page_lists(self):
        """Ids of every request's pages; what requests share lies in the same ones."""
        counts = [-(-kv // self.page) for kv in self.kv_len]
        shared_with = self.row.get("shared_with") or [-1] + [0] * (len(counts) - 1)
        tokens = self.row.get("shared_tokens") or [self.row["shared_prefix"]] * len(counts)
        shared = [0 if other < 0 else t // self.page for other, t in zip(shared_with, tokens)]
        self.num_pages = sum(counts) - sum(shared)
        pool = list(range(self.num_pages))
        random.Random(3).shuffle(pool)
        rest, lists = iter(pool), []
        for count, other, common in zip(counts, shared_with, shared):
            lists.append((lists[other][:common] if common else []) + [next(rest) for _ in range(count - common)])
        return lists

    def slots(self, request):
        """Rows of K and V of a request's tokens, in order."""
        torch, kv = self.torch, self.kv_len[request]
        if not self.page:
            begin = sum(self.kv_len[:request])
            return torch.arange(begin, begin + kv, device=self.device)
        pages = torch.tensor(self.lists[request], device=self.device)
        return (pages[:, None] * self.page + torch.arange(self.page, device=self.device)).flatten()[:kv]

    def tokens_after_tokens(self, i):
        """Copy i of K and V without pages, request after request: what engines that know no pages are given."""
        i %= self.copies
        if not self.page:
            return self.caches[i]
        if i not in self.contiguous:
            every = self.torch.cat([self.slots(r) for r in range(len(self.kv_len))])
            self.contiguous[i] = tuple(x.view(self.torch.uint8)[every].view(x.dtype) if x.element_size() == 1 else x[every] for x in self.caches[i])
        return self.contiguous[i]

    def paged(self, i):
        """Copy i as [pages, page_size, heads, dim]."""
        return tuple(x.view(self.num_pages, self.page, *x.shape[1:]) for x in self.caches[i % self.copies])

    def exact(self, request, token, head):
        """A row of the output in float64, from copy 0."""
        torch, row = self.torch, self.row
        k, v = (x[self.slots(request), head // self.group].double() for x in self.as_wide(self.caches[0]))
        scores = (k @ self.q[self.qo_indptr[request] + token, head].double()) * self.scale
        pos = self.kv_len[request] - self.q_len[request] + token
        behind = torch.arange(self.kv_len[request], device=self.device) - pos
        if row["alibi"]:
            scores = scores + self.slopes[head].double() * behind
        if row["soft_cap"] > 0:
            scores = row["soft_cap"] * torch.tanh(scores / row["soft_cap"])
        if row["causal"]:
            scores = scores.masked_fill(behind > 0, float("-inf"))
        if row["left"] >= 0:
            scores = scores.masked_fill(behind < -row["left"], float("-inf"))
        return torch.softmax(scores, 0) @ v

    def as_wide(self, tensors):
        return (x.to(self.type) if x.element_size() == 1 else x for x in tensors)

    def error_of(self, out):
        """The worst of ||out - exact|| / ||exact|| of sampled rows of `out`, [tokens, heads, dim]; first and last tokens are among them."""
        pick = random.Random(7)
        worst = 0.0
        for n in range(SAMPLES):
            request = pick.choice([0, len(self.q_len) - 1, pick.randrange(len(self.q_len))])
            token = [0, self.q_len[request] - 1, pick.randrange(self.q_len[request])][n % 3]
            head = pick.randrange(self.row["qo_heads"])
            exact = self.exact(request, token, head)
            error = float((out[self.qo_indptr[request] + token, head].double() - exact).norm() / exact.norm())
            worst = max(worst, error if error == error else float("inf"))
        return worst
