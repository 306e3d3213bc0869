"""The house's rules that a machine can check: who may import what, and that the deciding rooms are pure."""

import ast
import io
import re
import tokenize
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from nalb.measurement.rules import Rules
from nalb.schemes import SCHEMES

ROOT = Path(__file__).resolve().parents[1]
# room -> the rooms of ours that it may import
ALLOWED = {
    "nalb.errors": set(),
    "nalb.units": set(),
    "nalb.extras": {"nalb.errors"},
    "nalb.toml_file": {"nalb.errors"},
    "nalb.failures": {"nalb.errors"},
    "nalb.events": {"nalb.failures"},
    "nalb.planning": {"nalb.errors", "nalb.units"},
    "nalb.schemes": {"nalb.errors", "nalb.planning"},
    "nalb.batching": {"nalb.errors", "nalb.extras", "nalb.planning"},
    "nalb.tokens": {"nalb.errors"},
    "nalb.measurement": {"nalb.errors", "nalb.units", "nalb.planning"},
    "nalb.extensions": {"nalb.errors", "nalb.planning", "nalb.measurement", "nalb.schemes"},
    "nalb.options": {
        "nalb.errors",
        "nalb.planning",
        "nalb.batching",
        "nalb.tokens",
        "nalb.measurement",
        "nalb.schemes",
        "nalb.extensions",
    },
    "nalb.settings": {"nalb.errors", "nalb.batching", "nalb.tokens", "nalb.planning", "nalb.schemes", "nalb.options"},
    "nalb.feedback": {"nalb.measurement.rules"},
    "nalb.protocol": {
        "nalb.options",
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.settings",
        "nalb.planning",
        "nalb.measurement",
    },
    "nalb.services.joining": {"nalb.errors", "nalb.failures", "nalb.protocol"},
    "nalb.services.exchange": {
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.measurement",
        "nalb.feedback",
        "nalb.batching.joint_control",
        "nalb.protocol",
    },
    "nalb.services.batching": {
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.settings",
        "nalb.planning.nodes",
        "nalb.batching",
        "nalb.protocol",
        "nalb.services.joining",
    },
    "nalb.services.tokens": {
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.tokens",
        "nalb.protocol",
        "nalb.services.joining",
    },
    # composition.py alone knows all services
    "nalb.services": {
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.measurement",
        "nalb.feedback",
        "nalb.batching",
        "nalb.tokens",
        "nalb.protocol",
    },
    # ps-lite's keys and slots, without MXNet
    "kvstore_patch.keys": {"nalb.errors", "nalb.planning", "nalb.services.exchange"},
    # it simulates jobs on ps-lite
    "nalb.simulation": {
        "kvstore_patch.keys",
        "nalb.tokens",
        "nalb.errors",
        "nalb.events",
        "nalb.units",
        "nalb.schemes",
        "nalb.planning",
        "nalb.measurement",
        "nalb.feedback",
        "nalb.services.exchange",
    },
    "nalb.process": {"nalb.errors", "nalb.failures"},
    "nalb.checkpoints": {"nalb.errors", "nalb.process.address", "nalb.process.private_file"},
    "nalb.transport": {
        "nalb.schemes",
        "nalb.errors",
        "nalb.failures",
        "nalb.events",
        "nalb.settings",
        "nalb.batching",
        "nalb.measurement",
        "nalb.feedback",
        "nalb.services",
        "nalb.protocol",
        "nalb.process",
        "nalb.tokens",
    },
    "nalb.workloads": {"nalb.errors"},
    "nalb.plane": {  # the data plane without a framework
        "nalb.errors",
        "nalb.failures",
        "nalb.extensions",
        "nalb.settings",
        "nalb.planning",
        "nalb.feedback",
        "nalb.batching",
        "nalb.protocol",
        "nalb.services",
        "nalb.process",
        "nalb.transport",
        "nalb.workloads",
    },
    "nalb.reporting": {
        "nalb.errors",
        "nalb.events",
        "nalb.units",
        "nalb.planning",
        "nalb.schemes",
        "nalb.feedback",
    },
    "nalb.live": {
        "nalb.errors",
        "nalb.events",
        "nalb.failures",
        "nalb.units",
        "nalb.process",
        "nalb.reporting",
    },
    "netem": {"nalb.errors", "nalb.units", "nalb.toml_file", "nalb.process"},
    "kvstore_patch": {
        "nalb.options",
        "nalb.extras",
        "nalb.extensions",
        "nalb.errors",
        "nalb.failures",
        "nalb.units",
        "nalb.settings",
        "nalb.schemes",
        "nalb.planning",
        "nalb.batching",
        "nalb.measurement",
        "nalb.services",
        "nalb.protocol",
        "nalb.process",
        "nalb.transport",
        "nalb.checkpoints",
        "nalb.workloads",
        "nalb.tokens",
    },
    "nalb.launch": {
        "nalb.extras",
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
        "nalb.plane.rendezvous",
        "netem",
        "kvstore_patch.shim",
    },
    "nalb.compare": {
        "nalb.extras",
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
    "nalb.doctor": {"nalb.errors", "nalb.extras", "nalb.process", "netem", "kvstore_patch.shim"},
    # hands on what scripts import, as the only module of nalb that loads MXNet
    "nalb.mxnet": {"nalb.errors", "nalb.extras", "nalb.batching", "kvstore_patch"},
    "nalb.torch": {  # torch's front end of the plane
        "nalb.errors",
        "nalb.failures",
        "nalb.options",
        "nalb.schemes",  # the name of the one that is gloo alone
        "nalb.settings",
        "nalb.batching",
        "nalb.process",
        "nalb.protocol",
        "nalb.services.batching",
        "nalb.plane",
        "nalb.checkpoints",
    },
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
    "nalb.services",
    "nalb.simulation",
    "kvstore_patch.keys",
    "nalb.plane.cycle",
    "nalb.plane.orders",
)
PURE_FORBIDDEN = {"time", "socket", "os", "threading", "logging", "subprocess", "random", "asyncio", "pathlib", "io"}


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> set[str]:
    """Absolute names that a module imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree_of(path)):
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
        for node in ast.walk(tree_of(path)):
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
    """What scripts alone need stands beside them, not in the wheel. Users start nalb.cli; their scripts import the doors."""
    paths = [path for package in ("nalb", "netem", "kvstore_patch") for path in modules(package)]
    for room in set(ALLOWED) - {"nalb.cli", "nalb.mxnet", "nalb.torch"}:
        others = [path for path in paths if path not in modules(room)]
        assert any(within(name, room) for path in others for name in imported(path)), f"nothing imports {room}"


def test_each_heavy_library_stays_in_its_room():
    for library, *rooms in (
        ("mxnet", "kvstore_patch"),
        ("pyroute2", "netem"),
        ("torch", "nalb.compare.peers", "nalb.torch"),
        ("statsmodels", "nalb.batching"),
        ("prometheus_client", "nalb.live"),
    ):
        for package in ("nalb", "netem", "kvstore_patch"):
            for path in modules(package):
                if not any(path.is_relative_to(ROOT / room.replace(".", "/")) for room in rooms):
                    assert not any(within(name, library) for name in imported(path)), f"{path} imports {library}"
    for path in modules("kvstore_patch.keys"):  # which the simulator needs
        assert not any(within(name, "mxnet") for name in imported(path)), f"{path} imports mxnet"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms(room):
    for path in modules(room):
        heads = {name.split(".")[0] for name in imported(path)}
        assert not heads & PURE_FORBIDDEN, f"{path} imports {heads & PURE_FORBIDDEN}"
        tree = tree_of(path)
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert not names & {"open", "print", "input"}, f"{path} does I/O"
        attributes = {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used = {name for name in attributes if name.startswith("np.random.")}
        used -= {"np.random.Generator", "np.random.default_rng"}
        used = {name for name in used if not name.startswith("np.random.default_rng(")}  # its seed is checked below
        assert not used, f"{path} uses {used}: take a generator or its seed as an argument"
        assert "default_rng()" not in ast.unparse(tree), f"{path} seeds a generator from the machine: take a seed"


PROSE = {"detail", "error", "failure", "message", "reason", "why"}  # names of what people read
MATCHES = {"findall", "finditer", "fullmatch", "get", "match", "search"}  # of a pattern or a table, in such a text
SEARCHES = {"count", "endswith", "find", "index", "partition", "rfind", "rpartition", "split", "startswith"}
# MXNet says in words alone that memory was too small, msgspec at which field. The doctor shows error and advice in two columns.
READS_WORDS = {"kvstore_patch/gluon/profiling.py", "nalb/doctor/software.py", "nalb/toml_file.py"}


PROGRAMS = ("scripts", "benchmarks", "examples")  # which read what nalb gives them
# Constants of several words that are no prose: a file's first line, values of a flag, the rows of a trace.
NAMES = {"TITLE", "VARIANTS", "FIRST"}
Words = ast.Tuple | ast.List | ast.Set | ast.Dict


def is_prose(node: ast.expr) -> bool:
    """Whether an expression is by its name a text for people, or an error's text."""
    if isinstance(node, ast.NamedExpr):
        return is_prose(node.target) or is_prose(node.value)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("str", "render", "repr"):
        return bool(node.args) and is_prose(node.args[0])
    return (isinstance(node, ast.Name) and node.id in PROSE) or (isinstance(node, ast.Attribute) and node.attr in PROSE)


def is_sentence(node: ast.expr, names: set[str]) -> bool:
    """Whether it is several words, or a collection of such, or of what is named so. names: of constants that are."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and re.search(r"[a-z] [a-z]", node.value) is not None
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "frozenset":
        return any(is_sentence(one, names) for one in node.args)
    if isinstance(node, ast.Dict):  # a table from words to something; what it says of its keys is only shown
        return any(is_sentence(one, names) for one in node.keys if one is not None)
    if isinstance(node, Words):
        return any(is_sentence(one, names) for one in node.elts)
    return isinstance(node, ast.Name) and node.id in names


def sentences(tree: ast.Module) -> set[str]:
    """The names that a module gives to words for people, and to collections of such."""
    names: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
            pairs = zip(target.elts, node.value.elts, strict=True) if several else [(target, node.value)]
            names |= {one.id for one, given in pairs if isinstance(one, ast.Name) and is_sentence(given, names)}
    return names - NAMES


def looked_into(tree: ast.AST, named: set[str]) -> list[str]:
    """Where a module lets words for people decide. One such text may be compared with another, to say only what is new.

    named: constants for people, of all modules.
    """

    def is_constant(node: ast.expr) -> bool:
        return (isinstance(node, ast.Name) and node.id in named) or (
            isinstance(node, ast.Attribute) and node.attr in named
        )

    def is_text(node: ast.expr) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str)

    found: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, sides, sides[1:], strict=False):
                if isinstance(operator, ast.In | ast.NotIn):
                    is_read = is_prose(right) or is_constant(right) or (is_prose(left) and isinstance(right, Words))
                else:
                    known = [is_text(side) or is_constant(side) for side in (left, right)]
                    is_read = any(map(is_constant, (left, right))) or (any(known) and any(map(is_prose, (left, right))))
                found += [node] * is_read
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            is_search = node.func.attr in SEARCHES and is_prose(node.func.value)
            is_match = node.func.attr in MATCHES and any(map(is_prose, node.args))
            found += [node] * (is_search or is_match)
        elif (isinstance(node, ast.Subscript) and is_prose(node.slice)) or (
            isinstance(node, ast.Match) and is_prose(node.subject)
        ):
            found.append(node)
    return [ast.unparse(one).partition("\n")[0] for one in found]


def test_no_code_reads_what_people_read():
    """Whatever code asks of a failure, an event or an error is a type or a field: words may change at any time."""
    paths = [path for package in ("nalb", "netem", "kvstore_patch") for path in modules(package)]
    paths += [path for folder in PROGRAMS for path in sorted((ROOT / folder).rglob("*.py"))]
    trees = {str(path.relative_to(ROOT)): tree_of(path) for path in paths}
    named = {name for tree in trees.values() for name in sentences(tree)}
    read = {name: found for name, tree in trees.items() if (found := looked_into(tree, named))}
    assert read.keys() == READS_WORDS, read


@pytest.mark.parametrize(
    "code",
    [
        "if event.reason == 'too late': pass",
        "if self.reason == NOT_NEEDED: pass",
        "if reason not in EQUAL_BY_NEED: pass",
        "if reason in ('a', 'b'): pass",
        "if last in EQUAL_BY_NEED: pass",
        "if last == NOT_NEEDED: pass",
        "if ENDED not in (reason := one.reason): pass",
        "if 'is full' in str(error): pass",
        "if event.reason != RAPID: pass",
        "reason.startswith('x')",
        "WORDS.search(reason)",
        "KINDS[event.reason]",
        "KINDS.get(event.reason)",
        "match event.reason:\n    case 'x': pass",
    ],
)
def test_words_that_decide_are_seen(code):
    constants = """
NOT_NEEDED = "plans take no less"
NEED, ENDED = "until measured", "the best of"
EQUAL_BY_NEED = (NEED, NOT_NEEDED)
RAPID: str = "rapid tuning"
KIND = "rapid"
"""
    named = sentences(ast.parse(constants))
    assert named == {"NOT_NEEDED", "NEED", "ENDED", "EQUAL_BY_NEED", "RAPID"}
    assert len(looked_into(ast.parse(code), named)) == 1


@pytest.mark.parametrize(
    "code",
    [
        "if reason is None: pass",
        "if error <= allowed: pass",
        "if reason != self.reason: pass",
        "if kind == KIND: pass",
        "print(reason, NOT_NEEDED)",
    ],
)
def test_words_that_are_only_shown_are_not(code):
    assert looked_into(ast.parse(code), {"NOT_NEEDED"}) == []


def test_nalbs_own_programs_start_in_one_way():
    """By nalb/process/own_program.py, which keeps the working folder off their path. Elsewhere this Python runs files alone."""
    files_alone = {"nalb/compare/run.py": "example", "netem/rootless.py": "sys.orig_argv"}  # what is run
    for package in ("nalb", "netem", "kvstore_patch"):
        for path in modules(package):
            name, tree = str(path.relative_to(ROOT)), tree_of(path)
            if name == "nalb/process/own_program.py":
                continue
            commands = [ast.unparse(one) for one in ast.walk(tree) if isinstance(one, ast.List | ast.Tuple)]
            started = [one for one in commands if "sys.executable" in one and "dirname" not in one]
            assert all(name in files_alone and files_alone[name] in one for one in started), f"{name}: {started}"
            assert not any(isinstance(one, ast.Constant) and one.value == "-m" for one in ast.walk(tree)), name


def test_named_tuples_are_of_one_type():
    """Python 3.10 has no generic ones, which neither vermin nor mypy knows. kvstore_patch runs on 3.11 alone."""
    for path in [*modules("nalb"), *modules("netem")]:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef) and "NamedTuple" in map(ast.unparse, node.bases):
                assert len(node.bases) == 1, f"{path}: {node.name} is a NamedTuple and more: make it a dataclass"


def test_no_tracked_file_names_a_path_of_a_machine():
    for path in ROOT.rglob("*"):
        is_ours = not {".venv", ".venv-torch", "build"} & set(path.parts)
        if is_ours and path.suffix in (".py", ".sh", ".md", ".toml", ".c", ".h"):
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
    said += [ast.get_docstring(node) or "" for node in ast.walk(tree_of(path)) if isinstance(node, documented)]
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
        below = {
            name for name in ours if any(within(name, f"kvstore_patch.{room}") for room in ("store", "shim", "keys"))
        }
        assert ours == below, f"{path} imports {ours - below}"
        assert "kvstore_patch.store.kvstore" not in ours, f"{path} imports the front end"


def constants(path: Path) -> dict[str, str]:
    """The constants that a module defines, and their values as written."""
    found = {}
    for node in tree_of(path).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                both = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                pairs = zip(target.elts, node.value.elts, strict=True) if both else [(target, node.value)]
                found |= {ast.unparse(name): ast.unparse(value) for name, value in pairs}
    return {name: value for name, value in found.items() if name.isupper()}


def test_a_constant_of_measurement_or_feedback_means_one_thing():
    """Nowhere else in nalb has a constant of that name another value."""
    everywhere = [(path, name, value) for path in modules("nalb") for name, value in constants(path).items()]
    for room in ("nalb.measurement", "nalb.feedback"):
        for path in modules(room):
            for name, value in constants(path).items():
                others = [str(other) for other, one, its in everywhere if one == name and its != value]
                assert not others, f"{path}: {name} is another number in {others}"


# A user's class for each framework, and the coordinator's message that answers it, have the same name.
OF_EACH_FRAMEWORK = {"BatchSizes", "Checkpoints", "JobFinished"}


def test_a_class_name_means_one_thing():
    named: dict[str, list[str]] = {}
    for path in (path for room in ("nalb", "kvstore_patch", "netem") for path in modules(room)):
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                named.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in named.items() if len(paths) > 1 and name not in OF_EACH_FRAMEWORK} == {}


def test_every_rule_is_read():
    """Each field of Rules decides something, in measurement or feedback."""
    paths = [*modules("nalb.measurement"), *modules("nalb.feedback")]
    nodes = [node for path in paths for node in ast.walk(tree_of(path))]
    read = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    assert not {field.name for field in fields(Rules)} - read


# Private names of MXNet, Gluon, PyTorch and the library that tests use, and public ones that begin with an underscore.
FOREIGN = {"_LIB", "_barrier", "_exit", "_kvstore", "_replace", "_send_command_to_servers", "_set_updater"}
FOREIGN |= {"_get_ddp_logging_data", "_update_on_kvstore"}
REACHES_MOST = 9


def reaches(tree: ast.AST) -> list[str]:
    """Where a test uses a private name of another object or module: as an attribute, by an import, or to replace it."""

    def is_private(name: object) -> bool:
        last = name.rpartition(".")[2] if isinstance(name, str) else ""
        return re.match(r"_(?!_)", last) is not None and last not in FOREIGN

    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr):
            found += [ast.unparse(node)] * (ast.unparse(node.value) not in ("self", "cls", "super()", "sys"))
        elif isinstance(node, ast.ImportFrom):
            found += [f"{node.module}.{alias.name}" for alias in node.names if is_private(alias.name)]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("setattr"):
            found += [ast.unparse(node) for one in node.args if isinstance(one, ast.Constant) and is_private(one.value)]
    return found


def test_tests_use_public_names():
    """Whatever a test needs is part of an interface, or is passed as an argument."""
    trees = {path: tree_of(path) for path in sorted((ROOT / "tests").rglob("*.py"))}
    found = {str(path.relative_to(ROOT)): there for path, tree in trees.items() if (there := reaches(tree))}
    assert sum(map(len, found.values())) <= REACHES_MOST, found


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("one._inbox", 1),
        ("self.one._inbox.get()", 1),
        ("from nalb.transport.server import _flush, sample_rows", 1),
        ("monkeypatch.setattr(client, '_wake', wake)", 1),
        ("monkeypatch.setattr('nalb.process.address._towards', towards)", 1),
        ("self._inbox, __version__, one.__dict__, store._barrier(), far._replace(x=1)", 0),
    ],
)
def test_uses_of_private_names_are_seen(code, count):
    assert len(reaches(ast.parse(code))) == count
