"""kvloom.flashinfer: multi-head latent attention, against float64."""

import kvloom
import kvloom.flashinfer as flashinfer
import numpy as np
import pytest
from flashinfer_support import LN2, PAGE, attention
from reference import close

CKV, KPE, HEADS = 64, 16, 6
Q_LEN, KV_LEN = [1, 3, 0, 2], [9, 7, 6, 0]
QO = np.cumsum([0, *Q_LEN])
SCALE = 0.2


class Latent:
    """A pool, its tables, queries; `kept`: "together" in one tensor, or two "apart"."""

    def __init__(self, rng, fw, kept="together", dtype="float32", kv_len=KV_LEN, q_len=Q_LEN, kpe=KPE, q_dtype=None):
        self.fw, self.kv_len, self.q_len, self.kpe_dim = fw, kv_len, q_len, kpe
        counts = [-(-n // PAGE) for n in kv_len]
        pages = sum(counts) + 3
        ids, lists = rng.permutation(pages)[: sum(counts)], np.cumsum([0, *counts])
        self.ids = [ids[a:b] for a, b in zip(lists, lists[1:])]
        pool = fw.tensor(rng.standard_normal((pages, PAGE, CKV + kpe)), dtype)
        self.host_pool = fw.host(pool)
        if kept == "together":
            self.ckv, self.kpe = pool[..., :CKV], pool[..., CKV:]
        else:
            self.ckv, self.kpe = (fw.tensor(self.host_pool[..., s], dtype) for s in (slice(0, CKV), slice(CKV, None)))
        self.tables = [fw.tensor(x, "int32") for x in (np.cumsum([0, *q_len]), lists, ids, kv_len)]
        q = rng.standard_normal((sum(q_len), HEADS, CKV + kpe))
        self.q_nope, self.q_pe = (fw.tensor(x, q_dtype or dtype) for x in (q[..., :CKV], q[..., CKV:]))

    def plan(self, wrapper, causal, q_dtype="float32", kv_dtype="float32"):
        wrapper.plan(*self.tables, HEADS, CKV, self.kpe_dim, PAGE, causal, SCALE, self.fw.dtype(q_dtype), self.fw.dtype(kv_dtype))

    def run(self, wrapper, **options):
        return wrapper.run(self.q_nope, self.q_pe, self.ckv, self.kpe, **options)

    def wanted(self, causal, pool=None):
        pool = self.host_pool if pool is None else pool
        q = np.concatenate([self.fw.host(self.q_nope), self.fw.host(self.q_pe)], -1)
        begins, parts = np.cumsum([0, *self.q_len]), []
        for r, n in enumerate(self.kv_len):
            k = pool[self.ids[r]].reshape(-1, 1, pool.shape[-1])[:n]
            parts.append(attention(q[begins[r] : begins[r + 1]], k, k[..., :CKV], causal=causal, sm_scale=SCALE))
        return [np.concatenate(x) for x in zip(*parts)]


@pytest.mark.parametrize("kept", ["together", "apart"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kpe", [KPE, 0])
def test_latent(rng, fw, workspace, kept, causal, kpe):
    latent = Latent(rng, fw, kept, kpe=kpe)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, backend="fa3")
    latent.plan(wrapper, causal)
    o, lse = latent.run(wrapper, return_lse=True)
    expected = latent.wanted(causal)
    close(fw.host(o), expected[0])
    close(fw.host(lse), expected[1])
    close(fw.host(latent.run(wrapper, return_lse=True, return_lse_base_on_e=True)[1]), expected[1] * LN2)
    out, other = fw.empty((6, HEADS, CKV)), fw.empty((6, HEADS))
    assert latent.run(wrapper, out=out, lse=other, return_lse=True)[0] is out
    close(fw.host(other), expected[1])


def test_slices_are_read_in_place(rng, fw):
    """Two slices of one tensor are one head dim of it, nothing is copied; tensors that happen to lie side by side are not."""
    from kvloom.flashinfer._mla_tensors import adjacent

    latent, apart = Latent(rng, fw, "together"), Latent(rng, fw, "apart")
    both = adjacent(latent.ckv, latent.kpe)
    assert np.array_equal(fw.host(both), latent.host_pool)
    latent.kpe[0, 0, 0] = 99.0
    assert float(both[0, 0, CKV]) == 99.0
    assert adjacent(latent.kpe, latent.ckv) is None and adjacent(apart.ckv, apart.kpe) is None
    rows = fw.tensor(np.arange(16).reshape(2, 8))
    assert adjacent(rows[:, :2], rows[:, 4:6]) is None  # a gap
    assert adjacent(rows[:, :4], fw.tensor(np.arange(16).reshape(2, 8))[:, 4:]) is None
    if fw.name == "torch":  # one allocation, two storages
        left, right = (
            fw.torch.frombuffer((memoryview(rows.numpy()).cast("B"))[i * 32 : i * 32 + 32], dtype=fw.torch.float32).reshape(1, 8) for i in range(2)
        )
        assert left.data_ptr() + 32 == right.data_ptr() and adjacent(left, right) is None


def test_graph_mode(rng, fw, workspace):
    """The indices' buffer is longer than a step's, and holds anything behind them."""
    buffers = {"qo_indptr": 5, "kv_indptr": 5, "kv_indices": 32, "kv_len_arr": 4}
    buffers = {name: fw.tensor(np.full(n, -7), "int32") for name, n in buffers.items()}
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, use_cuda_graph=True, **buffers)
    assert wrapper.is_cuda_graph_enabled
    for kept, kv_len in (("together", [9, 7, 6, 0]), ("apart", [3, 30, 1, 2])):
        latent = Latent(rng, fw, kept, kv_len=kv_len, q_len=[1, 1, 1, 1])
        latent.plan(wrapper, False)
        assert wrapper._kv_indices_buf is buffers["kv_indices"]
        close(fw.host(latent.run(wrapper)), latent.wanted(False)[0])
    # As SGLang's fast plan: the buffers are written by the caller.
    latent = Latent(rng, fw, "together", kv_len=[5, 5, 9, 1], q_len=[1, 1, 1, 1])
    buffers["kv_indices"][: len(latent.tables[2])] = latent.tables[2]
    ws = (wrapper._float_workspace_buffer, wrapper._int_workspace_buffer, wrapper._pin_memory_int_workspace_buffer)
    wrapper._plan_info = wrapper._cached_module.plan(*ws, latent.tables[0], latent.tables[1], latent.tables[3], HEADS, CKV, False)
    close(fw.host(latent.run(wrapper)), latent.wanted(False)[0])
    small = Latent(rng, fw, kv_len=[3], q_len=[1])
    with pytest.raises(ValueError, match="`kv_len_arr`: expected 4 requests, fixed in CUDA-graph mode, got 1"):
        small.plan(wrapper, False)


def test_indices_that_alias_the_buffer(rng, fw, workspace):
    """vLLM gives the wrapper's own buffer, all of it, as kv_indices."""
    latent = Latent(rng, fw, q_len=[1] * 4)
    kv_indices = fw.tensor(np.zeros(32), "int32")
    buffers = {
        "qo_indptr": fw.tensor(np.zeros(5), "int32"),
        "kv_indptr": fw.tensor(np.zeros(5), "int32"),
        "kv_len_arr": fw.tensor(np.zeros(4), "int32"),
    }
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace, use_cuda_graph=True, kv_indices=kv_indices, **buffers)
    kv_indices[: len(latent.tables[2])] = latent.tables[2]
    latent.tables[2] = kv_indices
    latent.plan(wrapper, False)
    close(fw.host(latent.run(wrapper)), latent.wanted(False)[0])


@pytest.mark.parametrize("scales", [(0.5, 0.5), (0.5, 2.0)])
@pytest.mark.parametrize("kept", ["together", "apart"])
def test_fp8_cache(rng, fw, workspace, kept, scales):
    latent = Latent(rng, fw, kept, "float8_e4m3fn", q_dtype="float16")
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace)
    latent.plan(wrapper, True, "float16", "float8_e4m3fn")
    pool = latent.host_pool * np.repeat(scales, [CKV, KPE])
    o, lse = latent.run(wrapper, ckv_scale=scales[0], kpe_scale=scales[1], return_lse=True)
    expected = latent.wanted(True, pool)
    close(fw.host(o), expected[0], "f16")
    finite = np.isfinite(expected[1])
    assert np.abs(fw.host(lse)[finite] - expected[1][finite]).max() < 5e-3  # q_pe times 4 is rounded once more


