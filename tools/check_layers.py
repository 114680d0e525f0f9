#!/usr/bin/env python3
"""Checks the rooms: who includes whom, which outside headers, file length, where assembly may stand, and that public headers stand alone.

    tools/check_layers.py             everything (headers are compiled only if one changed since the last good run)
    tools/check_layers.py --no-compile

Exit status 0 and one closing line if the house is in order; else one line a fault: file:line: what, and what to do.
"""
import argparse
import concurrent.futures
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_LINES = 400
MAX_ALGORITHM_LINES = 200  # of a definition in an attend.cuh: it is to be read as the algorithm
SOURCE = {".h", ".cc", ".inl", ".cuh", ".cu", ".c"}

# room -> rooms it may include (itself always). docs/MAP.md explains them.
DEVICE_KERNEL = ["base", "contract", "attn", "device/ptx", "device/tile", "device/block"]
ALLOWED = {
    "kvloom/base": [],
    "kvloom/support": ["base"],
    "kvloom/contract": ["base"],
    "kvloom/attn": ["base", "contract"],
    "kvloom/variants": ["base", "contract", "attn"],
    "kvloom/plan": ["base", "support", "contract", "attn"],
    "kvloom/cpu": ["base", "support", "contract", "attn", "variants"],
    "kvloom/ref": ["base", "contract"],
    "kvloom/jit": ["base", "support", "contract"],
    "kvloom/device/ptx": ["base"],
    "kvloom/device/tile": ["base", "device/ptx"],
    "kvloom/device/block": ["base", "contract", "attn", "device/ptx", "device/tile"],
    "kvloom/device/any": DEVICE_KERNEL,
    "kvloom/device/plan": [*DEVICE_KERNEL, "plan"],  # of plan only what is plain: headers that NVRTC reads
    "kvloom/device/sm80": DEVICE_KERNEL,
    "kvloom/device/sm90": DEVICE_KERNEL,
    "kvloom/device/stream": [*DEVICE_KERNEL, "device/sm80"],  # a warp's step is that family's
    "kvloom/device/mixed": [*DEVICE_KERNEL, "device/sm80", "device/sm90", "device/stream"],  # joins the two
    "kvloom/runtime": ["base", "support", "contract", "attn", "variants", "plan", "cpu", "jit", "device/sm80", "device/sm90", "device/stream", "device/mixed", "device/plan"],  # of device only what is plain: *.h
    "kvloom/api": ["base", "support", "contract", "attn", "plan", "cpu", "jit", "runtime"],
    # What stands on the library. REF is for checks, never for the product's answers.
    "cli": ["api", "base", "contract", "attn", "support", "ref", "cpu", "plan"],
    "python": ["api"],
    "examples": ["api"],
    "benchmarks": ["api", "base", "contract", "attn", "support", "plan", "cpu", "cli"],
}

# Outside headers that a room may not see.
FORBIDDEN = {
    "kvloom/base": {"vector", "string", "iostream", "chrono", "random", "algorithm", "memory", "fmt/", "nlohmann/"},
    "kvloom/contract": {"vector", "iostream", "chrono", "random", "thread", "fmt/", "nlohmann/"},
    "kvloom/attn": {"vector", "string", "iostream", "chrono", "random", "fmt/", "nlohmann/"},
    "kvloom/variants": {"vector", "string", "iostream", "chrono", "random", "fmt/", "nlohmann/"},
    "kvloom/plan": {"chrono", "random", "thread", "ctime", "time.h", "cuda.h", "cuda_runtime.h", "iostream", "cmath", "math.h", "nlohmann/"},
    "kvloom/ref": {"fmt/", "nlohmann/", "thread"},
    "kvloom/device": {"vector", "string", "memory", "iostream", "cstdint", "cuda_runtime.h", "cooperative_groups.h", "cute/", "cutlass/"},
}

# The planner's arithmetic is integer by law: equal bytes on every platform. Pictures and texts of a plan are not the plan.
FLOAT = re.compile(r"(?<!sizeof\()\b(float|double)\b")  # the size of one is an integer
FLOAT_ALLOWED_IN_PLAN = re.compile(r"describe")

ASM = re.compile(r"\b(asm|__asm__|__asm)\b\s*(volatile|__volatile__)?\s*\(")
# One room for the GPU, the thin vector layer of each CPU target, and the loops that measure a machine's ceilings.
ASM_ROOMS = re.compile(r"^kvloom/device/ptx/|^kvloom/cpu/simd_[a-z0-9]+\.h$|^cli/bench/ceilings|^benchmarks/|^tests/")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
PUBLIC_DIRS = ("base", "contract", "attn", "variants", "api")
PUBLIC_FILES = ("plan/scheduler_config.h", "support/error.h")


def sources():
    for top in ("kvloom", "cli", "python", "tests", "benchmarks", "examples", "tools"):
        if (ROOT / top).exists():
            for path in sorted((ROOT / top).rglob("*")):
                if path.suffix in SOURCE | {".py"}:
                    yield path


def room_of(path):
    """The room of a path written from the root: kvloom/plan, kvloom/device/sm90, cli, ..."""
    parts = path.split("/")
    if parts[0] != "kvloom":
        return parts[0]
    return "/".join(parts[:3] if parts[1] == "device" else parts[:2])


