"""Network files: TOML in, a checked `Network` out. No clock and no namespaces: see schedule.py and emulation.py.

Every mistake is an InputError of one line that names the file, the field and what to do. Nothing is guessed: an unknown
field, a rate given twice or a change of an undeclared link is an error. docs/network-files.md is the manual.
"""

import os
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins

from nalb import toml_file
from nalb.errors import InputError, did_you_mean
from netem.network import Network
from netem.network_tables import HIGH_DELAY_MS, HIGH_MBPS, LOW_MBPS, Defaults, NetworkNode
from netem.traces import parse_trace

CARRIED_DIRECTORY = Path(__file__).parent / "networks"
TRACES = ("up_trace", "down_trace")  # the fields of files that give paths of traces


class _Given(Struct, frozen=True):
    """The part of a file that is read before all else: the defaults that each node takes over."""

    defaults: Defaults = Defaults()


class _Nodes(Struct, frozen=True):
    """The part of a file that is checked before the number of nodes."""

    nodes: list[NetworkNode]


def carried_networks() -> dict[str, Path]:
    """The networks that come with the package, by name."""
    return {path.stem: path for path in sorted(CARRIED_DIRECTORY.glob("*.toml"))}


def find_network(word: str) -> Path:
    """The file that a command line's FILE means: a path, or the bare name of a carried network.

    Raises InputError where the word is neither.
    """
    path = Path(word)
    if os.path.isfile(path) or "/" in word or word.endswith(".toml"):
        return path
    carried = carried_networks()
    if word not in carried:
        kind = f"'{word}' is a folder" if os.path.isdir(path) else f"no network file '{word}'"
        raise InputError(f"{kind}: {did_you_mean(word, carried)}give a path, or one of {', '.join(carried)}")
    return carried[word]


def load_network(path: str | Path) -> Network:
    """Read and check a network file. Raises InputError."""
    return parse_network(toml_file.read_text(path, "network file"), str(path))


def parse_network(text: str, source: str) -> Network:
    """Check the text of a network file; `source` names it in messages. Raises InputError."""
    document = toml_file.parse(text, source)
    defaults, nodes = document.pop("defaults", {}), document.get("nodes")
    toml_file.convert({"defaults": _untraced(defaults, source)}, _Given, source)
    if isinstance(nodes, list):
        document["nodes"] = [_with_defaults(defaults, node) if isinstance(node, dict) else node for node in nodes]
    _read_traces(document, source)
    if isinstance(nodes, list):  # a mistake in a node is told before one of their number
        toml_file.convert(document, _Nodes, source)
    return toml_file.convert(document, Network, source)


def _with_defaults(defaults: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A node's table with the defaults that it takes over: no rate where it gives a trace, no trace where it gives a rate."""
    instead = {"up_trace": "up_mbps", "down_trace": "down_mbps", "up_mbps": "up_trace", "down_mbps": "down_trace"}
    left_out = {other for name, other in instead.items() if name in node}
    return {name: value for name, value in defaults.items() if name not in left_out} | node


def _untraced(defaults: Any, source: str) -> Any:
    """The defaults less the paths of traces, which each node reads for itself. Raises InputError for a path that is none."""
    if not isinstance(defaults, dict):
        return defaults
    for name in TRACES:
        if name in defaults:
            _require_path(defaults[name], f"defaults.{name}", source)
    return {name: value for name, value in defaults.items() if name not in TRACES}


def _require_path(given: Any, place: str, source: str) -> None:
    if not isinstance(given, str):
        raise InputError(f"{source}: {place} is {given!r}: give the path of a trace file")


def _require_file(path: Path) -> None:
    """Raise InputError for a pipe, device or folder: it may have no end, and each node and site reads its traces anew."""
    if os.path.exists(path) and not os.path.isfile(path):
        raise InputError(f"{path}: is no regular file: give a trace file with lines of numbers")


def _read_traces(document: dict[str, Any], source: str) -> None:
    """Replace the paths of trace files, which are relative to the network file's folder, with the files' content."""
    for kind in ("nodes", "sites"):
        tables = document.get(kind)
        for index, table in enumerate(tables if isinstance(tables, list) else []):
            for name in TRACES:
                if not isinstance(table, dict) or name not in table:
                    continue
                place = f"{kind}[{index}].{name}"
                _require_path(table[name], place, source)
                path = Path(source).parent / table[name]
                try:
                    _require_file(path)
                    text = toml_file.read_text(path, "trace file", "lines of numbers")
                    trace = parse_trace(
                        text, str(path), (LOW_MBPS, HIGH_MBPS), HIGH_DELAY_MS, table.get("trace_end") != "hold"
                    )
                except InputError as error:
                    raise InputError(f"{source}: {place}: {error}") from None
                table[name] = to_builtins(trace)