def test_fp8_cache_with_a_scale_a_block(rng, fw, workspace):
    latent = Latent(rng, fw, "apart", "float8_e4m3fn", q_dtype="float16")
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace)
    latent.plan(wrapper, True, "float16", "float8_e4m3fn")
    blocks = rng.random((*latent.host_pool.shape[:2], 4)) + 0.5
    pool = np.concatenate([latent.host_pool[..., :CKV] * np.repeat(blocks, CKV // 4, -1), latent.host_pool[..., CKV:] * 2.0], -1)
    o = latent.run(wrapper, ckv_scale_arr=fw.tensor(blocks), kpe_scale=2.0)
    close(fw.host(o), latent.wanted(True, pool)[0], "bf16")  # keys and values are rounded to 16 bits
    with pytest.raises(ValueError, match="Exactly one of ckv_scale or ckv_scale_arr is expected for an fp8 cache, got none"):
        latent.run(wrapper)
    with pytest.raises(ValueError, match=r"Invalid shape of ckv_scale_arr: expected \[pages, page_size, 1\], .* got \[\d+, \d+, 3\]"):
        latent.run(wrapper, ckv_scale_arr=fw.tensor(blocks[..., :3]), kpe_scale=2.0)
    with pytest.raises(ValueError, match="`kpe_scale`: expected a number for an fp8 cache"):
        latent.run(wrapper, ckv_scale=1.0)


def test_bad_input(rng, fw, workspace):
    latent = Latent(rng, fw)
    wrapper = flashinfer.mla.BatchMLAPagedAttentionWrapper(workspace)
    with pytest.raises(RuntimeError, match=r"expected a plan\(\)"):
        latent.run(wrapper)
    tables = list(latent.tables)
    latent.tables[3] = fw.tensor([13, 7, 6, 0], "int32")
    with pytest.raises(ValueError, match="`kv_len_arr`: request 0: expected 0 .. 12, its pages' tokens, got 13"):
        latent.plan(wrapper, False)
    latent.tables = tables
    latent.plan(wrapper, False)
    with pytest.raises(ValueError, match="`q_pe`: expected 3 dimensions, the last one 16, as plan says"):
        wrapper.run(latent.q_nope, latent.q_nope, latent.ckv, latent.kpe)
    with pytest.raises(ValueError, match=r"`q_pe`: expected \[.*\], beside `q_nope` \[.*\], got \["):
        wrapper.run(latent.q_nope, latent.q_pe[:, 1:], latent.ckv, latent.kpe)
    with pytest.raises(ValueError, match=r"`kpe_cache`: expected \[.*\], beside `ckv_cache` \[.*\], got \["):  # ids are checked against ckv_cache's pages alone
        wrapper.run(latent.q_nope, latent.q_pe, latent.ckv, latent.kpe[:1])
    tensors = {"q_nope": latent.q_nope, "q_pe": latent.q_pe, "ckv_cache": latent.ckv, "kpe_cache": latent.kpe}
    for name, x in tensors.items():
        with pytest.raises(ValueError, match=f"`{name}.dtype`: expected f32, as plan's {'q' if name[0] == 'q' else 'kv'}_data_type says, got f16"):
            wrapper.run(**{**tensors, name: fw.tensor(fw.host(x), "float16")})
    with pytest.raises(ValueError, match="`ckv_scale`: expected None, the caches are no fp8"):
        latent.run(wrapper, ckv_scale=1.0)
    with pytest.raises(kvloom.UnsupportedError, match="`o_scale`, `kv_len`, `page_table`"):
        latent.run(wrapper, o_scale=1.0)
    apart = Latent(rng, fw, "apart")
    apart.tables[2] = apart.tables[2] + 99
    apart.plan(wrapper, False)
    with pytest.raises(ValueError, match="`kv_indices`: expected 0 .. "):
        apart.run(wrapper)
    with pytest.raises(TypeError, match="expected 9 arguments"):
        wrapper._cached_module.plan(1)
