#!/usr/bin/env python3
"""What bounds each row of a benchmark preset, by hardware counters.

    tools/gpu_counters.py --kvloom build/release/bin/kvloom --preset hopper --json counters.json

Runs every row alone under Nsight Compute (`ncu` on PATH), counts one launch of its kernel (attention, or the planner on the device) that is not its first, and writes for each row the
share of what each part of the chip does at most. Percent of the peak while the SMs are active (tensor, exp, fma, issue: what an SM's part could do) or of the
whole launch (l2, dram); `active` is the share of the launch in which SMs have work at all, on average: what is missing is its tail. ncu fixes the clock at the
chip's base, so times here are longer than a benchmark's and bytes weigh less: shares tell what bounds, `kvloom bench` how long it takes.
"""
import argparse
import csv
import io
import json
import subprocess
import sys

COUNTERS = {
    "us": ("gpu__time_duration.sum", 1e-3),
    "sm_mhz": ("sm__cycles_elapsed.avg.per_second", 1e-6),
    "active": ("sm__cycles_active.avg", 1.0),
    "elapsed": ("sm__cycles_elapsed.max", 1.0),
    "tensor": ("sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active", 1.0),
    "tensor_cycles": ("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active", 1.0),
    "exp": ("sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active", 1.0),
    "fma": ("sm__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active", 1.0),
    "alu": ("sm__pipe_alu_cycles_active.avg.pct_of_peak_sustained_active", 1.0),
    "issue": ("sm__inst_issued.avg.pct_of_peak_sustained_active", 1.0),
    "shared": ("l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed", 1.0),
    "l2": ("lts__t_sectors.avg.pct_of_peak_sustained_elapsed", 1.0),
    "l2_hit": ("lts__t_sector_hit_rate.pct", 1.0),
    "dram": ("dram__bytes.sum.pct_of_peak_sustained_elapsed", 1.0),
    "dram_gb": ("dram__bytes.sum", 1e-9),
}


def counted(args, row):
    command = ["ncu", "--csv", "--page", "raw", "--print-units", "base", "--kernel-name-base", "function", "-k", "regex:^(attend|plan_)", "--launch-skip", "2", "--launch-count", "1", "--kill", "yes",
               "--metrics", ",".join(name for name, _ in COUNTERS.values()),
               args.kvloom, "bench", "--backend", "cuda", "--preset", args.preset, "--filter", "=" + row, "--even-lengths", "--no-ceilings", "--repeat", "2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=args.timeout, check=False)
    at = done.stdout.find('"ID"')
    if at < 0:
        return {"shape": row, "why": ((done.stderr or done.stdout).strip().splitlines() or ['ncu said nothing'])[-1]}
    names, _, *values = list(csv.reader(io.StringIO(done.stdout[at:])))
    if not values:
        return {"shape": row, "why": "no launch was counted"}
    line = dict(zip(names, values[0]))
    out = {"shape": row, "kernel": line.get("Kernel Name"), "grid": line.get("Grid Size")}
    for short, (name, scale) in COUNTERS.items():
        text = line.get(name, "").replace(",", "")
        out[short] = round(float(text) * scale, 3) if text not in ("", "n/a") else None
    if out["active"] and out["elapsed"]:
        out["active"] = round(100 * out["active"] / out["elapsed"], 2)
    del out["elapsed"]
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvloom", default="build/release/bin/kvloom", help="the tool")
    parser.add_argument("--preset", default="hopper", help="the rows; several presets with commas between them")
    parser.add_argument("--filter", default="", help="only rows whose name contains this")
    parser.add_argument("--timeout", type=float, default=60, help="seconds a row may take")
    parser.add_argument("--json", required=True, help="where to write")
    args = parser.parse_args()
    listed = subprocess.run([args.kvloom, "bench", "--backend", "cuda", "--preset", args.preset, "--list", "--even-lengths", "--json", "-"], capture_output=True, text=True, check=True)
    facts = json.loads(listed.stdout)
    doctor = subprocess.run([args.kvloom, "doctor", "--json", "-"], capture_output=True, text=True, check=False)
    machine = json.loads(doctor.stdout).get("machine") if doctor.stdout.startswith("{") else None
    rows = []
    for row in (r["shape"] for r in facts["rows"]):
        if args.filter not in row:
            continue
        try:
            rows.append(counted(args, row))
        except subprocess.TimeoutExpired:
            rows.append({"shape": row, "why": f"not done in {args.timeout:.0f} s"})
        print(rows[-1], flush=True)
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"machine": machine, "preset": args.preset, "counters": {k: v[0] for k, v in COUNTERS.items()}, "rows": rows}, file, indent=1)
    return int(any("why" in r for r in rows))


if __name__ == "__main__":
    sys.exit(main())
