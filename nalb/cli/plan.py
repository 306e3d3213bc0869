"""`nalb plan`: prints the shares that a scheme gives for known capacities, in bytes per server, without running anything."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from nalb import toml_file, workloads
from nalb.cli.flags import HIGH_ALPHA_BYTES, OWN_HELP, links_of, name_of, of_levels, parse_number, tensors_of
from nalb.errors import InputError
from nalb.extensions import SCHEME_GROUP, schemes_with
from nalb.planning.distribution import Distribution, Situation
from nalb.planning.explanation import explain, explain_precisions
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.leaders import SitePlan
from nalb.planning.levels import both_ways, lan_load_bytes, uplink_load_bytes
from nalb.planning.nodes import Capacities, Node, Pair, completion_s, links_s, server_indices
from nalb.planning.precisions import ASKED, STEPS, PrecisionModel, Precisions, asked_for, cut_for
from nalb.planning.shares import level_bounds_s
from nalb.planning.slices import Layout, build_layout
from nalb.schemes import AUTO, SCHEMES
from nalb.units import bytes_per_s_to_mbps, mbps_to_bytes_per_s

HIGH_MBPS = 1e9  # 1 Pbit/s: a higher rate is a typing mistake
# The schemes whose plans need capacities alone.
PLANNED = tuple(name for name, one in SCHEMES.items() if not (one.routes_itself or one.sizes_batches))
PLANNED_HELP = f"default: {AUTO}; of: {', '.join(PLANNED)}{OWN_HELP}"
End = Annotated[str | int, Meta(description="a node's name or number")]
Mbps = Annotated[float, Meta(gt=0, le=HIGH_MBPS, description=f"a number above 0 and up to {HIGH_MBPS:g}")]


class _Link(Struct, frozen=True, forbid_unknown_fields=True):
    """A link in the file of --pairs. The other fields of links in network files are allowed and have no effect."""

    src: End
    dst: End
    mbps: Mbps
    delay_ms: Any = None
    jitter_ms: Any = None
    loss_percent: Any = None
    reorder_percent: Any = None


class _Links(Struct, frozen=True):
    """The part that a file of --pairs must have."""

    links: Annotated[list[_Link], Meta(description="each as [[links]] with src, dst and mbps")]


class _NamedNode(Struct, frozen=True):
    name: Annotated[str, Meta(description="a name")]


class _Nodes(Struct, frozen=True):
    """The part that a file of --pairs may have: names in place of n0, n1, ..."""

    nodes: Annotated[list[_NamedNode], Meta(description="each as [[nodes]] with a name")] | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--capacities-mbps", metavar="C,C,...", help="per node, Mbit/s; 100/200 is 100 up and 200 down")
    where.add_argument(
        "--network", metavar="NETWORK", help="network file, or the name of a carried one; rates at 0 s, sites too"
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
    parser.add_argument(
        "--precision",
        choices=ASKED,
        default=STEPS[0],
        help="of gradients on their way (default: float32); docs/precision.md",
    )
    parser.add_argument("--explain", action="store_true", help="also say which tensor goes to which server, and why")
    parser.add_argument(
        "--json", action="store_true", help="print JSON: shares (bytes per server), predicted_s, bound_s"
    )


def main(args: argparse.Namespace) -> int:
    """Make one plan and print it. Raises InputError."""
    scheme = schemes_with([args.scheme])[args.scheme]
    is_given = args.network is None
    nodes, capacities = _given(args.capacities_mbps, args.pairs) if is_given else _network(args.network, args.pairs)
    if not scheme.sums_by_sites:
        capacities = capacities.one_level
    tensors = tensors_of(args.replay, args.model_bytes)
    model, precisions = (
        PrecisionModel(nodes, tensors, capacities),
        asked_for(args.precision, nodes, tensors, capacities),
    )
    nodes = precisions.on(nodes, tensors)
    layout = build_layout(
        cut_for(tensors, precisions.answers),
        num_nodes=len(nodes),
        num_servers=len(server_indices(nodes)),
        alpha_bytes=parse_number("--alpha-bytes", args.alpha_bytes, HIGH_ALPHA_BYTES),
    )
    plan, reason = scheme.plan(
        Situation(0, nodes, layout, estimated=capacities, configured=capacities, sites=capacities.sites)
    )
    if plan is None:
        raise InputError(f"scheme {args.scheme!r} gives no plan from capacities alone: {reason}")
    explanation = explain(layout, plan, nodes, capacities) if args.explain else []
    is_rounded = args.precision != STEPS[0]
    if args.explain and is_rounded:
        explanation = [*explain_precisions(model, precisions), *explanation]
    predicted_s = completion_s(nodes, plan.target_shares, layout.model_bytes, capacities)
    if args.json:  # the bytes that the scheme asks for; the plan of whole slices comes near them, see --explain
        told = {"shares": list(plan.target_bytes), "predicted_s": predicted_s, "bound_s": plan.bound_s}
        if plan.by_site is not None:
            wan_s, lan_s = level_bounds_s(nodes, layout.model_bytes, capacities)
            told |= {"leads": list(plan.by_site.led_bytes), "wan_bound_s": wan_s, "lan_bound_s": lan_s}
        if is_rounded:
            told |= {"answers": precisions.answers, "pushes": list(precisions.pushes)}
            told |= {"whole_bound_s": model.exchange_s(Precisions.all_in(STEPS[0], nodes))}
        print(json.dumps(told | ({"explain": explanation} if args.explain else {})))
        return 0
    print("\n".join(_table(nodes, layout, plan, capacities)))
    if plan.by_site is not None:
        print("\n".join(_site_table(plan, plan.by_site, layout, capacities)))
        print(f"bound: {of_levels(*level_bounds_s(nodes, layout.model_bytes, capacities))}")
    if is_rounded:
        whole_s = model.exchange_s(Precisions.all_in(STEPS[0], nodes))
        pushes = ", ".join(f"{node.name} {one}" for node, one in zip(nodes, precisions.pushes, strict=True))
        print(f"answers {precisions.answers}; pushes {pushes}; bound with {STEPS[0]} alone {whole_s:.4g} s")
    print(f"{plan.scheme}: predicted {predicted_s:.4g} s, bound {plan.bound_s:.4g} s ({plan.reason})")
    if args.explain:
        print("\n".join(["", *explanation]))
    return 0


def _table(nodes: list[Node], layout: Layout, plan: Distribution, capacities: Capacities) -> list[str]:
    """The lines of the plan's table, one for each node."""
    if plan.by_site is None:
        times_s = links_s(nodes, plan.target_shares, layout.model_bytes, capacities)
    else:
        loads = lan_load_bytes(plan.by_site.sites, plan.held_shares, plan.by_site.led_shares, layout.model_bytes)
        times_s = (loads / capacities.rates).max(axis=0)
    lines = [f"{'server':<8}{'up Mbit/s':>11}{'down Mbit/s':>13}{'share bytes':>16}{'of model':>10}{'time s':>12}"]
    for i, node in enumerate(nodes):
        rates = f"{bytes_per_s_to_mbps(capacities.up[i]):>11g}{bytes_per_s_to_mbps(capacities.down[i]):>13g}"
        part = plan.target_bytes[i] / layout.model_bytes
        lines.append(f"{node.name:<8}{rates}{plan.target_bytes[i]:>16}{part:>10.1%}{times_s[i]:>12.4g}")
    return lines


