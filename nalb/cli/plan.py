"""`nalb plan`: the shares that a scheme gives for known capacities, in bytes per server, without running anything."""

import argparse
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from nalb import workloads
from nalb.cli.flags import HIGH_ALPHA_BYTES, OWN_HELP, name_of, parse_number, tensors_of
from nalb.errors import InputError
from nalb.extensions import SCHEME_GROUP, schemes_with
from nalb.planning.distribution import Distribution, Situation
from nalb.planning.explanation import explain
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.nodes import Capacities, Floats, Node, Pair, completion_s, load_bytes
from nalb.planning.slices import Layout, build_layout
from nalb.schemes import AUTO, SCHEMES
from nalb.units import bytes_per_s_to_mbps, mbps_to_bytes_per_s

HIGH_MBPS = 1e9  # 1 Pbit/s: above it is a typing mistake
# Whose plans need nothing but capacities.
PLANNED = tuple(name for name, one in SCHEMES.items() if not (one.routes_itself or one.sizes_batches))
PLANNED_HELP = f"default: {AUTO}; of: {', '.join(PLANNED)}{OWN_HELP}"
LINK_FIELDS = {"src", "dst", "mbps", "delay_ms", "jitter_ms", "loss_percent"}  # of a network file's [[links]]


def configure(parser: argparse.ArgumentParser) -> None:
    """The subcommand's arguments."""
    parser.add_argument(
        "--capacities-mbps", required=True, metavar="C,C,...", help="per node, Mbit/s; 100/200 is 100 up and 200 down"
    )
    parser.add_argument("--model-bytes", metavar="B", help="bytes of all gradients")
    parser.add_argument("--replay", choices=workloads.NAMES, help="take the model's tensors from a carried workload")
    parser.add_argument(
        "--pairs", metavar="FILE", help="TOML or JSON with [[links]] src, dst, mbps: caps of directed pairs"
    )
    parser.add_argument(
        "--scheme",
        type=name_of(PLANNED, SCHEME_GROUP),
        default=AUTO,
        metavar="S",
        help=PLANNED_HELP,
    )
    parser.add_argument(
        "--alpha-bytes",
        metavar="A",
        default=str(FIRST_ALPHA_BYTES),
        help="cost of a slice (default: 1000, as jobs begin)",
    )
    parser.add_argument("--explain", action="store_true", help="also say which tensor goes to which server, and why")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: shares (bytes per server), predicted_s, bound_s"
    )


def main(args: argparse.Namespace) -> int:
    """Plan once and print."""
    rates = [_parse_rate(word.strip()) for word in args.capacities_mbps.split(",")]
    names = [f"n{index}" for index in range(len(rates))]
    pairs = _read_pairs(Path(args.pairs), names) if args.pairs else {}
    capacities = Capacities.from_lists([up for up, _ in rates], [down for _, down in rates], pairs)
    nodes = [Node(name) for name in names]
    layout = build_layout(
        tensors_of(args.replay, args.model_bytes),
        num_nodes=len(nodes),
        num_servers=len(nodes),
        alpha_bytes=parse_number("--alpha-bytes", args.alpha_bytes, HIGH_ALPHA_BYTES),
    )
    plan, reason = schemes_with([args.scheme])[args.scheme].plan(
        Situation(0, nodes, layout, estimated=capacities, configured=capacities)
    )
    if plan is None:
        raise InputError(f"scheme {args.scheme!r} gives no plan from capacities alone: {reason}")
    explanation = explain(layout, plan, nodes, capacities) if args.explain else []
    if args.json:
        print(
            json.dumps(_as_json(nodes, layout, plan, capacities) | ({"explain": explanation} if args.explain else {}))
        )
    else:
        print("\n".join(_as_table(nodes, layout, plan, capacities) + (["", *explanation] if args.explain else [])))
    return 0


def _as_json(nodes: list[Node], layout: Layout, plan: Distribution, capacities: Capacities) -> dict[str, object]:
    """What the scheme asks for; whole slices come near it, see --explain."""
    shares = _floats(plan)
    predicted_s = completion_s(nodes, shares, layout.model_bytes, capacities)
    return {"shares": list(plan.target_bytes), "predicted_s": predicted_s, "bound_s": plan.bound_s}


