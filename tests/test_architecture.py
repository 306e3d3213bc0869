"""The house's rules that a machine can check: who may import what, and that the deciding rooms are pure."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# room -> the rooms of ours that it may import
ALLOWED = {
    "nalb.errors": set(),
    "nalb.units": set(),
    "nalb.toml_file": {"nalb.errors"},
    "nalb.planning": {"nalb.errors", "nalb.units"},
    "nalb.batching": {"nalb.errors", "nalb.planning"},
    "nalb.settings": {"nalb.errors", "nalb.batching"},
    "nalb.checkpoints": {"nalb.errors"},
    "nalb.measurement": {"nalb.errors", "nalb.units", "nalb.planning"},
    "nalb.feedback": set(),
    "nalb.protocol": {
        "nalb.errors",
        "nalb.units",
        "nalb.settings",
        "nalb.planning",
        "nalb.measurement",
        "nalb.feedback",
        "nalb.batching",
    },
    "nalb.simulation": {"nalb.errors", "nalb.units", "nalb.planning", "nalb.measurement", "nalb.protocol"},
    "nalb.process": {"nalb.errors"},
    "nalb.transport": {
        "nalb.errors",
        "nalb.settings",
        "nalb.batching",
        "nalb.measurement",
        "nalb.protocol",
        "nalb.process",
    },
    "nalb.workloads": {"nalb.errors"},
    "nalb.reporting": {"nalb.errors", "nalb.units"},
    "netem": {"nalb.errors", "nalb.units", "nalb.toml_file", "nalb.process"},
    "kvstore_patch": {
        "nalb.errors",
        "nalb.units",
        "nalb.settings",
        "nalb.planning",
        "nalb.batching",
        "nalb.measurement",
        "nalb.protocol",
        "nalb.process",
        "nalb.transport",
        "nalb.checkpoints",
        "nalb.workloads",
    },
    "nalb.launch": {
        "nalb.errors",
        "nalb.toml_file",
        "nalb.units",
        "nalb.settings",
        "nalb.planning",
        "nalb.protocol",
        "nalb.transport",
        "nalb.process",
        "nalb.checkpoints",
        "netem",
        "kvstore_patch.shim",
    },
    "nalb.compare": {
        "nalb.errors",
        "nalb.units",
        "nalb.settings",
        "nalb.planning",
        "nalb.batching",
        "nalb.protocol",
        "nalb.transport",
        "nalb.launch",
        "nalb.reporting",
        "nalb.workloads",
        "netem",
    },
    "nalb.doctor": {"nalb.errors", "netem", "kvstore_patch.shim"},
    "nalb.experiments": {
        "nalb.errors",
        "nalb.units",
        "nalb.planning",
        "nalb.simulation",
        "nalb.workloads",
        "nalb.launch",
        "nalb.compare",
        "nalb.reporting",
        "netem",
    },
    "nalb.cli": {"nalb", "netem"},  # commands call every room; no room calls them
}
PURE = ("nalb.planning", "nalb.batching", "nalb.feedback", "nalb.measurement", "nalb.protocol", "nalb.simulation")
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


def test_no_tracked_file_names_a_path_of_a_machine():
    import re

    for path in ROOT.rglob("*"):
        if path.suffix in (".py", ".sh", ".md", ".toml", ".c", ".h") and not {".venv", "build"} & set(path.parts):
            assert not re.search(r"(?<![\w.])/(root|home|work)/\w", path.read_text(encoding="utf-8")), path


def test_sums_need_no_front_end():
    """The store is one front end of the exchange, Gluon's glue comes on top: neither is needed by another front end."""
    store = ROOT / "kvstore_patch" / "store"
    for path in store.glob("*.py"):
        ours = {name for name in imported(path) if within(name, "kvstore_patch")}
        below = {name for name in ours if within(name, "kvstore_patch.store") or within(name, "kvstore_patch.shim")}
        assert ours == below, f"{path} imports {ours - below}"
        assert "kvstore_patch.store.kvstore" not in ours, f"{path} imports the front end"
