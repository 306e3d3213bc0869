"""The public face: what `nalb`, `nalb.mxnet` and `nalb.torch` export, how that is documented, and that users see nothing else.

Modules are read, not imported, since two of them need MXNet or PyTorch.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nalb

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = ("nalb", "nalb.mxnet", "nalb.torch", "nalb.torch.torchft")
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
OURS = [path for package in ("nalb", "netem", "kvstore_patch") for path in sorted((ROOT / package).rglob("*.py"))]
IMPORT = re.compile(
    r"^\s*(?:>>> )?(?:from (?P<source>[\w.]+) import (?P<names>[\w, ]+)|import (?P<whole>[\w., ]+))", re.M
)


def path_of(module: str) -> Path:
    base = ROOT / module.replace(".", "/")
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


def tree_of(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


def home_of(module: str, name: str) -> str:
    """The module from which this one has the name; itself where the name is defined here."""
    for node in ast.walk(tree_of(module)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and name in {alias.asname or alias.name for alias in node.names}
        ):
            submodule = f"{node.module}.{name}"
            return submodule if path_of(submodule).exists() else home_of(node.module, name)
    return module


def exported(module: str) -> list[str]:
    """The names in a module's `__all__`."""
    if module == "nalb":
        return [name for name in nalb.__all__ if name != "__version__"]
    for node in tree_of(module).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    raise AssertionError(f"{module} has no __all__")


def public_names() -> Iterator[tuple[str, str]]:
    """(module, name) of each class, function and constant of the public face, where it is defined."""
    for module in PUBLIC:
        for name in exported(module):
            home = home_of(module, name)
            if home.rpartition(".")[2] != name:
                yield home, name
                continue
            for inner in exported(home):
                yield home_of(home, inner), inner


@pytest.mark.parametrize("name", nalb.__all__)
def test_each_exported_name_is_there(name: str) -> None:
    assert getattr(nalb, name) is not None
    assert name in dir(nalb)


def test_an_unknown_name_is_said_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'nalb' has no attribute 'Scheem'"):
        nalb.Scheem  # noqa: B018


def test_what_type_checkers_see_is_what_is_loaded() -> None:
    stated = {
        alias.asname: node.module
        for node in ast.walk(tree_of("nalb"))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("nalb.")
        for alias in node.names
    }
    assert stated == nalb._HOME


def test_importing_nalb_loads_nothing_else() -> None:
    """Each start of Python with nalb's own programs would pay for it."""
    told = "import sys, nalb; print(sorted({'numpy', 'scipy', 'msgspec', 'mxnet', 'zmq'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", told], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_training_scripts_face_is_whole() -> None:
    """What each exported module hands on has an `__all__` of its own, and the face names all of it."""
    page = ast.get_docstring(tree_of("nalb.mxnet")) or ""
    for name in exported("nalb.mxnet"):
        assert re.search(rf"^{name}\s", page, re.M), f"nalb/mxnet.py: say in its docstring what {name} is"
    assert {home for home, _ in public_names()} >= {"kvstore_patch.batching", "kvstore_patch.fela.trainer"}


def parameters(function: ast.FunctionDef) -> list[str]:
    given = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return [one.arg for one in given if one.arg not in ("self", "cls")]


def missing_words(kind: str, node: ast.FunctionDef, words: str) -> list[str]:
    return [f"{kind}: parameter {name}" for name in parameters(node) if not re.search(rf"\b{name}\b", words)]


def undocumented(module: str, name: str) -> list[str]:
    """What a reader of the name's signature is not told: the name itself, methods, parameters, fields."""
    source = path_of(module).read_text(encoding="utf-8")
    found = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name
    ]
    if not found:  # a constant or a type, which has its comment or docstring above or behind it
        lines = source.splitlines()
        where = next(i for i, line in enumerate(lines) if re.match(rf"{name}\b.* = ", line))
        return [] if "#" in lines[where] or lines[where - 1].startswith("#") else [f"{module}.{name}: no comment"]
    node = found[0]
    said = ast.get_docstring(node) or ""
    lacks = [] if said else [f"{name}: docstring"]
    if isinstance(node, ast.FunctionDef):
        return lacks + missing_words(name, node, said)
    lines = source.splitlines()
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign):
            field, its_lines = ast.unparse(inner.target), "".join(lines[inner.lineno - 1 : inner.end_lineno])
            lacks += [] if "#" in its_lines or re.search(rf"\b{field}\b", said) else [f"{name}.{field}: comment"]
        if isinstance(inner, ast.FunctionDef) and (inner.name == "__init__" or not inner.name.startswith("_")):
            own = ast.get_docstring(inner) or ""
            if not own and inner.name != "__init__":
                lacks.append(f"{name}.{inner.name}: docstring")
            lacks += missing_words(f"{name}.{inner.name}", inner, f"{said}\n{own}")
    return lacks


@pytest.mark.parametrize(("module", "name"), sorted(set(public_names())))
def test_each_public_signature_is_documented(module: str, name: str) -> None:
    assert undocumented(module, name) == []


def shown() -> Iterator[tuple[Path, str]]:
    """Each text with code that a user may copy: examples, code blocks of pages, docstrings."""
    for path in EXAMPLES:
        yield path, path.read_text(encoding="utf-8")
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for block in re.findall(r"^```\w*\n(.*?)^```|((?:^ {4}.*\n)+)", text, re.M | re.S):
            yield path, "".join(block)
    documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for path in OURS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, documented):
                yield path, ast.get_docstring(node) or ""


def imports_of(text: str) -> Iterator[tuple[str, list[str]]]:
    """(module, names) of each import of ours."""
    for found in IMPORT.finditer(text):
        modules = [found["source"]] if found["source"] else found["whole"].split(",")
        for module in (one.split()[0] for one in modules if one.strip()):
            if module.partition(".")[0] in ("nalb", "netem", "kvstore_patch"):
                names = [one.split()[0] for one in (found["names"] or "").split(",") if one.strip()]
                yield module, names


def test_users_are_shown_the_public_face_alone() -> None:
    count = 0
    for path, text in shown():
        for module, names in imports_of(text):
            count += 1
            assert module in PUBLIC, (
                f"{path} shows an import of {module}: export what it needs from {' or '.join(PUBLIC)}"
            )
            assert set(names) <= {*exported(module), *(one.partition(".")[2] for one in PUBLIC)}, f"{path}: {names}"
    assert count >= 10


def test_an_import_of_another_room_would_be_seen() -> None:
    text = "x\n    from kvstore_patch.checkpoints import Checkpoints, Progress\nimport netem\nfrom nalb import Scheme\n"
    seen = [("kvstore_patch.checkpoints", ["Checkpoints", "Progress"]), ("netem", []), ("nalb", ["Scheme"])]
    assert list(imports_of(text)) == seen


def test_messages_name_the_public_face() -> None:
    """No text that a user may read tells to call something of a room that is not public."""
    for path in OURS:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).isupper()):
                for text in (one.value for one in ast.walk(node) if isinstance(one, ast.Constant)):
                    if isinstance(text, str) and " " in text:
                        assert not re.search(
                            r"kvstore_patch\.(batching|checkpoints|federated|fela)|kvstore_patch/", text
                        ), f"{path}: {text}"
