"""Simulates schemes side by side: each exchanges the same tensors over the same links, which it learns if it must."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from nalb.measurement.estimators import Estimator
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.nodes import Capacities, Node, server_indices
from nalb.planning.slices import Tensor, build_layout
from nalb.schemes import Scheme
from nalb.simulation.exchange import WITH_HEADERS, MessageWeight
from nalb.simulation.job import by_flows, by_planner, by_slices, planner_of, windows_of


@dataclass(frozen=True)
class Setting:
    """The tensors that every scheme exchanges, the links, and the knowledge of them."""

    nodes: Sequence[Node]
    tensors: Sequence[Tensor]
    capacities: Capacities
    rounds: int  # synchronisations of a scheme that learns; others have one
    new_estimator: Callable[[int], Estimator] | None = None  # from the number of nodes; None: true capacities are known
    alpha_bytes: float = FIRST_ALPHA_BYTES
    inflight_bytes: float | None = None  # of a worker under way at a time; 0: no limit; None: as in nalb's jobs
    wire: MessageWeight = WITH_HEADERS


def times_by_slices(scheme: Scheme, setting: Setting) -> list[float]:
    """Seconds of each round, slice by slice. Raises InputError."""
    nodes, capacities, inflight_bytes = setting.nodes, setting.capacities, setting.inflight_bytes
    known: Mapping[str, Scheme] = {scheme.name: scheme}
    estimates = setting.new_estimator is not None and scheme.follows_estimates
    rounds = setting.rounds if scheme.learns_from_times or estimates else 1
    layout = build_layout(
        setting.tensors,
        num_nodes=len(nodes),
        num_servers=len(server_indices(nodes)),
        alpha_bytes=setting.alpha_bytes,
        fixed_slice_bytes=scheme.fixed_slice_bytes,
    )
    if setting.new_estimator is not None and not scheme.routes_itself:
        planner = planner_of(
            nodes,
            setting.tensors,
            setting.alpha_bytes,
            scheme.fixed_slice_bytes,
            setting.new_estimator,
            capacities.sites if scheme.sums_by_sites else None,
        )
        asked_bytes = None if inflight_bytes is None else int(inflight_bytes)
        run = partial(by_planner, scheme.name, nodes, layout, capacities, rounds, planner, setting.wire)
        done = run(schemes=known, inflight_bytes=asked_bytes)
    else:
        windows: float | list[int] = 0.0 if inflight_bytes is None else inflight_bytes
        if inflight_bytes is None and not scheme.learns_from_times:
            windows = windows_of(layout, nodes, capacities)
        done = by_slices(scheme.name, nodes, layout, capacities, rounds, windows, setting.wire, schemes=known)
    return [one.time_s for one in done]


def times_by_flows(scheme: Scheme, setting: Setting) -> list[float]:
    """Seconds of each round by whole flows, for thousands of nodes. Raises InputError.

    The setting's estimator, alpha and window have no effect, nor have the bytes that each message adds.
    """
    rounds = setting.rounds if scheme.learns_from_times else 1
    known: Mapping[str, Scheme] = {scheme.name: scheme}
    goodput_part = setting.wire.goodput_part
    return by_flows(
        scheme.name, setting.nodes, setting.tensors, setting.capacities, rounds, goodput_part, schemes=known
    )
