#!/usr/bin/env python3
"""A small file of steps out of a large one, for `kvloom bench --steps`.

    kvloom replay --trace conv.csv --heads 1 --kv-heads 1 --head-dim 16 --fixed-step-us 30000 --kv-pool-tokens 600000 --export all.jsonl
    python3 benchmarks/sample_steps.py all.jsonl sample.jsonl --count 60

Which requests meet in a step does not depend on heads and dims when steps are given their time, so a small model is enough to make them. Steps are
taken by kind (all requests decode, some, none): those of a kind in order of their keys, cut into parts of equal numbers of steps, the middle one of
each part. Its `weight` is how many steps its part has, so sums of weight x time stand for the whole trace. The same file gives the same sample.
"""
import argparse
import json
import sys

KINDS = ("decode", "mixed", "prefill")


def kind_of(step):
    decodes = sum(q == 1 for q in step["q_len"])
    return "decode" if decodes == len(step["q_len"]) else "mixed" if decodes else "prefill"


def shares(count, sizes):
    """How many of `count` each kind gets: its share by the root of its size, at least 4, never more than it has."""
    roots = {k: n**0.5 for k, n in sizes.items() if n}
    return {k: min(sizes[k], max(4, round(count * root / sum(roots.values())))) for k, root in roots.items()}


def sample(path, count):
    keys = {kind: [] for kind in KINDS}
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file):
            step = json.loads(line)
            keys[kind_of(step)].append((sum(step["kv_len"]), number))
    weights = {}
    for kind, n in shares(count, {kind: len(k) for kind, k in keys.items()}).items():
        order = sorted(keys[kind])
        edges = [i * len(order) // n for i in range(n + 1)]
        for begin, end in zip(edges, edges[1:]):
            weights[order[(begin + end) // 2][1]] = end - begin
    return weights


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("steps", help="what kvloom replay --export wrote")
    parser.add_argument("out", help="the sample")
    parser.add_argument("--count", type=int, default=60, help="steps to take, about")
    options = parser.parse_args()
    if options.count < 1:
        parser.error(f"--count: got {options.count}, wanted 1 or more")
    weights = sample(options.steps, options.count)
    if not weights:
        sys.exit(f"sample_steps.py: {options.steps}: got no step, wanted one or more")
    with open(options.steps, encoding="utf-8") as file, open(options.out, "w", encoding="utf-8") as out:
        for number, line in enumerate(file):
            if number in weights:
                step = json.loads(line)
                out.write(json.dumps({**step, "kind": kind_of(step), "weight": weights[number]}) + "\n")


if __name__ == "__main__":
    main()
