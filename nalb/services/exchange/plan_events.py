"""Makes the events of layouts, plans and iterations. Rates in bytes per second. Pure."""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
from msgspec import UNSET
from msgspec.structs import replace

from nalb.events import ByNode, IterationEvent, LayoutEvent, PlanEvent, Rates, Rounded, SharedUplinkEvent
from nalb.measurement.samples import Samples
from nalb.measurement.shared_uplinks import SharedUplink
from nalb.planning.distribution import Distribution
from nalb.planning.nodes import Floats, completion_s, loads_bytes
from nalb.planning.precisions import STEPS
from nalb.planning.shares import bound_s, level_bounds_s
from nalb.planning.sites import Sites
from nalb.planning.slices import Layout
from nalb.services.exchange.decision import Decision
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.knowledge import ConfiguredRates, Known
from nalb.services.exchange.precision import ChosenPrecisions


def layout_event(
    layout: Layout,
    now_s: float,
    iteration: int,
    alpha_bytes: float,
    fixed_slice_bytes: float | None,
    num_probe: int,
    precision: str = "float32",
) -> LayoutEvent:
    """The event of tensors that are cut anew from this iteration on. The last arguments say how they are cut."""
    return LayoutEvent(
        at_s=now_s,
        model_bytes=layout.model_bytes,
        slices=len(layout.slices),
        probes=sum(s.is_probe for s in layout.slices),
        slice_bytes=max(s.size_bytes for s in layout.slices),
        iteration=iteration,
        alpha_bytes=alpha_bytes,
        fixed_slice_bytes=fixed_slice_bytes,
        num_probe=num_probe,
        precision=UNSET if precision == "float32" else precision,
        tensors=[(one.name, one.elements, one.dtype, one.group) for one in layout.tensors],
    )


def explain_plan(event: PlanEvent, decision: Decision, names: Sequence[str]) -> PlanEvent:
    """Add the nodes' shares and the reason of the decision to a plan's event."""
    if (plan := decision.plan) is None:
        return replace(event, reason=decision.reason)
    shares = _by_name(names, plan.held_shares)
    return replace(event, reason=decision.reason, shares=shares, predicted_s=plan.predicted_s)


def explain_iteration(
    event: IterationEvent, decision: Decision, known: Known, layout: Layout, samples: Samples, chosen: ChosenPrecisions
) -> IterationEvent:
    """Add to an iteration's event its decision, what it measured, and what is known after it. chosen: its precisions."""
    model_bytes = layout.model_bytes
    nodes, plan, estimate = known.nodes, decision.plan, known.estimate
    names, uplinks = nodes.names, estimate.uplinks
    told = replace(
        event,
        measured=decision.is_measured,
        round_trip_s=known.round_trip_s,
        reason=decision.reason,
        estimate=Rates(
            up=_by_name(names, estimate.up),
            down=_by_name(names, estimate.down),
            pairs=[(names[i], names[j], rate) for (i, j), rate in estimate.pairs.items() if math.isfinite(rate)],
            uplinks=_by_site(nodes.sites, None if uplinks is None else uplinks.rates),
        ),
        least=Rates(
            up=_by_name(names, estimate.least[0]),
            down=_by_name(names, estimate.least[1]),
            uplinks=_by_site(nodes.sites, None if uplinks is None else uplinks.least),
        ),
    )
    if plan is not None:
        shares, loads = plan.held_shares, _by_name(names, plan.load_bytes(nodes.nodes))
        told = replace(told, shares=_by_name(names, shares), predicted_s=plan.predicted_s, load_bytes=loads)
        if known.cores is not None:
            told = replace(told, cores_s=_by_name(names, known.cores.of_shares(shares)))
        told = replace(told, rounded=_rounded(known, plan, layout, chosen))
    if known.configured is not None:
        told = _beside_configured(told, known.nodes, plan, model_bytes, known.configured)
    if len(samples):
        told = replace(told, span_s=float(samples["end_s"].max() - samples["start_s"].min()))
    return told


