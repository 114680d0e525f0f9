"""What other engines are called with. An engine has forms (different calls for the same answer); the fastest counts."""
import importlib.util
from collections import namedtuple

# `run(i)` computes with copy i of K and V; `rows(result)` is that result as [tokens, heads, dim]; `plan()`: what the host does once a step before, where
# an engine has that.
Work = namedtuple("Work", "run rows copies plan", defaults=(None,))


class Cannot(Exception):
    """An engine does not do a row; the words stand in the results."""


def refuse(row, *features):
    """Raises for what a row has and an engine does not do."""
    words = {"soft_cap": "a soft cap", "alibi": "ALiBi", "sink": "sinks", "custom_mask": "a custom mask", "rope": "RoPE within attention",
             "v_in_k": "MLA", "fp8": "fp8 K and V", "window": "a window"}
    has = {**row, "fp8": row["kv_dtype"] != "bf16", "window": row["left"] >= 0}
    for feature in features:
        if has[feature]:
            raise Cannot(f"does not do {words[feature]}")


def by_batch(step, x):
    """[tokens, heads, dim] of equal requests as [batch, heads, tokens, dim], contiguous."""
    batch = len(step.q_len)
    return x.view(batch, x.shape[0] // batch, *x.shape[1:]).transpose(1, 2).contiguous()


def from_batch(out):
    return out.transpose(1, 2).flatten(0, 1)


class Torch:
    def missing(self, facts):
        return None

    def batches(self, step, expand=False):
        q = by_batch(step, step.q)
        caches = [tuple(by_batch(step, x) for x in step.tokens_after_tokens(i)) for i in range(step.copies)]
        if expand:
            caches = [tuple(x.repeat_interleave(step.group, 1) for x in kv) for kv in caches]
        return q, caches


class Sdpa(Torch):
    """scaled_dot_product_attention with one backend; unequal lengths, chunks and windows by torch's varlen attention, which is flash."""

    def __init__(self, name, backend):
        self.name, self.backend = name, backend

    def forms(self, torch, step):
        row = step.row
        refuse(row, "soft_cap", "alibi", "sink", "custom_mask", "rope", "v_in_k", "fp8")
        decode = max(step.q_len) == 1
        whole = step.q_len == step.kv_len
        if step.equal and row["left"] < 0 and (decode or whole or not row["causal"]):
            forms = [("enable_gqa", lambda: self.dense(torch, step, False))]
            if step.group > 1 and not decode:
                forms.append(("KV heads repeated", lambda: self.dense(torch, step, True)))
            return forms
        if self.name != "flash":
            raise Cannot("SDPA takes requests of equal lengths, all of whose keys are new, without a window")
        if step.device == "cpu":
            raise Cannot("varlen_attn wants a GPU")
        return [("varlen_attn", lambda: self.varlen(torch, step))]

    def dense(self, torch, step, expand):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        q, caches = self.batches(step, expand)
        causal = step.row["causal"] and max(step.q_len) > 1
        gqa = step.group > 1 and not expand

        def run(i):
            k, v = caches[i % step.copies]
            call = lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=gqa)
            if step.device == "cpu":
                return call()
            with sdpa_kernel(getattr(SDPBackend, self.backend)):
                return call()

        return Work(run, from_batch, step.copies)

    def varlen(self, torch, step):
        from torch.nn.attention.varlen import varlen_attn

        cumulated = lambda lengths: torch.tensor([0, *lengths], device=step.device).cumsum(0).to(torch.int32)
        cu_q, cu_k = cumulated(step.q_len), cumulated(step.kv_len)
        window = (step.row["left"], 0) if step.row["causal"] else (-1, -1)
        caches = [step.tokens_after_tokens(i) for i in range(step.copies)]

        def run(i):
            k, v = caches[i % step.copies]
            return varlen_attn(step.q, k, v, cu_q, cu_k, max(step.q_len), max(step.kv_len), window_size=window)

        return Work(run, lambda out: out, step.copies)


