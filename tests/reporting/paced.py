"""Iterations of a record whose needs are easily computed by hand."""

from typing import Any

from nalb.events import IterationEvent, LayoutEvent, Rates, ReadyEvent
from nalb.reporting.record import Step, Timeline

NODES = ["n0", "n1", "n2", "n3"]
MB = 1e6


def rates(up: list[float], down: list[float] | None = None, **others: Any) -> Rates:
    """Rates of NODES in MB/s."""
    by_node = [dict(zip(NODES, [MB * one for one in side], strict=False)) for side in (up, down or up)]
    return Rates(up=by_node[0], down=by_node[1], **others)


def step(
    place: int = 0,
    scheme: str = "average",
    exchange_s: float = 2.0,
    computing_s: list[float] | None = None,
    nodes: list[str] = NODES,
    sites: dict[str, str] | None = None,
    has_agents: bool = False,
    is_first: bool = False,
    **fields: Any,
) -> Step:
    """An iteration of 12 MB: each server sums 3 MB, so each of four nodes carries 12 + 2 * 3 = 18 MB each way.

    computing_s: of each worker, before it pushes; all push when the slowest has computed.
    """
    computing = dict(zip(nodes, computing_s or [0.0] * len(nodes), strict=True))
    begin_s = 100.0 + 10 * place
    start_s = begin_s + max(computing.values())
    fields.setdefault("shares", dict.fromkeys(nodes, 12 * MB / len(nodes)))
    event = IterationEvent(
        at_s=start_s + exchange_s,
        iteration=place,
        scheme=scheme,
        communication_s=dict.fromkeys(nodes, exchange_s),
        iteration_s=dict.fromkeys(nodes, start_s + exchange_s - begin_s),
        plan_wait_s={node: start_s - begin_s - computing[node] + 0.01 for node in nodes},
        started_s=dict.fromkeys(nodes, start_s + 0.01),
        computed_s={node: begin_s + computing[node] for node in nodes},
        finished_s=dict.fromkeys(nodes, start_s + exchange_s),
        **fields,
    )
    told = {} if sites is None else {"sites": sites}
    ready = ReadyEvent(at_s=1.0, nodes=nodes, servers=nodes, has_agents=has_agents, **told)
    layout = LayoutEvent(at_s=2.0, model_bytes=12_000_000)
    return Step(place, begin_s, event, [], ready=ready, layout=layout, is_first=is_first)


def timeline(*steps: Step) -> Timeline:
    """A record of these iterations."""
    result = Timeline(nodes=NODES, servers=NODES, has_events=True)
    for one in steps:
        result.steps.setdefault(one.event.scheme, []).append(one)
    return result