def _site_table(plan: Distribution, by_site: SitePlan, layout: Layout, capacities: Capacities) -> list[str]:
    """The lines of the sites' table: each site's way to the others, the bytes that its machines own together, and the way's time.

    The way's rates are those of the site's uplink, or of its machines' links together where these are slower.
    """
    uplinks, sites = capacities.uplinks, by_site.sites
    assert uplinks is not None, "leaders come with uplinks"
    owned = plan.held_shares
    up, down = rates = both_ways(uplinks, capacities.rates)
    times_s = uplink_load_bytes(sites, owned, layout.model_bytes) / rates.min(axis=0)
    lines = [
        f"{'site':<8}{'up Mbit/s':>11}{'down Mbit/s':>13}{'share bytes':>16}{'of model':>10}{'time s':>12}{'leads bytes':>24}"
    ]
    for site, members in enumerate(sites.members):
        both = f"{bytes_per_s_to_mbps(up[site]):>11g}{bytes_per_s_to_mbps(down[site]):>13g}"
        share = int(owned[list(members)].sum())
        led = [by_site.led_bytes[node] for node in members]
        leads = f"{min(led)} to {max(led)}" if len(led) > 1 else "-"
        part = share / layout.model_bytes
        lines.append(f"{sites.names[site]:<8}{both}{share:>16}{part:>10.1%}{times_s[site]:>12.4g}{leads:>24}")
    return lines


