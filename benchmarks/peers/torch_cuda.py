#!/usr/bin/env python3
"""Other engines on a GPU, on the rows of `kvloom bench --backend cuda`: torch's SDPA (cuDNN, flash), FlexAttention, FlashInfer.

    python3 benchmarks/peers/torch_cuda.py --kvloom build/release/bin/kvloom --preset hopper --json peers.json
    build/release/bin/kvloom bench --backend cuda --preset hopper --peers peers.json --json benchmarks/results/NAME.json

Needs torch with CUDA; not part of CI. The rows are what `kvloom bench --list` says, so shapes stand in one place; the protocols are those
of `kvloom bench` (docs/PERFORMANCE.md): burst, and for compute-bound rows sustained; times by CUDA events, normal values, K and V rotated
through copies larger than any cache. Every peer gets its best case (contiguous K and V where it takes no pages, the faster of its forms),
and sampled rows of what it computes are compared with float64: a figure is for a right answer or there is none. A row that a peer does not
do says why. `--device cpu --shrink 128` runs all of this but the GPU's kernels, on small shapes.
"""
import argparse
import datetime
import json
import math
import platform
import statistics
import subprocess
import sys
import time

from peer_engines import ENGINES, Cannot
from peer_step import Step

WRONG = 1e-2  # relative error of the worst sampled row: outputs and weights in bf16 give 4e-3
SHORT_US = 400.0  # below this several runs are timed as one graph
GRAPH_US = 2000.0  # ... of at least this length


def rows_of(options):
    """The rows, as kvloom lists them."""
    if options.rows:
        with open(options.rows, encoding="utf-8") as file:
            return json.load(file)["rows"]
    command = [options.kvloom, "bench", "--backend", "cuda", "--list", "--preset", options.preset, "--json", "-"]
    if not options.odd_lengths:
        command.append("--even-lengths")
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["rows"]


