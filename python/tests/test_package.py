"""What is installed: light to import, typed, with the tool."""

import ast
import inspect
import pathlib
import re
import subprocess
import sys


import kvloom
from kvloom import _core

PACKAGE = pathlib.Path(kvloom.__file__).parent


def python(program):
    return subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, check=True).stdout


def test_import_is_light():
    heavy = python("import sys, kvloom; print([m for m in ('numpy', 'torch', 'jax', 'cupy', 'ml_dtypes') if m in sys.modules])")
    assert heavy == "[]\n"
    # In processor time: other processes of a busy machine are not the import.
    times = [float(python("import time; t = time.process_time(); import kvloom; print(time.process_time() - t)")) for _ in range(5)]
    assert min(times) < 0.1, times


def test_import_touches_no_gpu():
    maps = python("import kvloom; print(open('/proc/self/maps').read())")
    assert "_core" in maps and "libcuda" not in maps and "nvrtc" not in maps


def test_versions_agree():
    from importlib.metadata import version

    assert kvloom.__version__ == version("kvloom") == kvloom.version()


def test_the_tool():
    for command in ([sys.executable, "-m", "kvloom"], [str(pathlib.Path(sys.executable).parent / "kvloom")]):
        done = subprocess.run([*command, "--version"], capture_output=True, text=True)
        assert done.returncode == 0 and kvloom.__version__ in done.stdout, done
    plan = subprocess.run([sys.executable, "-m", "kvloom", "plan", "--kv-len", "100,5", "--json", "-"], capture_output=True, text=True)
    assert plan.returncode == 0 and plan.stdout.startswith("{"), plan
    assert subprocess.run([sys.executable, "-m", "kvloom", "no-such-command"], capture_output=True).returncode == 2


def test_numpy_is_not_needed():
    program = """
import array, sys
sys.modules["numpy"] = None
import kvloom
def floats(*dims):
    n = 1
    for d in dims: n *= d
    return memoryview(bytearray(4 * n)).cast("f", dims)
q, k, out = floats(1, 2, 32), floats(3, 2, 32), floats(1, 2, 32)
for i in range(3):
    for d in range(32): k[i, 0, d] = i
kvloom.attention(q, k, k, out=out)
print(out[0, 0, 0], out[0, 1, 0])
try:
    kvloom.attention(q, k, k)
except TypeError as error:
    print(error)
"""
    lines = python(program).splitlines()
    assert lines[0] == "1.0 0.0"
    assert lines[1] == "`out`: no way is known to make an output for a memoryview: give `out` (and `lse`, if wanted)"


def test_everything_public_is_documented():
    for name in kvloom.__all__:
        thing = getattr(kvloom, name)
        assert inspect.getdoc(thing), name
        if inspect.isclass(thing):
            for member, value in vars(thing).items():
                if not member.startswith("_") and callable(value):
                    assert inspect.getdoc(value), f"{name}.{member}"
    for method in ("plan", "replan", "plan_on_device", "replan_on_device", "check", "plan_sparse", "run", "explain"):
        assert inspect.getdoc(getattr(kvloom.Engine, method)), method


def test_stubs_say_what_is_there():
    """_core.pyi against the extension: the same names, the same parameters."""
    assert (PACKAGE / "py.typed").exists()
    tree = ast.parse((PACKAGE / "_core.pyi").read_text())
    stub = {node.name: node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
    there = {name for name in dir(_core) if not name.startswith("_")}
    assert set(stub) == there

    def compare(name, function, node):
        signature = function.__doc__.splitlines()[0]
        parsed = ast.parse(f"def {signature.replace('kvloom._core.', '')}: ...")
        real, said = parsed.body[0].args, node.args
        assert [a.arg for a in real.args] == [a.arg for a in said.args], name
        assert [a.arg for a in real.kwonlyargs] == [a.arg for a in said.kwonlyargs], name

    for name, node in stub.items():
        thing = getattr(_core, name)
        if isinstance(node, ast.FunctionDef):
            compare(name, thing, node)
            continue
        members = {m.name: m for m in node.body if isinstance(m, ast.FunctionDef) and not m.name.startswith("__")}
        assert set(members) == {m for m in vars(thing) if not m.startswith("__")}, name
        for member, m in members.items():
            if not any(isinstance(d, ast.Name) and d.id == "property" for d in m.decorator_list):
                compare(f"{name}.{member}", getattr(thing, member), m)


def test_the_readme_runs():
    readme = pathlib.Path(__file__).parents[2] / "README.md"
    programs = re.findall(r"```python\n(.*?)```", readme.read_text(), re.DOTALL)
    assert programs
    for program in programs:
        assert "memory class" in python(program)
