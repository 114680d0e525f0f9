#!/usr/bin/env python3
"""What a step costs the host through Python: microseconds until plan() and run() return, medians and spread over many steps.

    python3 benchmarks/python_host.py [--device cuda|cpu] [--steps 300] [--rounds 6] [--json benchmarks/results/h200_python_host.json]

The step: one token of each of 128 requests of Llama-3.1-8B (32 heads, 8 KV heads of 128, bf16, pages of 16; lengths 1 .. 4096, one longer every
step). A step's time ends when its last call returns; before the next one the GPU is waited for, outside of what is timed, so that no call waits for
room in the queue. All rows are taken in each of some rounds, every round on another core; figures are those of the round with the lowest median, since a
processor that others use, too, is slower for seconds; the medians of all rounds stand beside. Rows:

    plan             Engine.replan from NumPy's lengths and the host's page table      plan_on_device    replan_on_device; lengths and table on the GPU
    run              one layer, out= given; the step's first run starts the plan's copy
    step             plan and one run, by one clock                                    graph_step        plan, its copy, replay of a graph of 32 layers
    wrapper          kvloom.flashinfer: plan and run of BatchDecodeWithPagedKVCacheWrapper, indptr and last_page_len on the host
    eight_tensors    run with eight tensors (q, k, v, out, lse, pages, alibi_slopes, sink) of a plan without query tokens: nothing is launched, what
                     is left is Python's part and the checks below the C call, so it bounds Python's part from above; without the questions to the
                     driver that the C call asks about each pointer (check_pointers), the more closely. --c-bench names the program bench_engine
                     (./run build): then the C call is timed as well, on the CPU

Needs torch; on the CPU `step` and `run` hold the attention itself, which says nothing: only plan and eight_tensors are figures there.
"""
import argparse
import functools
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time

import numpy as np
import torch

import kvloom
import kvloom.flashinfer as flashinfer
from python_machine import machine

HEADS, KV_HEADS, DIM, PAGE, LAYERS = 32, 8, 128, 16, 32
LONGEST = 4096


def rank(values, share):
    return sorted(values)[int(share * (len(values) - 1) + 0.5)]


def figures(ns):
    us = [t / 1000 for t in ns]
    about = {"median_us": statistics.median(us), "p10_us": rank(us, 0.1), "p90_us": rank(us, 0.9), "p99_us": rank(us, 0.99), "steps": len(us)}
    return {name: round(x, 3) for name, x in about.items()}


def better(before, now):
    """The figures of a row (plan, run, ..) from the round whose last one, the sum where there is one, has the lower median; with the medians of all rounds."""
    if before is None or "why" in before or "why" in now:
        best, all_medians = now, {name: [x["median_us"]] for name, x in now.items() if name != "why"}
    else:
        last = list(now)[-1]
        best = now if now[last]["median_us"] < before[last]["median_us"] else before
        all_medians = {name: [*before[name]["medians_of_rounds_us"], now[name]["median_us"]] for name in now}
    return {name: x if name == "why" else {**x, "medians_of_rounds_us": all_medians[name]} for name, x in best.items()}


