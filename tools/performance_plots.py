"""Bars of docs/PERFORMANCE.md as SVG: plain text, the same bytes for the same results."""
from xml.sax.saxutils import escape

WIDTH, LABELS, RIGHT = 960, 330, 70
BAR, GAP, TOP, BOTTOM = 13, 9, 64, 34
COLOURS = {"kvloom": "#1f6feb", "cudnn": "#76b900", "flash": "#e36209", "flex": "#8250df", "flashinfer": "#bf8700"}
OTHER = "#57606a"


def round_up(x):
    """The end of an axis: 1, 2 or 5 times a power of ten over four ticks."""
    step = 10.0 ** -6
    while True:
        for factor in (1, 2, 5):
            for ticks in (4, 5, 6):
                if step * factor * ticks >= x:
                    return step * factor, ticks
        step *= 10


def number(x):
    return f"{x:.2f}".rstrip("0").rstrip(".")


def bars(title, unit, digits, groups, line=None):
    """`groups`: (label, [(series, value)]); `line`: (name, value), a ceiling across all bars; values have `digits` decimals. The SVG's text."""
    series = []
    for _, values in groups:
        series += [name for name, _ in values if name not in series]
    most = max([value for _, values in groups for _, value in values] + ([line[1]] if line else []))
    step, ticks = round_up(most)
    scale = (WIDTH - LABELS - RIGHT) / (step * ticks)
    height = TOP + sum(len(values) * BAR + GAP for _, values in groups) + BOTTOM
    at = lambda value: f"{LABELS + value * scale:.1f}"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="11">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        f'<text x="12" y="22" font-size="15" fill="#1f2328">{escape(title)}</text>',
    ]
    x = 12
    for name in series:
        out.append(f'<rect x="{x}" y="34" width="11" height="11" fill="{COLOURS.get(name, OTHER)}"/>')
        out.append(f'<text x="{x + 16}" y="44" fill="#1f2328">{escape(name)}</text>')
        x += 34 + 7 * len(name)
    end = height - BOTTOM
    for tick in range(ticks + 1):
        value = tick * step
        out.append(f'<line x1="{at(value)}" y1="{TOP - 6}" x2="{at(value)}" y2="{end}" stroke="#d0d7de"/>')
        out.append(f'<text x="{at(value)}" y="{end + 15}" text-anchor="middle" fill="#57606a">{number(value)}</text>')
    out.append(f'<text x="{WIDTH - RIGHT}" y="{end + 29}" text-anchor="end" fill="#57606a">{escape(unit)}</text>')
    y = TOP
    for label, values in groups:
        middle = y + len(values) * BAR / 2 + 4
        out.append(f'<text x="{LABELS - 8}" y="{middle:.1f}" text-anchor="end" fill="#1f2328">{escape(label)}</text>')
        for name, value in values:
            out.append(f'<rect x="{LABELS}" y="{y}" width="{value * scale:.1f}" height="{BAR - 1}" fill="{COLOURS.get(name, OTHER)}"/>')
            inside = value * scale > 50
            place = f'x="{LABELS + value * scale + (-5 if inside else 5):.1f}" y="{y + BAR - 3}"'
            out.append(f'<text {place} ' + ('text-anchor="end" fill="#ffffff"' if inside else 'fill="#1f2328"') + f">{value:.{digits}f}</text>")
            y += BAR
        y += GAP
    if line:
        out.append(f'<line x1="{at(line[1])}" y1="{TOP - 6}" x2="{at(line[1])}" y2="{end}" stroke="#cf222e" stroke-dasharray="5 3"/>')
        out.append(f'<text x="{at(line[1])}" y="{TOP - 10}" text-anchor="middle" fill="#cf222e">{escape(line[0])} {line[1]:.{digits}f}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def rows_as_named(data):
    """Rows of the tables themselves, not those a few tokens shorter or longer."""
    return [r for r in data["rows"] if "why" not in r and r.get("more_tokens", 0) == 0]


def prefill(data):
    """Compute-bound rows that peers have figures of, TFLOP/s in bursts; None: there are none."""
    groups = []
    for r in rows_as_named(data):
        peers = [(p["peer"], p["tflops"]) for p in r.get("peers", []) if "tflops" in p]
        if r.get("bound") == "compute" and peers:
            groups.append((r["shape"], [("kvloom", r["tflops"]), *peers]))
    if not groups:
        return None
    matmul = data["ceilings"].get("matmul")
    line = (f"matmul {matmul['n']}^3", matmul["burst"]["tflops"]) if matmul else None
    return bars(f"{data['gpu']['name']}: compute-bound rows, burst", "TFLOP/s", 0, groups, line)


def decode(data):
    """Memory-bound rows beside the read ceiling, TB/s; None: there are none."""
    rows = [r for r in rows_as_named(data) if r.get("bound", "memory" if r["shape"].startswith("decode-") else "compute") == "memory"]
    if not rows:
        return None
    groups = []
    for r in rows:
        peers = [(p["peer"], p["tbps"]) for p in r.get("peers", []) if "tbps" in p]
        groups.append((r["shape"], [("kvloom", r["tbps"]), *peers]))
    return bars(f"{data['gpu']['name']}: decode, K and V read once, Q and O", "TB/s", 2, groups, ("linear read", data["ceilings"]["read_tbps"]))


PLOTS = {"prefill": prefill, "decode": decode}
