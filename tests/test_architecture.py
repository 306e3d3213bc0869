"""The house's rules that a machine can check: who may import what, and that the deciding rooms are pure."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from nalb.schemes import SCHEMES

ROOT = Path(__file__).resolve().parents[1]
# room -> the rooms of ours that it may import
ALLOWED = {
    "nalb.errors": set(),
    "nalb.units": set(),
    "nalb.toml_file": {"nalb.errors"},
    "nalb.failures": {"nalb.errors"},
    "nalb.events": {"nalb.failures"},
    "nalb.planning": {"nalb.errors", "nalb.units"},
    "nalb.schemes": {"nalb.errors", "nalb.planning"},
    "nalb.batching": {"nalb.errors", "nalb.planning"},
    "nalb.tokens": {"nalb.errors"},
    "nalb.measurement": {"nalb.errors", "nalb.units", "nalb.planning"},
    "nalb.extensions": {"nalb.errors", "nalb.planning", "nalb.measurement", "nalb.schemes"},
    "nalb.options": {
        "nalb.errors",
        "nalb.batching",
        "nalb.tokens",
        "nalb.measurement",
        "nalb.schemes",
        "nalb.extensions",
    },
    "nalb.settings": {"nalb.errors", "nalb.batching", "nalb.tokens", "nalb.planning", "nalb.schemes", "nalb.options"},
    "nalb.checkpoints": {"nalb.errors"},
    "nalb.feedback": set(),
    "nalb.protocol": {
        "nalb.options",
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.units",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.measurement",
        "nalb.feedback",
        "nalb.batching",
        "nalb.tokens",
    },
    "nalb.simulation": {
        "nalb.tokens",
        "nalb.errors",
        "nalb.events",
        "nalb.units",
        "nalb.schemes",
        "nalb.planning",
        "nalb.measurement",
        "nalb.feedback",
        "nalb.protocol",
    },
    "nalb.process": {"nalb.errors", "nalb.failures"},
    "nalb.transport": {
        "nalb.schemes",
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.settings",
        "nalb.batching",
        "nalb.measurement",
        "nalb.protocol",
        "nalb.process",
        "nalb.tokens",
    },
    "nalb.workloads": {"nalb.errors"},
    "nalb.reporting": {"nalb.errors", "nalb.events", "nalb.units"},
    "netem": {"nalb.errors", "nalb.units", "nalb.toml_file", "nalb.process"},
    "kvstore_patch": {
        "nalb.options",
        "nalb.extensions",
        "nalb.errors",
        "nalb.failures",
        "nalb.units",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.batching",
        "nalb.measurement",
        "nalb.protocol",
        "nalb.process",
        "nalb.transport",
        "nalb.checkpoints",
        "nalb.workloads",
        "nalb.tokens",
    },
    "nalb.launch": {
        "nalb.options",
        "nalb.errors",
        "nalb.toml_file",
        "nalb.failures",
        "nalb.events",
        "nalb.units",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.protocol",
        "nalb.transport",
        "nalb.process",
        "nalb.checkpoints",
        "netem",
        "kvstore_patch.shim",
    },
    "nalb.compare": {
        "nalb.tokens",
        "nalb.options",
        "nalb.extensions",
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.units",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.batching",
        "nalb.protocol",
        "nalb.process",
        "nalb.transport",
        "nalb.launch",
        "nalb.reporting",
        "nalb.workloads",
        "netem",
    },
    "nalb.doctor": {"nalb.errors", "nalb.process", "netem", "kvstore_patch.shim"},
    "nalb.cli": {"nalb", "netem"},  # commands call every room; no room calls them
}
PURE = (
    "nalb.failures",
    "nalb.events",
    "nalb.planning",
    "nalb.schemes",
    "nalb.batching",
    "nalb.tokens",
    "nalb.feedback",
    "nalb.measurement",
    "nalb.protocol",
    "nalb.simulation",
)
PURE_FORBIDDEN = {"time", "socket", "os", "threading", "logging", "subprocess", "random", "asyncio", "pathlib", "io"}


def imported(path: Path) -> set[str]:
    """Absolute names that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules(room: str) -> list[Path]:
    base = ROOT / room.replace(".", "/")
    return [base.with_suffix(".py")] if base.with_suffix(".py").exists() else sorted(base.rglob("*.py"))