class Bench:
    def __init__(self, options):
        self.gpu, self.n = options.device == "cuda", options.requests
        self.warm_ups, self.steps = options.warm_ups, options.steps
        rng = np.random.default_rng(7)
        longest = LONGEST if self.gpu else 64  # a CPU would be busy with attention
        self.first = rng.integers(1, longest, self.n).astype(np.int32)
        self.most = longest + self.steps + self.warm_ups  # tokens
        entries = -(-self.most // PAGE)
        pages = self.n * entries if self.gpu else 4096
        ids = rng.permutation(pages).astype(np.int32)
        self.table = np.resize(ids, self.n * entries).reshape(self.n, entries)
        make = {"device": options.device, "dtype": torch.bfloat16}
        self.k, self.v = (torch.zeros(pages, PAGE, KV_HEADS, DIM, **make) for _ in "kv")
        self.q, self.out = torch.randn(self.n, HEADS, DIM, **make), torch.empty(self.n, HEADS, DIM, **make)
        self.table_there = torch.from_numpy(self.table).to(options.device)
        self.where = options.device

    def wait(self):
        if self.gpu:
            torch.cuda.synchronize()

    def timed(self, step, steps=None):
        """step(lengths) returns its marks; a list of durations for every gap between two."""
        gc.collect()
        gc.disable()
        rows = []
        for i in range(self.warm_ups + (steps or self.steps)):
            lengths = self.first + i
            self.wait()
            marks = step(lengths)
            if i >= self.warm_ups:
                rows.append([b - a for a, b in zip(marks, marks[1:])])
        gc.enable()
        self.wait()
        return list(zip(*rows))

    def engine(self, policy="automatic", check_pointers=True, **fields):
        spec = kvloom.Spec(num_qo_heads=HEADS, num_kv_heads=KV_HEADS, head_dim=DIM, dtype="bf16", page_size=PAGE, causal=True, **fields)
        options = {"backend": "cuda" if self.gpu else "cpu", "policy": policy, "check_pages": self.checked, "check_pointers": check_pointers}
        return kvloom.Engine(spec, max_requests=self.n, max_query_tokens=self.n, **options)

    checked = True

    def steps_of(self, engine, planned, plan):
        """Rows plan, run and step: `planned` a first plan, `plan(planned, lengths)` the next."""
        now, tensors = time.perf_counter_ns, (self.q, self.k, self.v)
        pages = {"pages": self.table_there} if self.gpu else {}

        def step(lengths):
            given = self.prepared(lengths)
            begin = now()
            plan(planned, given)
            middle = now()
            engine.run(planned, *tensors, out=self.out, **pages)
            return begin, middle, now()

        plans, runs = self.timed(step)
        return {"plan": figures(plans), "run": figures(runs), "step": figures([a + b for a, b in zip(plans, runs)])}

    def prepared(self, lengths):
        return lengths

    def host(self):
        rows = {}
        for self.checked in (True, False):
            engine = self.engine()
            table = self.table if self.checked or not self.gpu else self.table_there  # ids that nobody reads stay where they are
            planned = engine.plan(self.first, block_table=table)
            name = "plan_on_host" if self.checked else "plan_on_host, page ids unread"
            rows[name] = self.steps_of(engine, planned, lambda p, lengths, e=engine, t=table: e.replan(p, lengths, block_table=t))
        return rows

    def on_device(self):
        engine = self.engine("stream")
        there = torch.from_numpy(self.first).cuda()

        def prepared(lengths):
            there.copy_(torch.from_numpy(lengths))
            self.wait()
            return there

        self.prepared = prepared
        planned = engine.plan_on_device(there, block_table=self.table_there)
        rows = self.steps_of(engine, planned, lambda p, lengths: engine.replan_on_device(p, lengths, block_table=self.table_there))
        del self.prepared
        return {"plan_on_device": rows}

    def graph(self):
        engine = self.engine()
        planned = engine.plan(self.first + self.steps // 2, block_table=self.table)
        engine.run(planned, self.q, self.k, self.v, out=self.out, pages=self.table_there)
        self.wait()
        graph, stream, now = torch.cuda.CUDAGraph(), torch.cuda.Stream(), time.perf_counter_ns
        planned.upload(stream)
        with torch.cuda.graph(graph, stream=stream):
            for _ in range(LAYERS):
                engine.run(planned, self.q, self.k, self.v, out=self.out, pages=self.table_there)
        key = planned.graph_key
        with torch.cuda.stream(stream):

            def step(lengths):
                begin = now()
                engine.replan(planned, lengths, block_table=self.table)
                assert planned.graph_key == key
                planned.upload(stream)
                middle = now()
                graph.replay()
                return begin, middle, now()

            plans, replays = self.timed(step, self.steps // 4)
        return {f"graph of {LAYERS} layers": {"plan": figures(plans), "replay": figures(replays), "step": figures([a + b for a, b in zip(plans, replays)])}}

    def wrapper(self):
        workspace = torch.empty(64 << 20, dtype=torch.uint8, device=self.where)
        wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace)
        cache, now = (self.k, self.v), time.perf_counter_ns

        def step(lengths):
            counts = -(-lengths // PAGE)
            indptr = torch.from_numpy(np.cumsum([0, *counts], dtype=np.int32))
            last = torch.from_numpy((lengths - (counts - 1) * PAGE).astype(np.int32))
            ids = self.table_there.view(-1)[: int(indptr[-1])]
            self.wait()
            begin = now()
            wrapper.plan(indptr, ids, last, HEADS, KV_HEADS, DIM, PAGE, q_data_type=torch.bfloat16)
            middle = now()
            wrapper.run(self.q, cache, out=self.out)
            return begin, middle, now()

        plans, runs = self.timed(step)
        return {"flashinfer wrapper": {"plan": figures(plans), "run": figures(runs), "step": figures([a + b for a, b in zip(plans, runs)])}}

    def eight_tensors(self):
        self.checked, rows = True, {}
        for pointers in (True, False):
            engine = self.engine(alibi=True, sink=True, check_pointers=pointers)
            planned = engine.plan(np.zeros(self.n, np.int32), np.zeros(self.n + 1, np.int32), block_table=self.table)
            q, out = self.q[:0], self.out[:0]
            lse = torch.empty(0, HEADS, dtype=torch.float32, device=self.where)
            slopes, sink = (torch.zeros(HEADS, device=self.where) for _ in range(2))
            given = {"out": out, "lse": lse, "pages": self.table_there, "alibi_slopes": slopes, "sink": sink}
            now, run, k, v = time.perf_counter_ns, engine.run, self.k, self.v

            def step(lengths):
                begin = now()
                for _ in range(20):
                    run(planned, q, k, v, **given)
                return begin, now()

            rows["eight_tensors" if pointers else "eight_tensors, pointers unchecked"] = {"run": figures([t / 20 for t in self.timed(step)[0]])}
        return rows


def eight_tensors_from_c(program):
    """The row of bench_engine, a round."""
    options = ["--benchmark_filter=run_eight_tensors", "--benchmark_format=json", "--benchmark_repetitions=9", "--benchmark_min_time=0.03"]
    done = subprocess.run([program, *options], capture_output=True, text=True, check=True)
    ns = [1000 * row["real_time"] for row in json.loads(done.stdout)["benchmarks"] if row["run_type"] == "iteration"]
    return {"eight_tensors from C": {"run": figures(ns)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--warm-ups", type=int, default=40)
    parser.add_argument("--c-bench", help="the program bench_engine")
    parser.add_argument("--json", help="a file for the figures, written after every row")
    options = parser.parse_args()
    bench, gpu = Bench(options), options.device == "cuda"
    data = {
        "device": torch.cuda.get_device_name() if gpu else platform.processor() or platform.machine(),
        "machine": machine(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "kvloom": kvloom.__version__,
        "shape": {"requests": options.requests, "heads": HEADS, "kv_heads": KV_HEADS, "head_dim": DIM, "page_size": PAGE, "dtype": "bf16"},
        "rows": {},
    }
    failed, rows = 0, data["rows"]
    from_c = [functools.partial(eight_tensors_from_c, options.c_bench)] if options.c_bench else []
    cores = sorted(os.sched_getaffinity(0))
    for number in range(options.rounds):
        os.sched_setaffinity(0, {cores[(1 + number * 3) % len(cores)]})  # this thread alone
        for part in (*from_c, bench.eight_tensors, bench.host, *((bench.on_device,) if gpu else ()), bench.wrapper, *((bench.graph,) if gpu else ())):
            try:
                made = part()
            except Exception as error:  # the other rows stand
                made, failed = {getattr(part, "__name__", "from C"): {"why": f"{type(error).__name__}: {error}"[:500]}}, 1
            for name, row in made.items():
                rows[name] = better(rows.get(name), row)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(data, file, indent=1)
                    file.write("\n")
    for name, row in rows.items():
        for what, x in row.items():
            shown = x if what == "why" else f"{x['median_us']:8.2f} us   p10 {x['p10_us']:.2f}, p90 {x['p90_us']:.2f}; rounds {x['medians_of_rounds_us']}"
            print(f"{name:34} {what:7} {shown}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
