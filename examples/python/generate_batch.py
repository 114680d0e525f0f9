"""Continuous batching of transformers on kvloom: generate_batch after kvloom.transformers.use_paged(model) beside transformers' own implementations, on a
model with random weights. Prints tokens a second, and writes JSON with --json FILE. On a GPU if there is one; nothing is downloaded.

    python generate_batch.py [--prompts 32,128] [--new 64] [--implementations kvloom,sdpa] [--json FILE]
"""

import argparse
import importlib.util
import json
import os
import platform
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import kvloom
import kvloom.transformers

ON_GPU = torch.cuda.is_available()
started = time.perf_counter()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", default="32,128" if ON_GPU else "8,32", help="numbers of prompts, one run each")
    parser.add_argument("--prompt-tokens", type=int, default=512 if ON_GPU else 256, help="of the longest prompt; the shortest has an eighth")
    parser.add_argument("--new", type=int, default=64 if ON_GPU else 24, help="tokens to make for each prompt")
    parser.add_argument("--implementations", default=",".join(["kvloom", "sdpa", *own_flash(), "eager"]), help="kvloom, and names of transformers' own")
    parser.add_argument("--json", help="a file for the figures")
    parser.add_argument("--time-limit", type=float, default=75, help="seconds after which no further run begins")
    return parser.parse_args()


def own_flash():
    """flash-attn, where it is installed and runs."""
    return ["flash_attention_2"] if ON_GPU and importlib.util.find_spec("flash_attn") else []


def make_model():
    """A Llama of 1.2 billion parameters on a GPU, a tiny one on a CPU."""
    sizes = (2048, 8192, 16, 32, 8, 32000) if ON_GPU else (128, 256, 2, 4, 2, 500)
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size")
    config = transformers.LlamaConfig(**dict(zip(names, sizes)), max_position_embeddings=4096, bos_token_id=None, eos_token_id=None, pad_token_id=0)
    torch.manual_seed(7)
    with torch.device("cuda" if ON_GPU else "cpu"):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=torch.bfloat16 if ON_GPU else torch.float32)
    if not ON_GPU:  # larger weights, so that a small model says more than one thing
        with torch.no_grad():
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(std=0.15)
    return model.eval()


def make_prompts(count, longest, vocabulary):
    make = torch.Generator().manual_seed(count)
    lengths = torch.randint(max(longest // 8, 1), longest + 1, (count,), generator=make).tolist()
    return [torch.randint(1, vocabulary, (n,), generator=make).tolist() for n in lengths]


def finish(manager, prompts, new):
    """All prompts through a manager. Returns seconds, and the tokens of each."""
    begun = time.perf_counter()
    names = manager.add_requests(prompts, max_new_tokens=new)
    results = {}
    while len(results) < len(names):
        result = manager.get_result(timeout=1)
        if result is None and not manager.is_running():
            raise RuntimeError("the generation thread ended")
        if result is not None and result.is_finished():
            if result.error:
                raise RuntimeError(result.error)
            results[result.request_id] = result.generated_tokens
    return time.perf_counter() - begun, [results[name] for name in names]


def choose(model, implementation):
    if implementation == "kvloom":
        kvloom.transformers.use_paged(model)
    else:  # transformers has "paged|sdpa" until 5.18, then "sdpa"; "paged|eager" throughout
        paged = "paged|" + implementation
        model.set_attn_implementation(paged if paged in transformers.AttentionInterface() else implementation)


def measure(model, implementation, prompts, new):
    choose(model, implementation)
    block = 256 if ON_GPU else 16
    blocks = sum(-(-(len(p) + new) // block) for p in prompts) + 8
    config = transformers.ContinuousBatchingConfig(num_blocks=blocks, max_batch_tokens=4096 if ON_GPU else 256)
    setattr(config, "page_size" if hasattr(config, "page_size") else "block_size", block)  # its name from transformers 5.18 on, and before
    if implementation == "kvloom":
        config.use_cuda_graph = False
    elif hasattr(config, "auto_switch_to_flash"):
        config.auto_switch_to_flash = False  # what runs is what the row says
    generation = transformers.GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1)
    with model.continuous_batching_context_manager(generation_config=generation, continuous_batching_config=config) as manager:
        finish(manager, [list(reversed(p)) for p in prompts], 4)  # kernels and buffers; other tokens, so that no block is found again
        return finish(manager, prompts, new)


def main():
    options = arguments()
    model = make_model()
    where = torch.cuda.get_device_name() if ON_GPU else f"{platform.machine()} CPU, {torch.get_num_threads()} threads"
    size = sum(p.numel() for p in model.parameters())
    print(
        f"{where}; torch {torch.__version__}, transformers {transformers.__version__}, kvloom {kvloom.__version__}"
        f"; {size / 1e6:.0f} M parameters, {model.dtype}"
    )
    rows, tokens = [], {}
    for count in (int(n) for n in options.prompts.split(",")):
        prompts = make_prompts(count, options.prompt_tokens, model.config.vocab_size)
        for implementation in options.implementations.split(","):
            row = {
                "implementation": "paged|" + implementation,
                "prompts": count,
                "prompt_tokens": sum(map(len, prompts)),
                "new_tokens": count * options.new,
            }
            rows.append(row)
            if time.perf_counter() - started > options.time_limit:
                row["left_out"] = f"{options.time_limit:.0f} s were over"
                continue
            try:
                seconds, made = measure(model, implementation, prompts, options.new)
            except Exception as error:  # another implementation's trouble is its own: the rest goes on
                row["error"] = f"{type(error).__name__}: {error}"[:500]
                continue
            finally:
                torch.cuda.empty_cache()
            tokens[count, implementation] = made
            row["seconds"], row["tokens_per_second"] = round(seconds, 4), round(count * options.new / seconds, 1)
            if (count, "kvloom") in tokens:
                row["same_as_kvloom"] = sum(a == b for a, b in zip(made, tokens[count, "kvloom"]))
    print(f"{'implementation':26} {'prompts':>7} {'seconds':>9} {'tokens/s':>10}  prompts continued as kvloom does")
    for row in rows:
        said = row.get("error") or row.get("left_out")
        tail = said[:100] if said else f"{row['seconds']:9.3f} {row['tokens_per_second']:10.1f}  {row.get('same_as_kvloom', '-')} of {row['prompts']}"
        print(f"{row['implementation']:26} {row['prompts']:7} {tail}")
    if options.json:
        about = {
            "device": where,
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "kvloom": kvloom.__version__,
            "parameters": size,
        }
        about |= {"dtype": str(model.dtype), "new": options.new, "seconds": round(time.perf_counter() - started, 1)}
        with open(options.json, "w") as file:
            json.dump({**about, "rows": rows}, file, indent=1)
    # In fp32 every implementation says the same; in bf16 near ties fall as they are rounded.
    different = [r for r in rows if model.dtype == torch.float32 and r.get("same_as_kvloom", r["prompts"]) != r["prompts"]]
    failed = [r for r in rows if r["implementation"] == "paged|kvloom" and "error" in r]
    for row in different + failed:
        print("wrong:", row, file=sys.stderr)
    return 1 if different or failed else 0


if __name__ == "__main__":
    sys.exit(main())
