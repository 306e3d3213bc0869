"""Simulates several synchronisations of one scheme in a row: the scheme plans each with its observations of those before.

`by_slices` sends the slices that a scheme plans with true capacities. `by_planner` sends those of the coordinator's own planner,
which learns from the simulated messages. `by_flows` simulates shares alone, for thousands of nodes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kvstore_patch.keys.plane import PS_LITE
from nalb.errors import InputError
from nalb.feedback.window import with_room
from nalb.measurement.cores import Work
from nalb.measurement.estimators import DEFAULT_ESTIMATOR, ESTIMATORS, Estimator
from nalb.measurement.rules import RULES, Rules
from nalb.measurement.traffic import Traffic
from nalb.planning.distribution import Situation
from nalb.planning.elastic import ServerObservation
from nalb.planning.nodes import (
    Capacities,
    CoreTimes,
    Floats,
    Node,
    linear_load,
    server_indices,
)
from nalb.planning.sites import Sites
from nalb.planning.slices import Ints, Layout, Tensor
from nalb.planning.stock import route
from nalb.schemes import SCHEMES as NALB_SCHEMES
from nalb.schemes import Scheme, find_scheme
from nalb.services.exchange.decision import PlanOptions
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.knowledge import FinishedIteration, slice_pace
from nalb.services.exchange.messages import TensorSpec
from nalb.services.exchange.planner import Planner, new_planner
from nalb.simulation.exchange import WITH_HEADERS, MessageWeight, SimulatedExchange, exchange
from nalb.simulation.flows import MAX_CLASSES, flow
from nalb.simulation.noise import Noise

CORE_S_PER_BYTE = 5e-9  # time of a core for each byte, at either end (docs/results/cost.md)
# The schemes that can be simulated, each by its own name.
SCHEMES = {name: one for name, one in NALB_SCHEMES.items() if one.is_simulated and name == one.name}


def by_slices(
    scheme: str,
    nodes: Sequence[Node],
    layout: Layout,
    capacities: Capacities,
    rounds: int,
    inflight_bytes: float | Sequence[float],
    wire: MessageWeight = WITH_HEADERS,
    noise: Noise | None = None,
    quotas: Floats | None = None,
    schemes: Mapping[str, Scheme] = SCHEMES,
) -> list[SimulatedExchange]:
    """`rounds` synchronisations under a scheme that knows the true capacities. Raises InputError.

    A scheme that can sum by sites does so where the capacities have sites. quotas: cores of each node, shape (N,): each byte that
    comes or goes takes CORE_S_PER_BYTE of a core; None: no limit.
    """
    cores = None if quotas is None else quotas / CORE_S_PER_BYTE
    observations: list[list[ServerObservation]] = [[] for _ in nodes]
    chosen, present = find_simulated(scheme, schemes), None
    done: list[SimulatedExchange] = []
    for iteration in range(rounds):
        blur = noise and noise.at(iteration)
        if chosen.routes_itself:
            done.append(exchange(nodes, capacities, *stock_messages(nodes, layout.tensors), 0, wire, blur, cores))
            continue
        known = with_cores(
            nodes, layout.model_bytes, capacities if chosen.sums_by_sites else capacities.one_level, quotas
        )
        shares_bytes = None if present is None else present.shares_bytes
        situation = Situation(iteration, nodes, layout, known, known, observations, shares_bytes, sites=known.sites)
        plan, _ = chosen.plan(situation)
        present = plan or present
        assert present is not None
        servers = np.array(present.server_of_slice)
        result = exchange(
            nodes, capacities, layout.sizes_bytes, servers, inflight_bytes, wire, blur, cores, present.by_site
        )
        if len(result.samples):
            served_s = Traffic(result.samples).served_s(len(nodes))
            for one in np.flatnonzero(np.isfinite(served_s)).tolist():
                observations[one].append(ServerObservation(present.shares_bytes[one], float(served_s[one])))
        done.append(result)
    return done


def planner_of(
    nodes: Sequence[Node],
    tensors: Sequence[Tensor],
    alpha_bytes: float,
    fixed_slice_bytes: float | None = None,
    new_estimator: Callable[[int], Estimator] | None = None,
    sites: Sites | None = None,
    rules: Rules = RULES,
) -> Planner:
    """A coordinator's planner to which these tensors are registered, for `by_planner`. Raises InputError.

    new_estimator: number of nodes -> estimator; None: the default one. sites: None: sums have one level.
    """
    names = [node.name for node in nodes]
    ranks = {names[one]: rank for rank, one in enumerate(server_indices(nodes).tolist())}
    workers = {node.name for node in nodes if node.is_worker}
    chosen = new_estimator or ESTIMATORS[DEFAULT_ESTIMATOR]
    summing = [] if sites is None else [node for members in sites.members if len(members) > 1 for node in members]
    site_servers = {names[one]: len(ranks) + rank for rank, one in enumerate(summing)}
    job = JobNodes.of(names, workers, ranks, sites, site_servers)
    planner = new_planner(job, chosen, rules=rules, plane=PS_LITE)
    specs = [TensorSpec(t.name, t.elements, t.dtype, t.group) for t in tensors]
    planner.register(specs, alpha_bytes, fixed_slice_bytes)
    return planner


def by_planner(
    scheme: str,
    nodes: Sequence[Node],
    layout: Layout,
    capacities: Capacities,
    rounds: int,
    planner: Planner,
    wire: MessageWeight = WITH_HEADERS,
    noise: Noise | None = None,
    quotas: Floats | None = None,
    schemes: Mapping[str, Scheme] = NALB_SCHEMES,
    inflight_bytes: int | None = None,
    change: tuple[float, Capacities] | None = None,
) -> list[SimulatedExchange]:
    """`rounds` synchronisations as the coordinator's planner plans them, windows included. Raises InputError.

    planner: from `planner_of`, or one to which `layout` is registered and whose servers' ranks are in node order. quotas: as for
    `by_slices`. inflight_bytes: None: the planner chooses. change: (seconds after the first began, capacities from then on).
    """
    by_rank, cores = server_indices(nodes), None if quotas is None else quotas / CORE_S_PER_BYTE
    options = PlanOptions(find_scheme(scheme, schemes), inflight_bytes=inflight_bytes)
    done: list[SimulatedExchange] = []
    for iteration in range(rounds):
        planned = planner.plan(iteration, 0, options)
        plan, decision, windows = planned.message, planned.decision, planned.windows or 0
        if decision.plan is None:
            sizes_bytes, servers = stock_messages(nodes, layout.tensors)
        else:
            sizes_bytes, servers = layout.sizes_bytes, by_rank[np.array(plan.server_of_slice, dtype=np.int64)]
        blur = noise and noise.at(iteration)
        by_site = None if decision.plan is None else decision.plan.by_site
        amid, change = change, None
        result = exchange(nodes, capacities, sizes_bytes, servers, windows, wire, blur, cores, by_site, amid)
        capacities = capacities if amid is None else amid[1]
        if decision.is_measured:
            work = None if quotas is None else work_of(result, quotas)
            planner.judge(FinishedIteration(result.samples, result.time_s, work=work), planned)
        else:
            planner.note_unmeasured(result.time_s)
        done.append(result)
    return done


def with_cores(nodes: Sequence[Node], model_bytes: float, capacities: Capacities, quotas: Floats | None) -> Capacities:
    """These capacities with the times of cores of these quotas, which handle a node's load in either direction."""
    if quotas is None:
        return capacities
    fixed, per_share = linear_load(nodes, model_bytes)
    byte_s = CORE_S_PER_BYTE / quotas
    return replace(capacities, cores=CoreTimes(fixed.sum(axis=0) * byte_s, per_share.sum(axis=0) * byte_s))