def shrunk(row, by):
    """The same row with lengths divided by `by`: for dry runs. Its work is not the row's any more."""
    small = dict(row)
    page = max(row["page_size"], 1)
    small["shared_prefix"] = row["shared_prefix"] // by // page * page
    if "shared_with" in row:
        small["shared_tokens"] = [tokens // by // page * page for tokens in row["shared_tokens"]]
    shared = small.get("shared_tokens", [small["shared_prefix"]] * len(row["kv_len"]))
    small["kv_len"] = [max(s + 1, kv // by, 2) for s, kv in zip(shared, row["kv_len"])]
    small["q_len"] = [small["kv_len"][i] if q == row["kv_len"][i] else min(max(1, q // by), small["kv_len"][i]) for i, q in enumerate(row["q_len"])]
    return small


class Clock:
    """Marks in the current stream, and the microseconds between two of them."""

    def __init__(self, torch, device):
        self.torch, self.gpu = torch, device == "cuda"

    def mark(self):
        if not self.gpu:
            return time.perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def wait(self):
        if self.gpu:
            self.torch.cuda.synchronize()

    def us(self, begin, end):
        return 1e3 * begin.elapsed_time(end) if self.gpu else 1e6 * (end - begin)

    def each(self, launch, count):
        """Microseconds of `count` launches back to back, and of all of them."""
        marks = [self.mark()]
        for _ in range(count):
            launch()
            marks.append(self.mark())
        self.wait()
        return [self.us(a, b) for a, b in zip(marks, marks[1:])], self.us(marks[0], marks[-1])

    def graph(self, launch):
        """`launch` recorded, so that the host's part is not timed; None where it can't be."""
        if not self.gpu:
            return None
        try:
            graph = self.torch.cuda.CUDAGraph()
            with self.torch.cuda.graph(graph):
                launch()
            self.wait()
            return graph
        except RuntimeError:
            self.wait()
            return None


def rank(values, share):
    return sorted(values)[int(share * (len(values) - 1) + 0.5)]


def measured(clock, work, row, options):
    """One form of one engine on one row, in the protocols of `kvloom bench`."""
    for i in range(2):
        work.run(i)
    clock.wait()
    once = min(clock.each(lambda: work.run(0), 3)[0])
    runs = work.copies * max(2, math.ceil(GRAPH_US / (max(once, 1.0) * work.copies))) if once < SHORT_US else 1

    def launch():
        for i in range(runs):
            work.run(i)

    graph = clock.graph(launch)
    launch = graph.replay if graph else launch
    compute = row["bound"] == "compute"
    clock.wait()
    if compute:
        time.sleep(options.idle_s)
    for _ in range(options.warm_ups):
        launch()
    each, _ = clock.each(launch, options.repeat)
    each = [us / runs for us in each]
    median = statistics.median(each)
    plan = {"plan_us": plan_us(clock, work)} if work.plan else {}
    out = {"median_us": median, **plan, "p10_us": rank(each, 0.1), "p90_us": rank(each, 0.9), **rates(row, median), "runs": runs, "graph": graph is not None}
    if compute:
        launches = lambda seconds: max(8, int(1e6 * seconds / (median * runs)) + 1)
        for _ in range(launches(options.warm_s)):
            launch()
        count = launches(1.1 * options.measured_s)
        _, total = clock.each(launch, count)
        mean = total / (count * runs)
        out["sustained"] = {"mean_us": mean, "measured_runs": count * runs, **rates(row, mean)}
    return out


def plan_us(clock, work):
    """Of the host, until what it put into the stream is done; the device is idle."""
    times = []
    for _ in range(5):
        clock.wait()
        start = time.perf_counter()
        work.plan()
        clock.wait()
        times.append(1e6 * (time.perf_counter() - start))
    return statistics.median(times)


def rates(row, us):
    if "flop" not in row:
        return {}
    return {"tbps": 1e-6 * row["bytes"] / us, "tflops": 1e-6 * row["flop"] / us}


def result(torch, clock, engine, step, row, options):
    """The fastest right form of an engine, or why there is none."""
    head = {"shape": row["shape"], "peer": engine.name}
    best, words = None, []
    try:
        forms = engine.forms(torch, step)
    except Cannot as e:
        return {**head, "why": str(e)}
    for name, make in forms:
        try:
            with torch.no_grad():
                work = make()
                error = step.error_of(work.rows(work.run(0)))
                if not error <= WRONG:
                    words.append(f"{name}: wrong: relative error {error:.2g} of sampled rows, wanted {WRONG}")
                    continue
                figure = {**head, "form": name, "error": error, **measured(clock, work, row, options)}
        except Exception as e:  # an engine's own words, whatever they are: it does not do this row
            words.append(f"{name}: {type(e).__name__}: {str(e).strip().splitlines()[0][:200] if str(e).strip() else ''}")
            continue
        finally:
            work = None
        if best is None or figure["median_us"] < best["median_us"]:
            best = figure
    return best or {**head, "why": "; ".join(words)}


def facts_of(torch, options):
    facts = {"torch": torch.__version__, "python": platform.python_version(), "date": datetime.date.today().isoformat()}
    if options.device == "cuda":
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kvloom", default="build/release/bin/kvloom", help="the tool, which lists the rows")
    parser.add_argument("--rows", default="", help="the rows: what `kvloom bench --backend cuda --list --json FILE` wrote")
    parser.add_argument("--preset", default="hopper", help="presets of the tool, with commas between them")
    parser.add_argument("--odd-lengths", action="store_true", help="also the rows a token shorter and 37 tokens longer")
    parser.add_argument("--filter", default="", help="only rows whose name contains this")
    parser.add_argument("--peers", default=",".join(ENGINES), help=f"of {', '.join(ENGINES)}")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--shrink", type=int, default=1, help="divide lengths by this: a dry run, without rates")
    parser.add_argument("--idle-s", type=float, default=0.7)
    parser.add_argument("--warm-ups", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=12)
    parser.add_argument("--warm-s", type=float, default=0.15)
    parser.add_argument("--measured-s", type=float, default=0.25)
    parser.add_argument("--json", default="", help="write the results here, after every row")
    options = parser.parse_args()
    unknown = set(options.peers.split(",")) - set(ENGINES)
    if unknown:
        parser.error(f"--peers: got {', '.join(sorted(unknown))}, wanted some of {', '.join(ENGINES)}")
    try:
        import torch
    except ImportError:
        sys.exit("torch_cuda.py: torch is not installed: python3 -m pip install torch")
    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("torch_cuda.py: --device cuda: got no GPU that torch can use; --device cpu --shrink 128 is a dry run")
    rows = [row for row in rows_of(options) if options.filter in row["shape"]]
    if not rows:
        sys.exit(f"torch_cuda.py: --filter: got '{options.filter}', wanted part of a row's name")
    clock = Clock(torch, options.device)
    gpu = torch.cuda.get_device_name() if options.device == "cuda" else "none: a dry run"
    protocol = {"burst": {"idle_s": options.idle_s, "warm_ups": options.warm_ups, "median_of": options.repeat}, "sustained": {"warm_s": options.warm_s, "measured_s": options.measured_s}}
    out = {"gpu": gpu, "shrink": options.shrink, "machine": facts_of(torch, options), "protocol": protocol, "not_installed": {}, "rows": []}
    engines = []
    for name in options.peers.split(","):
        engine = ENGINES[name]
        missing = engine.missing(out["machine"])
        if missing:
            out["not_installed"][name] = missing
            print(f"{name}: {missing}", flush=True)
        else:
            engines.append(engine)
    for row in rows:
        if options.shrink > 1:
            row = shrunk(row, options.shrink)
            del row["flop"], row["bytes"]
        step = Step(torch, row, options.device)
        for engine in engines:
            r = result(torch, clock, engine, step, row, options)
            if "flop" in row and "why" not in r:
                r["flop"] = row["flop"]
            out["rows"].append(r)
            if "why" in r:
                print(f"{row['shape']:<46} {engine.name:<11} -: {r['why']}", flush=True)
            else:
                sustained = r.get("sustained", {}).get("tflops")
                print(f"{row['shape']:<46} {engine.name:<11} {r['median_us']:>10.1f} us {r.get('tflops', 0):>7.1f} TFLOP/s {r.get('tbps', 0):>6.3f} TB/s" + (f"  sustained {sustained:.1f}" if sustained else "") + f"  error {r['error']:.1e}  {r['form']}", flush=True)
            if options.json:
                with open(options.json, "w", encoding="utf-8") as file:
                    json.dump(out, file, indent=2)
                    file.write("\n")
        step = None


if __name__ == "__main__":
    main()
