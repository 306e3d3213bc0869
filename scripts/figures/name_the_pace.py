"""Runs a campaign: does `nalb why` name what sets the pace, on simulated networks of every family?

A network has 4 to 8 nodes, drawn by its seed. Its job exchanges MobileNet's gradients, first LEARNING times under scheme exact,
which measures the links, then COUNTED times under the scheme in question: exact, average or stock, in turn. Every second network
has workers that also compute, each as long as its seed says. Messages are blurred (docs/simulation.md, "Noise"). The record is
written as the coordinator writes it, without the configured rates.

The truth does not come from what `nalb why` computes. It is the bytes that each directed pair carried in the simulation, added up
by link, pair, site and node's cores, over the rates of the network file; and each worker's computing. What needs longest sets the
pace. What needs at least LEVEL_PART of that time is level with it. A network counts as known where nothing else is; elsewhere
`nalb why` is right if it names one of those that are level.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import UNSET
from rich.console import Console
from rich.table import Table

from nalb.errors import NalbError
from nalb.events import AnyEvent, IterationEvent, ReadyEvent, encode_line
from nalb.measurement.cores import Work
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.nodes import Capacities, Floats, server_indices
from nalb.planning.slices import NUM_PROBE, Tensor
from nalb.planning.stock import route
from nalb.reporting.pace import Pace, paces
from nalb.reporting.record import read_timeline
from nalb.reporting.step_costs import LimitKind, Thing
from nalb.schemes import find_scheme
from nalb.services.exchange.decision import PlanOptions
from nalb.services.exchange.knowledge import FinishedIteration
from nalb.services.exchange.plan_events import explain_iteration, layout_event
from nalb.simulation.exchange import SimulatedExchange, exchange
from nalb.simulation.families import FAMILIES, DrawnNetwork, draw_network
from nalb.simulation.job import CORE_S_PER_BYTE, planner_of, work_of
from nalb.simulation.noise import Noise
from nalb.workloads import load

TENSORS = [Tensor(t.name, t.elements, t.dtype) for t in load("mobilenet")]
SCHEMES = ("exact", "average", "stock")
LEARNING, COUNTED = 6, 4  # iterations under exact, and then under the scheme in question
LOW_NODES, HIGH_NODES = 4, 8
CORES = 2.0  # the cores that all nodes of shared-cores share
LEVEL_PART = 0.95  # of the longest time: what needs this much is level with it
MOST_SEEDS = 400  # of a family, until enough networks are known

Way = tuple[str, str, str]  # kind, where, direction
Judge = Callable[[str, int, int], dict[str, Any]]  # family, seed, number within the family -> a row


@dataclass(frozen=True)
class Case:
    """One network, the scheme in question, and how long each worker computes in an iteration, in seconds; 0 for no worker."""

    network: DrawnNetwork
    scheme: str
    computing_s: Floats
    seed: int

    @property
    def names(self) -> list[str]:
        """The nodes' names."""
        return [node.name for node in self.network.nodes]


def draw_case(family: str, seed: int, number: int, scale: float = 1.0) -> Case:
    """The case of this number of a family, on the network of this seed. scale: factor of all rates."""
    draw = np.random.default_rng([seed, number])
    count = int(draw.integers(LOW_NODES, HIGH_NODES + 1))
    network = draw_network(family, count, seed, scale, CORES)
    scheme = SCHEMES[number % len(SCHEMES)]
    if scheme == "stock" and network.capacities.uplinks is not None:
        scheme = "average"  # stock has one level
    slowest = float(network.capacities.limit.min())
    whole_s = 2 * sum(t.size_bytes for t in TENSORS) / slowest
    computing_s = draw.uniform(0, 1, count) * draw.uniform(0, 2) * whole_s if number % 2 else np.zeros(count)
    return Case(network, scheme, computing_s * [node.is_worker for node in network.nodes], seed)


def carried_capacities(network: DrawnNetwork) -> Capacities:
    """What the network carries while the iterations in question run: after its first change, where it changes."""
    return network.changes[0][1] if network.changes else network.capacities


