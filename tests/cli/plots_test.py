#!/usr/bin/env python3
"""tools/performance_page.py on results of its own: tables, plots, and that --check notices what is not up to date."""
import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import performance_page
import performance_plots


def row(shape, bound, **more):
    figure = {"median_us": 10.0, "p10_us": 9.0, "p90_us": 11.0, "tbps": 4.0, "tflops": 600.0, "share": 0.8}
    r = {"shape": shape, "more_tokens": 0, "key": "attend.sm90", "bound": bound, "plan_us": 5.0, "run_host_us": 2.0, "runs": 1, "share_of": "read" if bound == "memory" else "matmul", **figure, **more}
    if bound == "compute":
        r |= {"tensor_share": 0.7, "sustained": {"mean_us": 12.0, "tflops": 500.0, "share": 0.75, "tensor_share": 0.7, "clock_mhz": 1500.0}}
    return r


def results(peers=True):
    cudnn = {"peer": "cudnn", "median_us": 12.5, "tflops": 480.0, "tbps": 3.2, "sustained": {"tflops": 450.0}}
    flex = {"peer": "flex", "why": "does not do sinks"}
    rows = [
        row("prefill-a", "compute", **({"peers": [cudnn, flex]} if peers else {})),
        row("prefill-alone", "compute"),
        row("decode-a", "memory"),
        row("decode-longer", "memory", more_tokens=37),
        {"shape": "prefill-none", "more_tokens": 0, "why": "no kernel <yet>"},
    ]
    side = lambda tflops: {"tflops": tflops, "tensor_share": 0.9, "clock_mhz": 1980.0}
    matmul = {"n": 8192, "dtype": "bf16", "library": "cuBLASLt 13.1.0", "burst": side(783.0), "sustained": side(675.0)}
    protocol = {"burst": {"idle_s": 0.7, "warm_ups": 4, "median_of": 12}, "sustained": {"warm_s": 0.15, "measured_s": 0.25}}
    data = {"machine": {"cpu": "x"}, "gpu": {"name": "GPU <1>"}, "protocol": protocol, "ceilings": {"read_tbps": 4.55, "matmul": matmul}, "rows": rows}
    return {**data, "peers": {"machine": {"torch": "2.11"}, "not_installed": {"flashinfer": "not installed"}}} if peers else data


def test_plots():
    svg = performance_plots.prefill(results())
    tree = xml.etree.ElementTree.fromstring(svg)
    texts = [t.text for t in tree.iter() if t.text]
    assert "prefill-a" in texts and "600" in texts and "480" in texts and "matmul 8192^3 783" in texts, texts
    assert "prefill-alone" not in texts and "decode-a" not in texts, texts
    assert svg == performance_plots.prefill(results())
    assert performance_plots.prefill(results(peers=False)) is None
    texts = [t.text for t in xml.etree.ElementTree.fromstring(performance_plots.decode(results())).iter() if t.text]
    assert "decode-a" in texts and "4.00" in texts and "linear read 4.55" in texts, texts
    assert "decode-longer" not in texts, texts


def test_axes():
    for most, (step, ticks) in {4.55: (1, 5), 783: (200, 4), 0.9: (0.2, 5), 6: (1, 6)}.items():
        got = performance_plots.round_up(most)
        assert abs(got[0] - step) < 1e-9 and got[1] == ticks, (most, got)


def test_tables():
    text = "\n".join(performance_page.gpu_table(results()))
    for part in (
        "burst 783 TFLOP/s at 1.98 GHz (90.0 % of tensor cycles), sustained 675 TFLOP/s at 1.98 GHz (90",
        "| 80.0 % of matmul | 70.0 % | 500 at 1.50 GHz | 75.0 % | 70.0 % |",
        "| prefill-none | not measured: no kernel <yet> |",
        "| prefill-a | 600, 500 | 480, 450 | 1.25 |",
        "flashinfer: not installed.",
        "0.7 s idle, 4 warm-ups, median of 12",
    ):
        assert part in text, (part, text)
    without = results(peers=False)
    without["ceilings"] = {"read_tbps": 4.5, "matmul": None, "matmul_why": "no cuBLASLt"}
    text = "\n".join(performance_page.gpu_table(without))
    assert "Matmul: not measured: no cuBLASLt." in text and "best peer" not in text, text


