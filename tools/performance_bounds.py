"""What bounds the rows of docs/PERFORMANCE.md: by hardware counters, and as far as shares of ceilings say."""

PARTS = {"tensor_cycles": "tensor cores", "dram": "memory", "l2": "L2", "exp": "exponentials", "issue": "issue", "shared": "shared memory"}


def steps_bounds(data, schedule):
    """What the steps of each kind read and multiply a second under their first schedule, beside a linear read of the same run."""
    read = data.get("read_tbps") or 0
    sums = {}
    for r in data["rows"]:
        us = (r["schedules"].get(schedule) or {}).get("us")
        if us is None:
            continue
        total = sums.setdefault(r["kind"], [0.0, 0.0, 0.0])
        for i, value in enumerate((us, r["bytes"], r["flop"])):
            total[i] += r["weight"] * value
    words = []
    for kind, (us, size, flop) in sums.items():
        share = f" ({size / us * 1e-6 / read:.0%} of a linear read)" if read else ""
        words.append(f"{kind} {size / us * 1e-6:.2f} TB/s{share} and {flop / us * 1e-6:.0f} TFLOP/s")
    if words:
        yield ""
        yield (f"Read and multiplied under `{schedule}`: " + "; ".join(words) + ". Memory bounds decodes, tensor cores long chunks; beside chunks both are at work. What short steps miss "
               "is what stands before the first key and behind the last, some 8 us. Steps that nobody shares anything in are planned alike with levels and without: what differs there is noise.")


def bound_of(row):
    """What the shares of a row say of what bounds it; "?" where there are none."""
    share = row.get("share") or 0
    if row["shape"].startswith("plan-"):
        return "latency: dependent steps"
    if not share:
        return "?"
    if row["bound"] != "memory":
        tensor = row.get("tensor_share") or row.get("sustained", {}).get("tensor_share") or 0
        return "tensor cores" if max(tensor, row["share_of"] == "products" and share) >= 0.8 else "what is between the products: softmax, starts and ends of items"
    if row["shape"].endswith("-apart"):
        return "memory: two kernels, of which one reads and writes what the other reads"
    if share >= 0.9:
        return "memory"
    if row["median_us"] < 12:
        return "latency: what is before the first key and behind the last"
    if share >= 0.6:
        return "memory, and what is before the first key and behind the last"
    return "L2, which has the shared keys" if row["shape"].endswith("-flat") else "merges, starts and ends of items"


def bound_by(row):
    """The busiest part of the chip; below four fifths of what it can do, waiting bounds the kernel, and the part is where it would be bound next."""
    part = max(PARTS, key=lambda k: row.get(k) or 0)
    words = PARTS[part] if row[part] >= 80 else f"latency; then {PARTS[part]}"
    return words + (f"; launch and tail ({100 - row['active']:.0f} % of the time an SM has no work)" if row["active"] < 90 else "")


def counters_table(data):
    yield (f"What bounds the rows of preset `{data['preset']}`: one launch of each, counted by Nsight Compute (`tools/gpu_counters.py`), which fixes the clock at the "
           "chip's base (MHz), so times are longer than benchmarks'. Percent of what a part of the chip does at most, while SMs have work; L2 and memory: of the whole launch.")
    yield ""
    yield "| shape | kernel | us | MHz | SMs at work | " + " | ".join(PARTS.values()) + " | L2 hits | GB from memory | bound by |"
    yield "|" + "---|" * (8 + len(PARTS))
    for r in data["rows"]:
        if "why" in r:
            yield f"| {r['shape']} | not counted: {r['why']} |" + " |" * (6 + len(PARTS))
            continue
        cells = " | ".join(f"{r[k]:.0f}" for k in PARTS)
        yield (f"| {r['shape']} | `{r['kernel']}` | {r['us']:.0f} | {r['sm_mhz']:.0f} | {r['active']:.0f} | {cells} | {r['l2_hit']:.0f} | {r['dram_gb']:.3f} | {bound_by(r)} |")