def events_of(case: Case) -> tuple[list[AnyEvent], list[SimulatedExchange]]:
    """The events that a coordinator would write of the job, and the exchanges in question."""
    network, nodes, names = case.network, case.network.nodes, case.names
    uplinks = network.capacities.uplinks
    sites = None if uplinks is None else uplinks.sites
    quotas = None if network.quotas is None else np.array(network.quotas)
    cores = None if quotas is None else quotas / CORE_S_PER_BYTE
    planner = planner_of(nodes, TENSORS, FIRST_ALPHA_BYTES, sites=sites)
    layout, by_rank = planner.layout, server_indices(nodes)
    by_name = UNSET if sites is None else dict(zip(names, sites.name_of_node, strict=True))
    now_s = 100.0
    events: list[AnyEvent] = [ReadyEvent(at_s=now_s, nodes=names, servers=[names[i] for i in by_rank], sites=by_name)]
    events.append(layout_event(layout, now_s, 0, FIRST_ALPHA_BYTES, None, NUM_PROBE))
    noise, counted = Noise((case.seed, 7)), []
    workers = [i for i, node in enumerate(nodes) if node.is_worker]
    for iteration in range(LEARNING + COUNTED):
        is_counted = iteration >= LEARNING
        word = case.scheme if is_counted else "exact"
        planned = planner.plan(iteration, 0, PlanOptions(find_scheme(word)))
        decision, message = planned.decision, planned.message
        if decision.plan is None:
            sizes, ranks = route(TENSORS, len(by_rank))
        else:
            sizes, ranks = layout.sizes_bytes, np.array(message.server_of_slice, dtype=np.int64)
        by_site = None if decision.plan is None else decision.plan.by_site
        capacities = carried_capacities(network) if is_counted or iteration >= LEARNING // 2 else network.capacities
        blur, window = noise.at(iteration), planned.windows or 0
        result = exchange(nodes, capacities, sizes, by_rank[ranks], window, noise=blur, cores=cores, by_site=by_site)
        work: Work | None = None if quotas is None else work_of(result, quotas)
        samples = result.samples if decision.is_measured else result.samples[:0]
        if decision.is_measured:
            planner.judge(FinishedIteration(samples, result.time_s, work=work), planned)
        else:
            planner.note_unmeasured(result.time_s)
        begun_s, start_s = now_s, now_s + float(case.computing_s.max())
        now_s = start_s + result.time_s
        took_s = {names[i]: float(result.finish_s[i]) for i in workers}
        event = IterationEvent(
            at_s=now_s,
            iteration=iteration,
            scheme=word,
            communication_s=took_s,
            iteration_s={name: start_s + one - begun_s for name, one in took_s.items()},
            plan_wait_s={names[i]: float(case.computing_s.max() - case.computing_s[i]) + 0.002 for i in workers},
            started_s=dict.fromkeys(took_s, start_s),
            computed_s={names[i]: begun_s + float(case.computing_s[i]) for i in workers},
            finished_s={name: start_s + one for name, one in took_s.items()},
            samples=len(samples),
        )
        events.append(explain_iteration(event, decision, planner.knowledge.now, layout, samples, planner.chosen))
        counted += [result] * is_counted
    return events, counted


def truth_of(case: Case, result: SimulatedExchange) -> dict[Way, float]:
    """What each thing needs, in seconds, by the bytes that were carried and the network file."""
    network = case.network
    found = transport_truth(carried_capacities(network), case.names, result.link_bytes)
    for i, name in enumerate(case.names):
        found["computing", name, ""] = float(case.computing_s[i])
        if network.quotas is not None:
            found["cores", name, ""] = CORE_S_PER_BYTE * _handled(result, i) / network.quotas[i]
    return found


def transport_truth(capacities: Capacities, names: list[str], carried: Floats) -> dict[Way, float]:
    """What each link, capped pair and site's link needs, in seconds. carried: bytes from node to node, shape (N, N)."""
    found: dict[Way, float] = {}
    uplinks = capacities.uplinks
    alone = set() if uplinks is None else {names[one[0]] for one in uplinks.sites.members if len(one) == 1}
    for i, name in enumerate(names):
        found["link", name, "up"] = carried[i].sum() / capacities.up[i]
        found["link", name, "down"] = carried[:, i].sum() / capacities.down[i]
    for (i, j), rate in capacities.pairs.items():
        found["capped pair", names[i], names[j]] = carried[i, j] / rate
    if uplinks is not None:
        place = uplinks.sites.place
        for k, site in enumerate(uplinks.sites.names):
            out, into = carried[place == k][:, place != k].sum(), carried[place != k][:, place == k].sum()
            machine = [name for name, of in zip(names, uplinks.sites.name_of_node, strict=True) if of == site]
            way = ("link", machine[0]) if machine[0] in alone else ("shared uplink", site)
            for direction, takes_s in (("up", out / uplinks.up[k]), ("down", into / uplinks.down[k])):
                found[(*way, direction)] = max(found.get((*way, direction), 0.0), takes_s)
    return found


def _handled(result: SimulatedExchange, node: int) -> float:
    """The payload bytes that a node's worker and server handle."""
    samples = result.samples
    ends = (samples["source"] == node).astype(np.int64) + (samples["target"] == node)
    return float((samples["size_bytes"] * ends).sum())