class Flex(Torch):
    """FlexAttention, compiled (on the CPU, in a dry run, not)."""

    name = "flex"

    def forms(self, torch, step):
        refuse(step.row, "sink", "custom_mask", "rope", "v_in_k", "fp8")
        if not step.equal:
            raise Cannot("takes requests of equal lengths")
        return [("flex_attention", lambda: self.work(torch, step))]

    def work(self, torch, step):
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        row = step.row
        ahead = step.kv_len[0] - step.q_len[0]
        cap, left, slopes = row["soft_cap"], row["left"], step.slopes

        def keep(batch, head, q_index, kv_index):
            kept = q_index + ahead >= kv_index
            return kept & (q_index + ahead - kv_index <= left) if left >= 0 else kept

        def soft_cap(score, batch, head, q_index, kv_index):
            return cap * torch.tanh(score / cap)

        def alibi(score, batch, head, q_index, kv_index):
            return score + slopes[head] * (kv_index - q_index - ahead)

        modify = soft_cap if cap > 0 else alibi if row["alibi"] else None
        mask = None
        if row["causal"] and max(step.q_len) > 1 or left >= 0:
            mask = create_block_mask(keep, None, None, step.q_len[0], step.kv_len[0], device=step.device)
        q, caches = self.batches(step)
        call = flex_attention
        if step.device == "cuda":
            torch._dynamo.reset()  # every row its own kernel, not one for many shapes
            torch._dynamo.config.error_on_recompile = True
            call = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        run = lambda i: call(q, *caches[i % step.copies], score_mod=modify, block_mask=mask, enable_gqa=step.group > 1)
        return Work(run, from_batch, step.copies)