def _rounded(known: Known, plan: Distribution, layout: Layout, chosen: ChosenPrecisions) -> Rounded | None:
    """What the iteration's precisions are worth; None where all is float32."""
    precisions, job = chosen.precisions, known.nodes
    if {precisions.answers, *precisions.pushes} == {STEPS[0]}:
        return None
    names, whole = job.names, [dataclasses.replace(node, push_part=1.0) for node in job.nodes]
    whole_bytes = layout.model_bytes / layout.wire_part
    if plan.by_site is None:
        carried = loads_bytes(job.nodes, plan.held_shares, layout.model_bytes).sum(axis=0)
        saved = loads_bytes(whole, plan.held_shares / layout.wire_part, whole_bytes).sum(axis=0) - carried
    else:
        saved = 2 * plan.load_bytes(job.nodes) * (1 / layout.wire_part - 1)
    rates = known.capacities if known.configured is None else known.configured.for_bound
    if rates is not None:
        rates = dataclasses.replace(rates, cores=None)  # they count values, however many bytes these have
    return Rounded(
        answers=precisions.answers,
        pushes=dict(zip(names, precisions.pushes, strict=True)),
        push_parts={node.name: node.push_part for node in job.nodes},
        saved_bytes=_by_name(names, saved),
        whole_bound_s=None if rates is None else bound_s(whole, whole_bytes, rates),
        worth_s={} if chosen.worth_s is None else _by_name(names, chosen.worth_s),
    )


def _beside_configured(
    told: IterationEvent,
    nodes: JobNodes,
    plan: Distribution | None,
    model_bytes: int,
    configured_rates: ConfiguredRates,
) -> IterationEvent:
    """Add the configured rates, the bound, and the plan's time on them."""
    names, rates = nodes.names, configured_rates.capacities
    uplinks = configured_rates.for_bound.uplinks
    has_one_level = rates.uplinks is None
    configured = Rates(
        up=_by_name(names, rates.up),
        down=_by_name(names, rates.down),
        pairs=[(names[i], names[j], rate) for (i, j), rate in rates.pairs.items()] or None,
        uplinks={} if uplinks is None else _by_site(uplinks.sites, np.array([uplinks.up, uplinks.down])),
        site_of=dict(zip(names, uplinks.sites.name_of_node, strict=True)) if has_one_level and uplinks else {},
    )
    if has_one_level:
        least_s = bound_s(nodes.nodes, model_bytes, configured_rates.for_bound)
        told = replace(told, configured=configured, bound_s=least_s)
    else:
        wan_s, lan_s = level_bounds_s(nodes.nodes, model_bytes, rates)
        told = replace(told, configured=configured, bound_s=max(wan_s, lan_s), wan_bound_s=wan_s, lan_bound_s=lan_s)
    if plan is None:
        return told
    return replace(told, planned_s=completion_s(nodes.nodes, plan.held_shares, model_bytes, rates))


def shared_uplink_event(now_s: float, iteration: int, names: Sequence[str], found: SharedUplink) -> SharedUplinkEvent:
    """The event of nodes that seem to share an uplink."""
    return SharedUplinkEvent(
        at_s=now_s,
        iteration=iteration,
        nodes=[names[node] for node in found.nodes],
        others=[name for node, name in enumerate(names) if node not in found.nodes],
        up_bytes_per_s=found.up,
        down_bytes_per_s=found.down,
    )


def _by_name(names: Sequence[str], values: Floats) -> ByNode:
    told = (value if math.isfinite(value) else None for value in values.tolist())
    return dict(zip(names, told, strict=True))


def _by_site(sites: Sites | None, rates: Floats | None) -> dict[str, tuple[float | None, float | None]]:
    """Rates up and down by site; none where sums have one level."""
    if sites is None or rates is None:
        return {}
    ups, downs = ([value if math.isfinite(value) else None for value in row] for row in rates.tolist())
    return dict(zip(sites.names, zip(ups, downs, strict=True), strict=True))