def test_rows_beside_others_and_constants():
    data = results(peers=False)
    assert "| times |" not in "\n".join(performance_page.gpu_table(data))
    data["rows"][0]["beside"] = {"shape": "another", "times": 1.0249}
    data["constants"] = {"sms": 132, "read": [{"ctas": 1, "bytes_per_ns_per_cta": 65.4321}], "item": {"one_us": 2.5}}
    text = "\n".join(performance_page.gpu_table(data))
    assert "| another | 1.025 |" in text
    assert "- sms: sms 132\n- read: ctas 1, bytes_per_ns_per_cta 65.43\n- item: one_us 2.5\n" in text
    data["rows"] = []
    assert "| shape |" not in "\n".join(performance_page.gpu_table(data))


def test_steps():
    one = {"steps": 3, "weight": 40.0, "schedules": {"auto": {"us": 1000.0, "over_first": 1.0, "planned_us": 900.0}, "heap": {"planned_us": 950.4}, "none": None}}
    peers = {"steps": 2, "times": 1.234, "times_with_plans": 2.345}
    data = {"machine": {}, "steps": "conv.jsonl", "model": "llama-3.1-8b", "gpu": {"name": "H200"}, "rows": [], "sums": {"all": {**one, "peers": peers}, "decode": one}}
    text = "\n".join(performance_page.steps_table(data))
    assert "| all: 3, for 40 | 1000 (1.000) | 950 by the cost model | - | 1.23 (2 steps) | 2.35 |" in text
    assert "| decode: 3, for 40 | 1000 (1.000) | 950 by the cost model | - | - | - |" in text
    step = lambda us, size: {"kind": "decode", "weight": 2.0, "bytes": size, "flop": 3e6, "schedules": {"auto": {"us": us} if us else None}}
    text = "\n".join(performance_page.steps_table({**data, "read_tbps": 5.0, "rows": [step(1.0, 3e6), step(3.0, 9e6), step(None, 1e9)]}))
    assert "decode 3.00 TB/s (60% of a linear read) and 2 TFLOP/s" in text, text


def test_bounds():
    row = lambda **facts: performance_page.bound_of({"shape": "decode-1x2", "bound": "memory", "share_of": "read", "median_us": 100.0, **facts})
    assert row() == "?" and row(share=0.95) == "memory" and "first key" in row(share=0.7) and "merges" in row(share=0.5)
    assert "L2" in row(share=0.5, shape="decode-tree-flat") and "two kernels" in row(share=0.5, shape="x-rope-apart") and row(shape="plan-decode").startswith("latency")
    assert row(share=0.2, median_us=9.6).startswith("latency")
    compute = lambda **facts: row(bound="compute", share_of="matmul", **facts)
    assert compute(share=0.9, tensor_share=0.85) == "tensor cores" and "softmax" in compute(share=0.9, tensor_share=0.75) and "softmax" in compute(share=0.9)
    assert row(bound="compute", share_of="products", share=0.85) == "tensor cores"


def test_variants():
    case = lambda name, status: {"variant": name, "case": "1:0", "exit": status, "report": {"runs": 40} if status < 2 else None}
    text = list(performance_page.variants_table({"backend": "cuda", "variants": [case("b", 0), case("b", 139), case("a", 1)]}))
    assert text[-2:] == ["| a | 1 | 40 | 1 |", "| b | 2 | 40 | 1 |"], text


def test_check():
    """A page, a plot and a plot too many, spoiled one after another, in a copy of the folders."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name in ("tools", "docs", "benchmarks/results"):
            (root / name).mkdir(parents=True)
        for name in ("performance_page.py", "performance_plots.py", "performance_bounds.py"):
            (root / "tools" / name).write_text((ROOT / "tools" / name).read_text())
        (root / "benchmarks/results/gpu.json").write_text(json.dumps(results()))

        def run(*arguments):
            return subprocess.run([sys.executable, root / "tools/performance_page.py", *arguments], capture_output=True, text=True)

        assert run("--check").returncode == 1
        assert run().returncode == 0 and run("--check").returncode == 0
        assert sorted(p.name for p in (root / "docs/plots").iterdir()) == ["gpu-decode.svg", "gpu-prefill.svg"]
        assert "(plots/gpu-prefill.svg)" in (root / "docs/PERFORMANCE.md").read_text()
        for spoiled in ("PERFORMANCE.md", "plots/gpu-prefill.svg", "plots/old.svg"):
            with open(root / "docs" / spoiled, "a", encoding="utf-8") as file:
                file.write(" ")
            wrong = run("--check")
            assert wrong.returncode == 1 and spoiled in wrong.stderr, (spoiled, wrong.stderr)
            assert run().returncode == 0 and run("--check").returncode == 0
        assert not (root / "docs/plots/old.svg").exists()


if __name__ == "__main__":
    for test in (test_plots, test_axes, test_tables, test_rows_beside_others_and_constants, test_steps, test_bounds, test_variants, test_check):
        test()
    print("8 passed, 0 failed")