def _as_table(nodes: list[Node], layout: Layout, plan: Distribution, capacities: Capacities) -> list[str]:
    shares = _floats(plan)
    times_s = load_bytes(nodes, shares, layout.model_bytes) / capacities.limit
    lines = [f"{'server':<8}{'up Mbit/s':>11}{'down Mbit/s':>13}{'share bytes':>16}{'of model':>10}{'time s':>12}"]
    for i, node in enumerate(nodes):
        rates = f"{bytes_per_s_to_mbps(capacities.up[i]):>11g}{bytes_per_s_to_mbps(capacities.down[i]):>13g}"
        part = plan.target_bytes[i] / layout.model_bytes
        lines.append(f"{node.name:<8}{rates}{plan.target_bytes[i]:>16}{part:>10.1%}{times_s[i]:>12.4g}")
    predicted_s = completion_s(nodes, shares, layout.model_bytes, capacities)
    lines.append(f"{plan.scheme}: predicted {predicted_s:.4g} s, bound {plan.bound_s:.4g} s ({plan.reason})")
    return lines


def _floats(plan: Distribution) -> Floats:
    return np.array(plan.target_bytes, dtype=np.float64)


def _parse_rate(word: str) -> tuple[float, float]:
    """(up, down) in bytes per second of '100' or '100/200' Mbit/s."""
    halves = word.split("/")
    if len(halves) > 2:
        raise InputError(f"--capacities-mbps: {word!r} has {len(halves)} parts: write UP/DOWN, such as 100/200")
    rates = [mbps_to_bytes_per_s(parse_number("--capacities-mbps:", half, HIGH_MBPS)) for half in halves]
    return rates[0], rates[-1]


def _read_pairs(path: Path, names: list[str]) -> dict[Pair, float]:
    """Caps in bytes per second from the [[links]] of a TOML or JSON file, which may be a whole network file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InputError(f"{path}: cannot be read ({reason}): give a file with [[links]]") from None
    is_json = path.suffix == ".json" or text.lstrip().startswith("{")
    try:
        document = json.loads(text) if is_json else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not {'JSON' if is_json else 'TOML'} ({error}): correct it") from None
    links = document.get("links") if isinstance(document, Mapping) else document
    if not isinstance(links, list):
        raise InputError(f"{path}: has no list 'links': write each as [[links]] with src, dst and mbps")
    index = {name: k for k, name in enumerate(_own_names(document, path, names))}
    pairs: dict[Pair, float] = {}
    for number, link in enumerate(links):
        place = f"{path}: links[{number}]"
        pair, rate = _parse_link(link, place, index, len(names))
        if pair in pairs:
            raise InputError(f"{place} repeats {link['src']} -> {link['dst']}: give each directed pair once")
        pairs[pair] = rate
    return pairs


def _own_names(document: object, path: Path, names: list[str]) -> list[str]:
    """The names of the file's [[nodes]] where it has some, which must be as many as the capacities; else n0, n1, ..."""
    rows = document.get("nodes") if isinstance(document, Mapping) else None
    if rows is None:
        return names
    own = [row.get("name") if isinstance(row, Mapping) else None for row in rows] if isinstance(rows, list) else []
    if len(own) != len(names) or not all(isinstance(name, str) for name in own):
        raise InputError(f"{path}: its nodes are not {len(names)} named ones, one per capacity: make the two agree")
    return [str(name) for name in own]


def _parse_link(link: object, place: str, index: dict[str, int], num_nodes: int) -> tuple[Pair, float]:
    if not isinstance(link, Mapping):
        raise InputError(f"{place} is {link!r}: make it a table with src, dst and mbps")
    for field in link:
        if field not in LINK_FIELDS:
            raise InputError(f"{place}.{field} is not a field of a link: use {', '.join(sorted(LINK_FIELDS))}")
    ends = []
    for field in ("src", "dst"):
        value = link.get(field)
        known = index.get(value) if isinstance(value, str) else value
        if isinstance(known, bool) or not isinstance(known, int) or not 0 <= known < num_nodes:
            raise InputError(
                f"{place}.{field} is {value!r}, which is no node: use n0 to n{num_nodes - 1}, or the number"
            )
        ends.append(known)
    if ends[0] == ends[1]:
        raise InputError(f"{place}.dst is the same node as src: give two different nodes")
    rate = link.get("mbps")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= HIGH_MBPS:
        raise InputError(f"{place}.mbps is {rate!r}: give a number above 0 and up to {HIGH_MBPS:g}")
    return (ends[0], ends[1]), mbps_to_bytes_per_s(rate)