def ways_of(thing: Thing) -> set[Way]:
    """The ways that `nalb why` names by a thing."""
    if thing.kind is LimitKind.WAY:
        ends = ((thing.where, "up"), (thing.direction, "down"))
        return {(kind, *end) for kind in ("link", "shared uplink") for end in ends}
    directions = ["up", "down"] if thing.direction == "both" else [thing.direction]
    return {(thing.kind.value, thing.where, direction) for direction in directions}


def judged(case: Case) -> dict[str, Any]:
    """Ask `nalb why` of one case: a row of the file."""
    events, exchanges = events_of(case)
    needs = [truth_of(case, result) for result in exchanges]
    truth = {way: median(one[way] for one in needs) for way in needs[0]}
    with tempfile.TemporaryDirectory() as folder:
        lines = b"".join(encode_line(event) for event in events)
        (Path(folder) / "samples.jsonl").write_bytes(lines)
        pace = next(one for one in paces(read_timeline(Path(folder))) if one.scheme == case.scheme)
    return row_of(case, truth, pace)


def row_of(case: Case, truth: dict[Way, float], pace: Pace) -> dict[str, Any]:
    """The row: the truth, what was named, and whether that is right."""
    ranked = sorted(truth.items(), key=lambda one: -one[1])
    longest_s = ranked[0][1]
    level = {way for way, takes_s in ranked if takes_s >= LEVEL_PART * longest_s}
    one_link = {(way[0], way[1]) if way[0] in ("link", "shared uplink") else way for way in level}
    named = ways_of(pace.limits[0].thing)
    return {
        "seed": case.seed,
        "network": case.network.command,
        "scheme": case.scheme,
        "computes": bool(case.computing_s.any()),
        "is_known": len(one_link) == 1,
        "truth": [(*way, takes_s) for way, takes_s in ranked[:4]],
        "named": [(one.thing.words, one.takes_s, one.doubled_s, one.source.value) for one in pace.limits[:4]],
        "level": pace.level,
        "is_right": bool(named & level),
    }


def judged_by_number(family: str, seed: int, number: int) -> dict[str, Any]:
    """Ask `nalb why` of the simulated case of this number."""
    return judged(draw_case(family, seed, number))


def cases(family: str, first: int, wanted: int, judge: Judge) -> Iterator[dict[str, Any]]:
    """Rows of a family until so many networks are known; those whose things are level come between."""
    known = 0
    for seed in range(first, first + MOST_SEEDS):
        row = judge(family, seed, seed - first)
        known += row["is_known"]
        yield {"family": family, **row}
        if known == wanted:
            return


def main(doc: str | None = __doc__, families: Sequence[str] = tuple(FAMILIES), judge: Judge = judged_by_number) -> int:
    """Run the campaign, write its rows and print the table."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", default=",".join(families), help="comma-separated (default: all)")
    parser.add_argument("--first", type=int, default=1, help="seed of each family's first network (default: 1)")
    parser.add_argument("--networks", type=int, default=6, help="known ones of each family (default: 6)")
    parser.add_argument("--out", required=True, metavar="FILE", help="JSON lines, one for each network")
    args = parser.parse_args()
    table = Table(title="does `nalb why` name what sets the pace?")
    for heading in ("family", "known: right", "level: right", "not named (seed, scheme)"):
        table.add_column(heading)
    totals = np.zeros(4, dtype=np.int64)
    try:
        with open(args.out, "w", encoding="utf-8") as file:
            for family in args.families.split(","):
                rows = []
                for row in cases(family, args.first, args.networks, judge):
                    rows.append(row)
                    file.write(json.dumps(row) + "\n")
                    file.flush()
                    print(
                        f"{family} {row['seed']} {row['scheme']}: {'right' if row['is_right'] else 'WRONG'}",
                        file=sys.stderr,
                    )
                known, level = ([row for row in rows if row["is_known"] is flag] for flag in (True, False))
                counts = [
                    sum(row["is_right"] for row in known),
                    len(known),
                    sum(row["is_right"] for row in level),
                    len(level),
                ]
                totals += counts
                wrong = ", ".join(f"{row['seed']} {row['scheme']}" for row in rows if not row["is_right"])
                table.add_row(family, f"{counts[0]} of {counts[1]}", f"{counts[2]} of {counts[3]}", wrong)
    except NalbError as error:
        parser.exit(error.exit_code, f"{parser.prog}: {error}\n")
    except OSError as error:
        parser.exit(2, f"{parser.prog}: --out {args.out}: {error.strerror}: name a file that can be written\n")
    table.add_row("all", f"{totals[0]} of {totals[1]}", f"{totals[2]} of {totals[3]}", "")
    Console(width=120).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
