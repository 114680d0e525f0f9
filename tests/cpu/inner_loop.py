"""The inner loops of the AVX2 kernels, as the compiler left them: those of the tile kernel hold 4 steps of 12 multiply-adds and 8 loads
and never touch the stack; those of the short_rows kernel store a vector there at most once in 8 multiply-adds (accumulators that live in
memory halve the speed).

usage: inner_loop.py OBJDUMP LIBRARY
"""
import re
import subprocess
import sys

STEP_FMAS, STEP_LOADS, STEPS = 12, 8, 4


def functions(objdump, library):
    """Yields (name, [(address, opcode, operands)]) of the AVX2 kernels."""
    text = subprocess.run([objdump, "-d", "--no-show-raw-insn", library], capture_output=True, text=True, check=True).stdout
    name, code = None, []
    for line in text.splitlines():
        header = re.match(r"[0-9a-f]+ <(.*)>:$", line)
        instruction = re.match(r"\s+([0-9a-f]+):\s+(\S+)\s*(.*)", line)
        if header:
            if name and "avx2" in name:
                yield name, code
            name, code = header[1], []
        elif instruction:
            code.append((int(instruction[1], 16), instruction[2], instruction[3]))
    if name and "avx2" in name:
        yield name, code


def inner_loops(code):
    """Bodies of loops that hold no other loop: from the target of a backward jump to the jump."""
    index = {address: i for i, (address, _, _) in enumerate(code)}
    loops = []
    for i, (address, opcode, operands) in enumerate(code):
        target = re.match(r"([0-9a-f]+)\b", operands)
        if opcode.startswith("j") and target and int(target[1], 16) in index and index[int(target[1], 16)] <= i:
            loops.append((index[int(target[1], 16)], i))
    return [code[a : b + 1] for a, b in loops if not any(a <= c and d <= b and (a, b) != (c, d) for c, d in loops)]


def spilling_loops(name, code):
    """Inner loops of a short_rows product that store too many vectors to the stack, and how many loops were looked at."""
    faults, found = [], 0
    for body in inner_loops(code):
        fmas = sum(op == "vfmadd231ps" for _, op, _ in body)
        if fmas < 16:
            continue
        found += 1
        stores = [f"{a:x}: {op} {args}" for a, op, args in body if op.startswith("vmov") and re.search(r"%ymm\d+,-?(0x[0-9a-f]+)?\(%r[sb]p", args)]
        if 8 * len(stores) > fmas:
            faults.append(f"{name}: loop at {body[0][0]:x}: {len(stores)} vectors stored to the stack in {fmas} multiply-adds: {stores[0]}")
    return faults, found


def main():
    objdump, library = sys.argv[1:3]
    found, products, faults = 0, 0, []
    for name, code in functions(objdump, library):
        if re.search(r"score_keys|add_values", name):
            more, loops = spilling_loops(name, code)
            faults += more
            products += loops
            continue
        if "product" not in name:
            continue
        framed = any(op == "mov" and args == "%rsp,%rbp" for _, op, args in code)
        stack_registers = ("%rsp", "%rbp") if framed else ("%rsp",)
        for body in inner_loops(code):
            fmas = sum(op == "vfmadd231ps" for _, op, _ in body)
            broadcasts = sum(op == "vbroadcastss" for _, op, _ in body)
            if fmas != STEP_FMAS * STEPS or broadcasts < 4 * STEPS:  # the exponentials of the softmax have no broadcasts
                continue
            found += 1
            loads = sum(op in ("vmovups", "vbroadcastss") and "(" in args.split(",%")[0] for _, op, args in body)
            stack = [f"{a:x}: {op} {args}" for a, op, args in body if any(f"({r}" in args for r in stack_registers)]
            if loads != STEP_LOADS * STEPS:
                faults.append(f"{name}: loop at {body[0][0]:x}: got {loads} loads, wanted {STEP_LOADS * STEPS}")
            if stack:
                faults.append(f"{name}: loop at {body[0][0]:x}: touches the stack: {stack[0]} ({len(stack)} times)")
    if found < 3:
        faults.append(f"got {found} loops of {STEP_FMAS * STEPS} multiply-adds in the AVX2 tile kernel, wanted the score product, its parts and the value product")
    if products < 24:
        faults.append(f"got {products} loops of 16 or more multiply-adds in the AVX2 short_rows kernel, wanted at least 24")
    print("\n".join(faults) or f"{found + products} inner loops stay in registers")
    return 1 if faults else 0


sys.exit(main())