def _given(capacities_mbps: str, pairs_file: str | None) -> tuple[list[Node], Capacities]:
    """The nodes and capacities in bytes per second that --capacities-mbps and --pairs give."""
    rates = [_parse_rate(word.strip()) for word in capacities_mbps.split(",")]
    names = [f"n{index}" for index in range(len(rates))]
    pairs = _read_pairs(Path(pairs_file), names) if pairs_file else {}
    capacities = Capacities.from_lists([up for up, _ in rates], [down for _, down in rates], pairs)
    return [Node(name) for name in names], capacities


def _network(file: str, pairs_file: str | None) -> tuple[list[Node], Capacities]:
    """The nodes and capacities in bytes per second that --network gives, at 0 s."""
    if pairs_file:
        raise InputError("--pairs is of --capacities-mbps: a network file says its caps itself")
    return links_of(file)


def _parse_rate(word: str) -> tuple[float, float]:
    """(up, down) in bytes per second, from '100' or '100/200' in Mbit/s."""
    halves = word.split("/")
    if len(halves) > 2:
        raise InputError(f"--capacities-mbps: {word!r} has {len(halves)} parts: write UP/DOWN, such as 100/200")
    rates = [mbps_to_bytes_per_s(parse_number("--capacities-mbps:", half, HIGH_MBPS)) for half in halves]
    return rates[0], rates[-1]


def _read_pairs(path: Path, names: list[str]) -> dict[Pair, float]:
    """Caps of pairs in bytes per second, from the [[links]] of a TOML or JSON file, which may be a whole network file."""
    text, source = toml_file.read_text(path, "file with [[links]]"), str(path)
    document = (
        _json(text, source)
        if path.suffix == ".json" or text.lstrip().startswith("{")
        else toml_file.parse(text, source)
    )
    links = toml_file.convert(document, _Links, source).links
    own = toml_file.convert(document, _Nodes, source).nodes
    if own is not None and len(own) != len(names):
        raise InputError(f"{path}: its nodes are not {len(names)} named ones, one per capacity: make the two agree")
    index = {name: k for k, name in enumerate(names if own is None else [node.name for node in own])}
    pairs: dict[Pair, float] = {}
    for number, link in enumerate(links):
        place = f"{path}: links[{number}]"
        pair = _node(link.src, f"{place}.src", index), _node(link.dst, f"{place}.dst", index)
        if pair[0] == pair[1]:
            raise InputError(f"{place}.dst is the same node as src: give two different nodes")
        if pair in pairs:
            raise InputError(f"{place} repeats {link.src} -> {link.dst}: give each directed pair once")
        pairs[pair] = mbps_to_bytes_per_s(link.mbps)
    return pairs


def _json(text: str, source: str) -> dict[str, Any]:
    """Parse a JSON document; a list stands for a document with these links alone."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: is not JSON ({error}): correct it") from None
    return document if isinstance(document, dict) else {"links": document}


def _node(end: str | int, place: str, index: Mapping[str, int]) -> int:
    """The number of the node that a link's end names."""
    number = index.get(end, -1) if isinstance(end, str) else end
    if not 0 <= number < len(index):
        raise InputError(f"{place} is {end!r}, which is no node: use n0 to n{len(index) - 1}, or the number")
    return number
