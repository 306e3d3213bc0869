"""MXNet and psutil have no types of their own: typings/ has them. What it names must be there.

This file is also the program that looks, in a process of its own: MXNet starts threads as it is imported.
"""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

TYPINGS = Path(__file__).resolve().parents[1] / "typings"


@pytest.mark.mxnet
def test_what_is_typed_is_there():
    done = subprocess.run([sys.executable, __file__], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def check_stub(path):
    """That its functions, classes and variables are the real module's too."""
    name = ".".join(path.relative_to(TYPINGS).with_suffix("").parts)
    real = importlib.import_module(name.removesuffix(".__init__"))
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            check_function(node, getattr(real, node.name))
        elif isinstance(node, ast.AnnAssign):
            getattr(real, node.target.id)
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            kind = getattr(real, node.name)
            for typed in node.body:
                if isinstance(typed, ast.FunctionDef):
                    check_function(typed, getattr(kind, typed.name))


def check_function(typed, there):
    """That it takes the arguments that are typed."""
    if callable(there):  # not a property
        given = inspect.signature(there).parameters
        names = {argument.arg for argument in typed.args.args}
        is_open = any(one.kind is one.VAR_KEYWORD for one in given.values())
        assert is_open or names <= given.keys(), f"{typed.name} takes {[*given]}"


if __name__ == "__main__":
    stubs = sorted(TYPINGS.rglob("*.pyi"))
    assert stubs
    for stub in stubs:
        check_stub(stub)
