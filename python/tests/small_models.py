"""Small models of transformers with random weights, one of each kind of attention."""

import torch
import transformers

VOCABULARY = 200
WINDOW = 16
NAMES = ("llama", "mistral", "gemma2", "qwen2", "qwen3", "gpt_oss")


def randomised(model):
    """Weights large enough that attention matters."""
    with torch.no_grad():
        for part, weight in model.named_parameters():
            if part.endswith("sinks"):
                weight.normal_()
            elif weight.dim() > 1:
                weight.normal_(std=1.5 * weight.shape[-1] ** -0.5)
    return model.eval()


def make(name: str, seed: int = 1, **changes):
    """llama: GQA with three queries a head; mistral: sliding windows in every layer; gemma2: soft cap, every other layer a sliding window; qwen2:
    biases, windows in its upper layers;
    qwen3: norms of Q and K; gpt_oss: sinks and windows."""
    common = {
        "vocab_size": VOCABULARY,
        "hidden_size": 96,
        "intermediate_size": 128,
        "num_hidden_layers": 4,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "pad_token_id": 0,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": False,  # tied and random, a model repeats its last token
    } | changes
    config = {
        "llama": lambda: transformers.LlamaConfig(**common),
        "mistral": lambda: transformers.MistralConfig(**common, sliding_window=WINDOW),
        "gemma2": lambda: transformers.Gemma2Config(**common, sliding_window=WINDOW, attn_logit_softcapping=5.0, query_pre_attn_scalar=16),
        "qwen2": lambda: transformers.Qwen2Config(**common, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
        "qwen3": lambda: transformers.Qwen3Config(**common),
        "gpt_oss": lambda: transformers.GptOssConfig(**{"num_experts_per_tok": 2} | common, sliding_window=WINDOW, num_local_experts=4),
    }[name]()
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32)
    return randomised(model)