def within(name: str, room: str) -> bool:
    return name == room or name.startswith(room + ".")


@pytest.mark.parametrize("room", ALLOWED)
def test_rooms_import_one_way(room):
    found = modules(room)
    assert found, f"{room} is gone: change this table"
    for path in found:
        for name in imported(path):
            if name.split(".")[0] in ("nalb", "netem", "kvstore_patch") and not within(name, room):
                assert name == "nalb" or any(within(name, other) for other in ALLOWED[room]), f"{path} imports {name}"


def test_commands_share_one_module():
    """A command parses, calls and prints: what two of them need stands in a room below, or is an option of both."""
    for path in modules("nalb.cli"):
        others = {name for name in imported(path) if within(name, "nalb.cli") and name != "nalb.cli"}
        assert path.name == "main.py" or all(within(name, "nalb.cli.flags") for name in others), (
            f"{path} imports {others}"
        )


def test_commands_compute_nothing():
    """What has arrays or statistics, or reads TOML, stands in a room below, where anyone may call it."""
    for path in modules("nalb.cli"):
        found = imported(path) & {"numpy", "scipy", "statistics", "tomllib"}
        assert not found, f"{path} imports {found}: move what needs it to the room that it concerns"


def test_a_schemes_record_is_asked_and_not_its_name():
    """What differs between schemes stands in nalb/schemes.py: nobody else compares with a scheme's name."""
    names = set(SCHEMES) - {"auto", "joint"}  # words of other choices too
    for path in [*modules("nalb"), *modules("kvstore_patch")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare):
                words = {
                    one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
                }
                assert not words & names, f"{path}:{node.lineno} compares with {words & names}: ask the record"


def test_every_module_is_in_a_room():
    for package in ("nalb", "netem", "kvstore_patch"):
        for path in modules(package):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            assert name == "nalb" or any(within(name, room) for room in ALLOWED), f"{path}: name its room in this table"


def test_rooms_form_no_circle():
    order = list(ALLOWED)
    for room, others in ALLOWED.items():
        for other in others - {"nalb", "netem"} if room == "nalb.cli" else others:
            home = next(one for one in order if within(other, one))
            assert order.index(home) < order.index(room), f"{room} may import {other}, which stands below it"


def test_every_room_is_needed_by_another():
    """What scripts alone need stands beside them, not in the wheel. Users start nalb.cli, and their scripts kvstore_patch."""
    paths = [path for package in ("nalb", "netem", "kvstore_patch") for path in modules(package)]
    for room in set(ALLOWED) - {"nalb.cli", "kvstore_patch"}:
        others = [path for path in paths if path not in modules(room)]
        assert any(within(name, room) for path in others for name in imported(path)), f"nothing imports {room}"


def test_each_heavy_library_stays_in_its_room():
    for library, room in (
        ("mxnet", "kvstore_patch"),
        ("pyroute2", "netem"),
        ("torch", "nalb.compare.peers"),
        ("statsmodels", "nalb.batching"),
    ):
        for package in ("nalb", "netem", "kvstore_patch"):
            for path in modules(package):
                if not path.is_relative_to(ROOT / room.replace(".", "/")):
                    assert not any(within(name, library) for name in imported(path)), f"{path} imports {library}"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms(room):
    for path in modules(room):
        heads = {name.split(".")[0] for name in imported(path)}
        assert not heads & PURE_FORBIDDEN, f"{path} imports {heads & PURE_FORBIDDEN}"
        tree = ast.parse(path.read_text())
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"open", "print", "input"}, f"{path} does I/O"
        attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used = {name for name in attributes if name.startswith("np.random.")}
        used -= {"np.random.Generator", "np.random.default_rng"}
        used = {name for name in used if not name.startswith("np.random.default_rng(")}  # its seed is checked below
        assert not used, f"{path} uses {used}: take a generator or its seed as an argument"
        assert "default_rng()" not in ast.unparse(tree), f"{path} seeds a generator from the machine: take a seed"


PROSE = {"detail", "error", "failure", "message", "reason", "why"}  # names of what people read
SEARCHES = {"count", "endswith", "find", "index", "partition", "rfind", "rpartition", "split", "startswith"}
# MXNet says in words alone that memory was too small, msgspec at which field. The doctor shows error and advice in two columns.
READS_WORDS = {"kvstore_patch/gluon/profiling.py", "nalb/doctor/software.py", "nalb/toml_file.py"}