class FlashInfer:
    """FlashInfer's wrappers; plan() is timed by itself."""

    name = "flashinfer"
    WORKSPACE_BYTES = 512 << 20

    def missing(self, facts):
        if importlib.util.find_spec("flashinfer") is None:
            return "not installed: python3 -m pip install flashinfer-python"
        import flashinfer

        facts["flashinfer"] = getattr(flashinfer, "__version__", "?")
        return None

    def forms(self, torch, step):
        row = step.row
        refuse(row, "sink", "custom_mask", "rope")
        if step.device == "cpu":
            raise Cannot("wants a GPU")
        if row["v_in_k"]:
            return [("BatchMLAPagedAttentionWrapper", lambda: self.mla(torch, step))]
        if step.page and max(step.q_len) == 1:
            forms = [("BatchDecode, tensor cores", lambda: self.decode(torch, step, True))]
            return forms + [("BatchDecode, CUDA cores", lambda: self.decode(torch, step, False))] + self.persistent_form(torch, step)
        kind = "BatchPrefill, pages" if step.page else "BatchPrefill, ragged"
        forms = [(f"{kind}, {backend}", lambda backend=backend: self.prefill(torch, step, backend)) for backend in ("auto", "fa2")]
        return forms + self.persistent_form(torch, step)

    def persistent_form(self, torch, step):
        """One persistent kernel for steps of every kind; it knows no windows and no ALiBi."""
        import flashinfer

        row = step.row
        if not step.page or not row["causal"] or row["left"] >= 0 or row["alibi"] or not hasattr(flashinfer, "BatchAttention"):
            return []
        return [("BatchAttention", lambda: self.persistent(torch, step))]

    def persistent(self, torch, step):
        import flashinfer

        row = step.row
        number = lambda x: torch.tensor(x, dtype=torch.int32, device=step.device)
        indptr, ids, _ = self.tables(torch, step)
        wrapper = flashinfer.BatchAttention(kv_layout="NHD")
        arguments = (number(step.qo_indptr), indptr, ids, number(step.kv_len), row["qo_heads"], row["kv_heads"], row["head_dim_qk"], row["head_dim_vo"], step.page)
        plan = lambda: wrapper.plan(*arguments, causal=True, sm_scale=step.scale, logits_soft_cap=row["soft_cap"] or None, q_data_type=step.type, kv_data_type=step.kv_type)
        plan()
        return Work(lambda i: wrapper.run(step.q, step.paged(i)), lambda out: out[0], step.copies, plan)

    def tables(self, torch, step):
        """indptr, ids and tokens of the last page, as int32."""
        counts = [len(ids) for ids in step.lists]
        number = lambda x: torch.tensor(x, dtype=torch.int32, device=step.device)
        indptr = torch.cat([number([0]), number(counts).cumsum(0).to(torch.int32)])
        last = [kv - (count - 1) * step.page for kv, count in zip(step.kv_len, counts)]
        return indptr, number([i for ids in step.lists for i in ids]), number(last)

    def features(self, step):
        row = step.row
        more = {"window_left": row["left"], "logits_soft_cap": row["soft_cap"] or None, "q_data_type": step.type}
        return {**more, "pos_encoding_mode": "ALIBI"} if row["alibi"] else more

    def workspace(self, torch, step):
        return torch.empty(self.WORKSPACE_BYTES, dtype=torch.uint8, device=step.device)

    def decode(self, torch, step, tensor_cores):
        import flashinfer

        row = step.row
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(self.workspace(torch, step), "NHD", use_tensor_cores=tensor_cores)
        tables = self.tables(torch, step)
        plan = lambda: wrapper.plan(*tables, row["qo_heads"], row["kv_heads"], row["head_dim_qk"], step.page, kv_data_type=step.kv_type, **self.features(step))
        plan()
        return Work(lambda i: wrapper.run(step.q, step.paged(i)), lambda out: out, step.copies, plan)

    def prefill(self, torch, step, backend):
        import flashinfer

        row = step.row
        heads = (row["qo_heads"], row["kv_heads"], row["head_dim_qk"])
        qo_indptr = torch.tensor(step.qo_indptr, dtype=torch.int32, device=step.device)
        more = {"causal": row["causal"], "kv_data_type": step.kv_type, **self.features(step)}
        if step.page:
            wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(self.workspace(torch, step), "NHD", backend=backend)
            tables = self.tables(torch, step)
            plan = lambda: wrapper.plan(qo_indptr, *tables, *heads, step.page, **more)
            plan()
            return Work(lambda i: wrapper.run(step.q, step.paged(i)), lambda out: out, step.copies, plan)
        kv_indptr = torch.tensor([0, *step.kv_len], device=step.device).cumsum(0).to(torch.int32)
        wrapper = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(self.workspace(torch, step), "NHD", backend=backend)
        wrapper.plan(qo_indptr, kv_indptr, *heads, **more)
        return Work(lambda i: wrapper.run(step.q, *step.caches[i % step.copies]), lambda out: out, step.copies)

    def mla(self, torch, step):
        import flashinfer

        row = step.row
        ckv, kpe = row["head_dim_vo"], row["head_dim_qk"] - row["head_dim_vo"]
        indptr, ids, _ = self.tables(torch, step)
        number = lambda x: torch.tensor(x, dtype=torch.int32, device=step.device)
        wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(self.workspace(torch, step), backend="auto")
        wrapper.plan(number(step.qo_indptr), indptr, ids, number(step.kv_len), row["qo_heads"], ckv, kpe, step.page, row["causal"], step.scale, step.type, step.kv_type)
        q_nope, q_pe = step.q[..., :ckv].contiguous(), step.q[..., ckv:].contiguous()

        def run(i):
            k = step.paged(i)[0].squeeze(2)
            return wrapper.run(q_nope, q_pe, k[..., :ckv], k[..., ckv:])

        return Work(run, lambda out: out, step.copies)


ENGINES = {e.name: e for e in (Sdpa("cudnn", "CUDNN_ATTENTION"), Sdpa("flash", "FLASH_ATTENTION"), Flex(), FlashInfer())}