def work_of(result: SimulatedExchange, quotas: Floats) -> Work:
    """The core times that the nodes' processes would report of one synchronisation."""
    one, nodes = result.samples, len(quotas)
    workers, servers = (
        np.where(one["is_push"], one[a], one[b]) for a, b in (("source", "target"), ("target", "source"))
    )
    worker_s, server_s = (CORE_S_PER_BYTE * np.bincount(end, one["size_bytes"], nodes) for end in (workers, servers))
    return Work(worker_s, server_s, quotas)


def by_flows(
    scheme: str,
    nodes: Sequence[Node],
    tensors: Sequence[Tensor],
    capacities: Capacities,
    rounds: int,
    goodput_part: float = 1.0,
    max_classes: int = MAX_CLASSES,
    schemes: Mapping[str, Scheme] = SCHEMES,
) -> list[float]:
    """Seconds of each of `rounds` synchronisations under a scheme that knows the true capacities. Raises InputError."""
    chosen, whole = find_simulated(scheme, schemes), Layout(tuple(tensors), ())
    observations: list[list[ServerObservation]] = [[] for _ in nodes]
    shares = stock_shares(nodes, tensors) if chosen.routes_itself else None
    times: list[float] = []
    for iteration in range(rounds):
        if not chosen.routes_itself:
            present = None if shares is None else shares.tolist()
            moved, _ = chosen.shares(Situation(iteration, nodes, whole, capacities, capacities, observations, present))
            shares = shares if moved is None else moved
        assert shares is not None
        result = flow(nodes, capacities, shares, goodput_part, max_classes)
        for server in np.flatnonzero(result.served_s > 0).tolist():
            observations[server].append(ServerObservation(float(shares[server]), float(result.served_s[server])))
        times.append(result.time_s)
    return times


def windows_of(layout: Layout, nodes: Sequence[Node], capacities: Capacities) -> list[int]:
    """The window of each node's worker by true capacities, bytes, under the plan of least time."""
    plan, _ = SCHEMES["exact"].plan(Situation(0, nodes, layout, capacities, capacities, sites=capacities.sites))
    assert plan is not None, "there is none to keep"
    slices = slice_pace(plan, nodes, layout, capacities)
    return with_room(slices.usual, slices.uplinks, slices.capped_s)


def find_simulated(scheme: str, schemes: Mapping[str, Scheme] = SCHEMES) -> Scheme:
    """The record of the scheme of this name. Raises InputError where it cannot be simulated."""
    if scheme not in schemes:
        raise InputError(f"scheme {scheme!r} cannot be simulated: choose of {', '.join(schemes)}")
    return schemes[scheme]


def stock_shares(nodes: Sequence[Node], tensors: Sequence[Tensor]) -> Floats:
    """Bytes per node, shape (N,), by MXNet's own routing."""
    sizes, servers = stock_messages(nodes, tensors)
    return np.bincount(servers, sizes, minlength=len(nodes)).astype(np.float64)


def stock_messages(nodes: Sequence[Node], tensors: Sequence[Tensor]) -> tuple[Ints, Ints]:
    """(bytes, server's node) of each message of MXNet's own routing; ps-lite ranks servers by descending address."""
    by_rank = server_indices(nodes)[::-1]
    sizes, ranks = route(tensors, len(by_rank))
    return sizes, by_rank[ranks]
