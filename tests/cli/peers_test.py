#!/usr/bin/env python3
"""benchmarks/peers on the CPU, where torch is installed (exit status 77: it is not): every row is made and compared with float64 on small
shapes, and a wrong answer is no figure.

    tests/cli/peers_test.py KVLOOM
"""
import argparse
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))
SKIP = 77


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("kvloom")
    options = parser.parse_args()
    try:
        import torch
    except ImportError:
        print("torch is not installed: not run")
        return SKIP
    import torch_cuda
    from peer_engines import ENGINES, Work, from_batch
    from peer_step import Step

    command = [options.kvloom, "bench", "--backend", "cuda", "--list", "--preset", "serving,hopper,levels", "--json", "-"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)["rows"]
    by_name = {row["shape"]: torch_cuda.shrunk(row, 256) for row in rows}
    tree = next(row for row in rows if "tree2048of1+1024of4+512of16" in row["shape"])
    lists = Step(torch, torch_cuda.shrunk(tree, 16), "cpu").lists
    assert lists[23][:14] == lists[7][:14] and lists[7][:12] == lists[3][:12] and lists[3][:8] == lists[0][:8] and lists[7][12] != lists[3][12]
    quick = argparse.Namespace(idle_s=0, warm_ups=0, repeat=1, warm_s=0, measured_s=0, device="cpu")
    clock = torch_cuda.Clock(torch, "cpu")

    def figure(name, engine):
        row = by_name[name]
        return torch_cuda.result(torch, clock, engine, Step(torch, row, "cpu"), row, quick)

    wanted = {  # row: engines that do it here
        "decode-128x8229-page16": {"cudnn", "flash", "flex"},
        "decode-shared8192-64x8485-page16": {"cudnn", "flash", "flex"},
        "prefill-causal-4x4095-ragged": {"cudnn", "flash", "flex"},
        "prefill-causal-1x16421-page8": {"cudnn", "flash", "flex"},
        "prefill-causal-1x16384-ragged-softcap": {"flex"},
        "prefill-causal-1x16384-ragged-alibi": {"flex"},
        "prefill-causal-4x4096-ragged-window1024": {"flex"},
        "prefill-causal-1x512at131072-ragged-8/1": {"flex"},
        "prefill-causal-zipf-16x1024-page16": set(),
        "decode-mla-128x8192-page64-128/1": set(),
        "decode-128x8192-page16-e4m3": set(),
    }
    for name, engines in wanted.items():
        for engine in (e for e in ENGINES.values() if e.name != "flashinfer"):
            r = figure(name, engine)
            assert ("why" not in r) == (engine.name in engines), r
            assert "why" in r or r["error"] < 5e-3, r
            assert ("sustained" in r) == ("why" not in r and by_name[name]["bound"] == "compute"), r

    class Wrong:  # the mask left out
        name = "wrong"

        def forms(self, torch, step):
            q, caches = ENGINES["flash"].batches(step, True)
            run = lambda i: torch.nn.functional.scaled_dot_product_attention(q, *caches[0])
            return [("no mask", lambda: Work(run, from_batch, 1))]

    r = figure("prefill-causal-4x4095-ragged", Wrong())
    assert "wrong: relative error" in r["why"], r
    print(f"{len(wanted)} rows, and a wrong answer")
    return 0


if __name__ == "__main__":
    sys.exit(main())