def is_prose(node: ast.expr) -> bool:
    """Whether an expression is by its name a text for people, or an error's text."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "render", "repr"):
        return bool(node.args) and is_prose(node.args[0])
    return (isinstance(node, ast.Name) and node.id in PROSE) or (isinstance(node, ast.Attribute) and node.attr in PROSE)


def searched(tree: ast.AST) -> list[ast.expr]:
    """The expressions in which a module looks for something, or which it compares with a text."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(operator, ast.In | ast.NotIn):
                    found.append(right)
                elif any(isinstance(side, ast.Constant) and isinstance(side.value, str) for side in (left, right)):
                    found += [left, right]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES:
            found.append(node.func.value)
    return found


def test_no_code_reads_what_people_read():
    """Whatever code asks of a failure, an event or an error is a type or a field: words may change at any time."""
    for package in ("nalb", "netem", "kvstore_patch"):
        for path in modules(package):
            name = str(path.relative_to(ROOT))
            read = [ast.unparse(one) for one in searched(ast.parse(path.read_text())) if is_prose(one)]
            assert bool(read) == (name in READS_WORDS), f"{name} looks into {read}"


def test_nalbs_own_programs_start_in_one_way():
    """By nalb/process/own_program.py, which keeps the working folder off their path. Elsewhere this Python runs files alone."""
    files_alone = {"nalb/compare/run.py": "example", "netem/rootless.py": "sys.orig_argv"}  # what is run
    for package in ("nalb", "netem", "kvstore_patch"):
        for path in modules(package):
            name, tree = str(path.relative_to(ROOT)), ast.parse(path.read_text())
            if name == "nalb/process/own_program.py":
                continue
            commands = [ast.unparse(one) for one in ast.walk(tree) if isinstance(one, ast.List | ast.Tuple)]
            started = [one for one in commands if "sys.executable" in one and "dirname" not in one]
            assert all(name in files_alone and files_alone[name] in one for one in started), f"{name}: {started}"
            assert not any(isinstance(one, ast.Constant) and one.value == "-m" for one in ast.walk(tree)), name


def test_no_tracked_file_names_a_path_of_a_machine():
    for path in ROOT.rglob("*"):
        if path.suffix in (".py", ".sh", ".md", ".toml", ".c", ".h") and not {".venv", "build"} & set(path.parts):
            assert not re.search(r"(?<![\w.])/(root|home|work)/\w", path.read_text(encoding="utf-8")), path


def comments_and_docstrings(path: Path) -> str:
    """What a module says to its readers."""
    source = path.read_text(encoding="utf-8")
    said = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    said += [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, documented)]
    return "\n".join(said)


def test_comments_name_modules_and_pages_that_exist():
    """By a path in the tree or its last part. `train.py` stands for a script of the user's."""
    tops = ("benchmarks", "docs", "examples", "kvstore_patch", "nalb", "netem", "scripts", "tests")
    ours = [
        *ROOT.glob("*.md"),
        *(path for top in tops for path in (ROOT / top).rglob("*.*") if path.suffix in (".py", ".md")),
    ]
    known = {"/train.py"} | {"/" + path.relative_to(ROOT).as_posix() for path in ours}
    for path in ours:
        if path.suffix == ".py":
            for name in re.findall(r"(?<![\w./*<{-])[\w-]+(?:/[\w-]+)*\.(?:py|md)\b", comments_and_docstrings(path)):
                assert any(one.endswith("/" + name) for one in known), f"{path} names {name}, which is gone"


def test_sums_need_no_front_end():
    """The store is one front end of the exchange, Gluon's glue comes on top: neither is needed by another front end."""
    store = ROOT / "kvstore_patch" / "store"
    for path in store.glob("*.py"):
        ours = {name for name in imported(path) if within(name, "kvstore_patch")}
        below = {name for name in ours if within(name, "kvstore_patch.store") or within(name, "kvstore_patch.shim")}
        assert ours == below, f"{path} imports {ours - below}"
        assert "kvstore_patch.store.kvstore" not in ours, f"{path} imports the front end"