def is_public(path):
    inside = path.removeprefix("kvloom/")
    return path.endswith(".h") and inside != path and (inside in PUBLIC_FILES or inside.split("/")[0] in PUBLIC_DIRS)


def include_fault(path, kind, name):
    room = room_of(path)
    if room == "tests":
        return None
    if kind == '"':
        if not name.startswith(("kvloom/", "cli/", "python/", "benchmarks/", "examples/")):
            return f'include "{name}" is not written from the root ("kvloom/room/file.h")'
        target = room_of(name)
        if target.startswith("kvloom/device") and name.endswith(".cuh") and not room.startswith("kvloom/device"):
            return f"{room} is host code: {name} is text for GPU compilers"
        allowed = ALLOWED.get(room)
        if allowed is None:
            return f"room {room} is unknown: add it to ALLOWED here and to docs/MAP.md"
        if target != room and target.removeprefix("kvloom/") not in allowed:
            return f"{room} may not include {target} (it may include: {', '.join(allowed) or 'nothing'})"
        return None
    if is_public(path) and name.startswith(("fmt/", "nlohmann/", "CLI/")):
        return f"a public header may not include <{name}>"
    forbidden = FORBIDDEN.get("kvloom/device" if room.startswith("kvloom/device") else room, ())
    if any(name == f or (f.endswith("/") and name.startswith(f)) for f in forbidden):
        return f"{room} may not include <{name}>"
    return None


def line_faults(path, number, line):
    include = INCLUDE.match(line)
    if include:
        fault = include_fault(path, include.group(1), include.group(2))
        if fault:
            yield f"{path}:{number}: {fault}"
    code = line.split("//")[0]
    if ASM.search(code) and not ASM_ROOMS.match(path):
        yield f"{path}:{number}: inline assembly: it belongs in kvloom/device/ptx (GPU) or kvloom/cpu/simd_<target>.h (CPU)"
    if path.startswith("kvloom/plan/") and FLOAT.search(code) and not FLOAT_ALLOWED_IN_PLAN.search(path):
        yield f"{path}:{number}: floating point in kvloom/plan: plans are integer arithmetic"
    if path.startswith("kvloom/") and re.match(r"\s*using\s+namespace\s", code):
        yield f"{path}:{number}: using namespace in the library"


def long_definitions(path, lines):
    """Definitions of structs and functions, which begin and end at the beginning of a line."""
    begin = 0
    for number, line in enumerate(lines, 1):
        if re.match(r"template|struct|__device__", line) and not begin:
            begin = number
        if line.startswith("}") and begin:
            if number - begin >= MAX_ALGORITHM_LINES:
                yield f"{path}:{begin}: {number - begin + 1} lines, at most {MAX_ALGORITHM_LINES}: what isn't the algorithm (waiting, addresses) goes into a file of its own"
            begin = 0


def file_faults(file):
    path = file.relative_to(ROOT).as_posix()
    text = file.read_text(encoding="utf-8", errors="replace")
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        yield f"{path}:{len(lines)}: {len(lines)} lines, at most {MAX_LINES}: give a part a file of its own"
    if path.endswith("/attend.cuh"):
        yield from long_definitions(path, lines)
    if re.search(r"(^|/)(common|utils?|misc|helpers?)(/|\.|_)", path):
        yield f"{path}:1: a name that says nothing: name what is inside"
    if file.suffix == ".py":
        return
    is_text = path.startswith("examples/variants/")  # of users' variants: compiled as they are, included by nobody
    if file.suffix == ".h" and not is_text and "#pragma once" not in text and "#ifndef" not in text:
        yield f"{path}:1: no #pragma once"
    for number, line in enumerate(lines, 1):
        yield from line_faults(path, number, line)


def compile_fault(header):
    """A public header compiles alone as C++20 with every warning on; the C interface compiles as C99 as well."""
    languages = [["g++", "-std=c++20", "-x", "c++"]]
    if header.endswith(("/kvloom.h", "/kvloom_device_plan.h")):
        languages.append(["gcc", "-std=c99", "-x", "c"])
    for language in languages:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as unit:
            unit.write(f'#include "{header}"\n')
            unit.flush()
            command = [*language, "-fsyntax-only", f"-I{ROOT}", "-Wall", "-Wextra", "-Wpedantic", "-Werror", unit.name]
            done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            first = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            return f"{header}:1: does not stand alone ({language[1]}): {first}"
    return None


def header_faults():
    headers = [p.relative_to(ROOT).as_posix() for p in sorted((ROOT / "kvloom").rglob("*.h"))]
    digest = hashlib.sha256()
    for path in [*headers, "tools/check_layers.py"]:
        digest.update(path.encode() + (ROOT / path).read_bytes())
    stamp = ROOT / "build" / "check_layers.stamp"
    if stamp.exists() and stamp.read_text() == digest.hexdigest():
        return []
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        faults = [fault for fault in pool.map(compile_fault, filter(is_public, headers)) if fault]
    if not faults:
        stamp.parent.mkdir(exist_ok=True)
        stamp.write_text(digest.hexdigest())
    return faults


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--no-compile", action="store_true", help="only read the files")
    options = parser.parse_args()
    files = list(sources())
    faults = [fault for file in files for fault in file_faults(file)]
    if not options.no_compile:
        faults += header_faults()
    print(*faults, f"check_layers: {len(files)} files, {len(faults)} faults", sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
