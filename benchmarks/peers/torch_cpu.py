#!/usr/bin/env python3
"""torch's scaled_dot_product_attention on the CPU, on the shapes of `kvloom bench`, with the same rows and keys.

    python3 benchmarks/peers/torch_cpu.py --kvloom build/release/bin/kvloom --json benchmarks/results/cpu_peers.json

Needs torch (PyPI); not part of CI. kvloom and torch alternate, round by round, on the same cores and threads, so that a noisy machine
treats both alike; medians of all rounds are compared. torch is given its best case: contiguous [batch, heads, tokens, dim] tensors for
every request (no pages to gather, no ragged lengths), and KV heads already expanded only where its enable_gqa is not faster.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time


def rows():
    """(shape name as `kvloom bench` spells it, batch, q_len, kv_len, q heads, kv heads, causal, dtype)."""
    for dtype in ("f32", "bf16"):
        for heads in (8, 32):
            for causal in (True, False):
                yield (f"prefill-{'causal' if causal else 'full'}-1x2048-{heads}/8-d128-{dtype}", 1, 2048, 2048, heads, 8, causal, dtype)
        yield (f"decode-64x4096-32/8-d128-{dtype}-page16-hnd", 64, 1, 4096, 32, 8, False, dtype)


def torch_median_us(torch, row, repeats):
    _, batch, q_len, kv_len, heads, kv_heads, causal, dtype = row
    kind = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype]
    q = torch.randn(batch, heads, q_len, 128, dtype=kind)
    k = torch.randn(batch, kv_heads, kv_len, 128, dtype=kind)
    v = torch.randn(batch, kv_heads, kv_len, 128, dtype=kind)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    forms = [lambda: sdpa(q, k, v, is_causal=causal, enable_gqa=heads != kv_heads)]
    if heads != kv_heads and q_len > 1:
        group = heads // kv_heads
        ke, ve = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        forms.append(lambda: sdpa(q, ke, ve, is_causal=causal))
    best = float("inf")
    with torch.inference_mode():
        for form in forms:
            form()
            times = []
            for _ in range(repeats):
                begin = time.perf_counter()
                form()
                times.append((time.perf_counter() - begin) * 1e6)
            best = min(best, statistics.median(times))
    return best


def kvloom_median_us(tool, name, threads, repeats):
    command = [tool, "bench", "--backend", "cpu", "--threads", str(threads), "--repeat", str(repeats), "--filter", name, "--json", "-"]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (row,) = [row for row in result["rows"] if row["shape"] == name]
    return row["median_us"], result["machine"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvloom", default="build/release/bin/kvloom", help="the tool")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="alternations of kvloom and torch")
    parser.add_argument("--repeat", type=int, default=5, help="timed calls a round")
    parser.add_argument("--filter", default="", help="only rows whose name contains this")
    parser.add_argument("--json", default="", help="write the results here")
    options = parser.parse_args()
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # large pages, as our tensors have
    try:
        import torch
    except ImportError:
        sys.exit("torch_cpu.py: torch is not installed: python3 -m pip install torch")
    out, machine = [], {}
    for threads in options.threads:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
        for row in rows():
            if options.filter not in row[0]:
                continue
            ours, theirs = [], []
            for _ in range(options.rounds):
                theirs.append(torch_median_us(torch, row, options.repeat))
                median, machine = kvloom_median_us(options.kvloom, row[0], threads, options.repeat)
                ours.append(median)
            ours_us, theirs_us = statistics.median(ours), statistics.median(theirs)
            out.append({"shape": row[0], "threads": threads, "kvloom_us": ours_us, "torch_us": theirs_us, "speedup": theirs_us / ours_us})
            print(f"{row[0]:<44} threads {threads}  kvloom {ours_us:12.0f} us  torch {theirs_us:12.0f} us  {theirs_us / ours_us:5.2f}x", flush=True)
    if options.json:
        facts = {"torch": torch.__version__, "python": platform.python_version(), **machine}
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"machine": facts, "rounds": options.rounds, "repeat": options.repeat, "rows": out}, file, indent=2)
            file.write("\n")


if __name__ == "__main__":
    main()
