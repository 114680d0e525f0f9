"""kvloom.transformers on a GPU (KVLOOM_TEST_GPU=1 says that there is one), in bf16, against eager in fp32 on the CPU."""

import os

import pytest

import kvloom

if os.environ.get("KVLOOM_TEST_GPU") != "1":
    pytest.skip("no GPU is promised (KVLOOM_TEST_GPU=1)", allow_module_level=True)

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
os.environ["HF_HUB_OFFLINE"] = "1"  # nothing here comes from anywhere

import kvloom.transformers  # noqa: E402
import small_models  # noqa: E402
from kvloom.transformers import _paged  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

DEVICE = "cuda"


@pytest.fixture(params=small_models.NAMES)
def models(request):
    """The same bf16 numbers in fp32 on the CPU with eager, and on the GPU. All experts: one that is chosen or not is a jump."""
    changes = {"head_dim": 64, "hidden_size": 192} | ({"num_experts_per_tok": 4} if request.param == "gpt_oss" else {})
    exact = small_models.make(request.param, **changes).bfloat16().float()
    return exact, small_models.make(request.param, **changes).to(DEVICE, torch.bfloat16)


def prompts(*lengths):
    return [torch.randint(1, small_models.VOCABULARY, (n,), generator=torch.Generator().manual_seed(n)).tolist() for n in lengths]


def padded(lists):
    longest = max(map(len, lists))
    ids, mask = ([[fill] * (longest - len(x)) + (x if fill_only is None else [1] * len(x)) for x in lists] for fill, fill_only in ((0, None), (0, 1)))
    return torch.tensor(ids, device=DEVICE), torch.tensor(mask, device=DEVICE)


def error_of(exact, model, implementation):
    """||bf16 - fp32|| / ||fp32|| of the logits of a batch with padding."""
    ids, mask = padded(prompts(60, 33))
    seen = mask.bool().cpu()
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        wanted = exact(ids.cpu(), attention_mask=mask.cpu()).logits[seen]
        got = model(ids, attention_mask=mask).logits.float().cpu()[seen]
    return float((got - wanted).norm() / wanted.norm())


def check_tokens(exact, model, lists, made):
    """Each token is the best, or behind it by the noise of bf16: that of eager, in units of the logits' root mean square, times 8 (the difference
    of two, four standard deviations, and some). Tokens at random are some 100 times it behind."""
    noise = error_of(exact, model, "eager")
    assert noise < 0.08
    for x, y in zip(lists, made, strict=True):
        with torch.no_grad():
            logits = exact(torch.tensor([x + y])).logits[0, len(x) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(y)[:, None])[:, 0]
        behind = (logits.amax(1) - chosen) / logits.square().mean(1).sqrt()
        assert behind.max() < 8 * noise, (noise, behind)


def test_logits(models):
    exact, model = models
    ours, theirs = error_of(exact, model, "kvloom"), error_of(exact, model, "eager")
    assert ours < 1.1 * theirs and ours < 0.08, (ours, theirs)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generate(models, cache):
    exact, model = models
    model.set_attn_implementation("kvloom")
    lists = prompts(5, 37, 20, 1)
    ids, mask = padded(lists)
    options = {"disable_compile": True} if cache == "static" else {}
    made = model.generate(ids, attention_mask=mask, max_new_tokens=40, do_sample=False, cache_implementation=cache, **options)
    check_tokens(exact, model, lists, made[:, ids.shape[1] :].tolist())


PAGE = "page_size" if hasattr(transformers.ContinuousBatchingConfig(), "page_size") else "block_size"  # its name from 5.18 on, and before


@pytest.mark.parametrize("tokens", [24, 200], ids=["prompts in chunks", "whole prompts"])
def test_generate_batch(models, tokens, monkeypatch):
    exact, model = models
    ways = set()
    made_keys = _paged.GroupKeys.__init__

    def counted(self, *args):
        made_keys(self, *args)
        ways.add(self.way)

    monkeypatch.setattr(_paged.GroupKeys, "__init__", counted)
    kvloom.transformers.use_paged(model)
    lists = prompts(5, 37, 20, 1, 50)
    results = model.generate_batch(
        lists,
        generation_config=transformers.GenerationConfig(max_new_tokens=40, do_sample=False, eos_token_id=-1),
        continuous_batching_config=transformers.ContinuousBatchingConfig(**{PAGE: 16}, num_blocks=64, max_batch_tokens=tokens, use_cuda_graph=False),
    )
    assert [r.error for r in results.values()] == [None] * len(lists)
    check_tokens(exact, model, lists, [r.generated_tokens for r in results.values()])
    assert "new" in ways and ("slots" in ways) == bool(getattr(model.config, "sliding_window", None))


def test_cuda_graphs_are_refused():
    model = small_models.make("llama", head_dim=64, hidden_size=192).to(DEVICE, torch.bfloat16)
    kvloom.transformers.use_paged(model)
    config = transformers.ContinuousBatchingConfig(**{PAGE: 16}, num_blocks=64, max_batch_tokens=64, use_cuda_graph=True)
    generation = transformers.GenerationConfig(max_new_tokens=4, do_sample=False, eos_token_id=-1)
    results = model.generate_batch(prompts(5), generation_config=generation, continuous_batching_config=config, warmup=False)
    assert ["use_cuda_graph=False" in str(r.error) for r in results.values()] == [True]
