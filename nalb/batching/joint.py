"""Plans batch sizes and network shares together, for links and machines that are both uneven. None of the papers does so.

Node i computes for t_i(b_i) seconds and moves L_i(m_i) = a_i + s_i m_i bytes in each direction at the rate c_i (planning/nodes.py).
Where its cores take longer to handle the bytes, their time counts in place of L_i / c_i. Three models say how computing and traffic
add up; latency, headers and TCP are in none of them.

    after the slowest   max_i t_i(b_i) + max_i L_i(m_i) / c_i
    each in its turn    max_i ( t_i(b_i) + L_i(m_i) / c_i )
    overlapped          max_i t_i(b_i) + max_i max( L_i / down_i, (L_i - e_i) / up_i ),  e_i the pushes that node i has sent
                        before the slowest has computed: at most all of its own, at up_i

*After the slowest*: the exchange begins when all nodes have computed, as if gradients were pushed at the end and answered when the
last one has come. The two terms share no variable and no constraint. So the plan has the best batches and the best shares, each
found alone; planning them together gains nothing.

*Each in its turn*: a node's traffic begins when its own computing ends. Fewer samples can then make up for a slow link, and fewer
bytes for a slow machine, which neither plan alone finds. The model is optimistic: it leaves out that answers wait for the slowest
push. It also leaves out the overlap with the backward pass. Its time is at most the first model's for any plan.

*Overlapped* lies between the two, and jobs use it (plan_overlapped): a push may leave early, but no answer can come before the
slowest push. So fewer samples relieve a slow uplink, but never a slow downlink.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nalb.batching.sizes import Bounds, Curve, Sizes, apportion, fastest, smallest_steps, times_table
from nalb.errors import InputError
from nalb.planning.filling import fill
from nalb.planning.nodes import (
    Capacities,
    Floats,
    Node,
    check_nodes,
    completion_s,
    limits_s,
    loads_bytes,
    server_indices,
)
from nalb.planning.shares import exact

MIXES = (0.25, 0.5, 0.75, 1.0)  # parts of the way from the plan after the slowest to the plan in turn
WORTH_A_SEARCH = 0.95  # part of the exchange's time: a search is made only if free uplinks bring the time below it
HALVINGS = 60  # of the interval that holds the least time: to the last digits of a float
ROUGH_HALVINGS = 20  # of the same interval: to a millionth
UNLIMITED = 1e18  # bytes per second that stand for no limit
STRAIGHT = 1e-9  # part of a row's largest entry: smaller bends are rounding
GROUND = -np.inf  # room for shares where the time does not even suffice for the batch


@dataclass(frozen=True, eq=False)
class JointPlan:
    """How many samples each worker computes and how many bytes each node sums."""

    sizes: Sizes  # samples per worker, in the order of the nodes that are workers
    shares_bytes: Floats  # per node, shape (N,), adding up to the model; 0 where a node is no server
    predicted_s: float  # time of an iteration by the model that made the plan


def plan_after_slowest(
    nodes: Sequence[Node], curves: Sequence[Curve], bounds: Bounds, model_bytes: float, capacities: Capacities
) -> JointPlan:
    """The plan with the least max_i t_i(b_i) + completion time of the shares; both terms are minimised exactly.

    curves, bounds: per worker, in node order. Caps of pairs are kept. Cost and errors: those of sizes.fastest and shares.exact.
    """
    _check(nodes, curves, bounds, model_bytes, capacities)
    sizes, compute_s = fastest(curves, bounds)
    shares, exchange_s = exact(nodes, model_bytes, capacities)
    return JointPlan(sizes, shares, compute_s + exchange_s)


def plan_in_turn(
    nodes: Sequence[Node],
    curves: Sequence[Curve],
    bounds: Bounds,
    model_bytes: float,
    capacities: Capacities,
    halvings: int = HALVINGS,
) -> JointPlan:
    """The plan with the least max_i (t_i(b_i) + L_i(m_i) / c_i): b whole with the total kept, m real with the model kept.

    In a time T a node that computes b samples can sum r_i(b; T) = clip((c_i (T - t_i(b)) - a_i) / s_i, 0, M) bytes, or fewer where
    its cores take longer. It cannot compute b samples if T leaves too little time to carry a_i. T is enough if
    max { sum_i r_i(b_i; T) : sum_i b_i = total } >= M. Bisection finds the least T, and filling.fill finds the shares for its
    sizes. Where t_i never bends down (affine, saturating), r_i does not bend up, and the inner maximum is a selection of the
    cheapest samples. Otherwise (cubic fits) it is a dynamic program over workers and samples. t_i never falls here
    (sizes.times_table). Caps of pairs are not seen. Ties go to the lower index. Cost: halvings x O(N x total), for bent curves
    x O(N x total^2). Raises InputError for arguments that do not fit together.
    """
    _check(nodes, curves, bounds, model_bytes, capacities)
    limits = limits_s(nodes, model_bytes, capacities)
    start_s, slope_s = limits.transpose(1, 0, 2)
    if (slope_s < 0).all(axis=0).any():  # the only worker is a server as well: it sums all over loopback
        return plan_after_slowest(nodes, curves, bounds, model_bytes, capacities)
    table = times_table(curves, bounds)
    straight = all((np.diff(row, 2) >= -STRAIGHT * row.max()).all() for row in table)
    workers = [i for i, node in enumerate(nodes) if node.is_worker]

    def room_of(i: int, left_s: Floats | float) -> Floats:
        rooms = [_room(nodes[i], left_s - start[i], slope[i], model_bytes) for start, slope in limits]
        return np.asarray(np.min(rooms, axis=0))

    def most_room(time_s: float) -> tuple[Sizes, float]:
        others = [room_of(i, time_s) for i in set(range(len(nodes))) - set(workers)]
        rows = [room_of(i, time_s - times) for i, times in zip(workers, table, strict=True)]
        sizes, room = _select(rows, bounds) if straight else _combine(rows, bounds)
        return sizes, room + math.fsum(float(one) for one in others)

    apart = plan_after_slowest(nodes, curves, bounds, model_bytes, replace(capacities, pairs={}))
    sizes = apart.sizes
    enough, too_little = apart.predicted_s, 0.0
    for _ in range(halvings):
        middle = (enough + too_little) / 2
        found, room = most_room(middle)
        if room >= model_bytes:
            sizes, enough = found, middle
        else:
            too_little = middle
    busy_s = np.zeros(len(nodes))
    busy_s[workers] = [row[size - low] for row, size, low in zip(table, sizes, bounds.least, strict=True)]
    servers = server_indices(nodes)
    shares = np.zeros(len(nodes))
    shares[servers] = fill((busy_s + start_s)[:, servers], slope_s[:, servers], model_bytes)
    return JointPlan(sizes, shares, float((busy_s + start_s + slope_s * shares).max()))


def plan_overlapped(
    nodes: Sequence[Node], curves: Sequence[Curve], bounds: Bounds, model_bytes: float, capacities: Capacities
) -> JointPlan:
    """The plan of least overlapped time among plan_after_slowest, plan_in_turn and mixes of the two; ties go to the first.

    By that time it is never worse than best sizes with best shares. It is the result of a search along one line, not the optimum.
    Where even free uplinks would not shorten the exchange by a twentieth, it is the plan after the slowest. Cost: that of both
    plans.
    """
    apart = plan_after_slowest(nodes, curves, bounds, model_bytes, capacities)
    exchange_s = completion_s(nodes, apart.shares_bytes, model_bytes, capacities)
    free_up = replace(capacities, up=np.maximum(capacities.up, capacities.down))
    plans = [apart]
    if exact(nodes, model_bytes, free_up)[1] < WORTH_A_SEARCH * exchange_s:
        turn = plan_in_turn(nodes, curves, bounds, model_bytes, capacities, ROUGH_HALVINGS)
        plans += [_mix(apart, turn, part, bounds) for part in MIXES]
    workers = [i for i, node in enumerate(nodes) if node.is_worker]
    table = times_table(curves, bounds)
    timed = []
    for plan in plans:
        compute_s = np.zeros(len(nodes))
        compute_s[workers] = [row[b - low] for row, b, low in zip(table, plan.sizes, bounds.least, strict=True)]
        seconds = overlapped_s(nodes, compute_s, plan.shares_bytes, model_bytes, capacities)
        timed.append(JointPlan(plan.sizes, plan.shares_bytes, seconds))
    return min(timed, key=lambda plan: plan.predicted_s)


def _mix(apart: JointPlan, turn: JointPlan, part: float, bounds: Bounds) -> JointPlan:
    sizes = apportion((1 - part) * np.array(apart.sizes) + part * np.array(turn.sizes), bounds)
    return JointPlan(sizes, (1 - part) * apart.shares_bytes + part * turn.shares_bytes, math.inf)


def overlapped_s(
    nodes: Sequence[Node], compute_s: Floats, shares_bytes: Floats, model_bytes: float, capacities: Capacities
) -> float:
    """Seconds of an iteration in which each node's pushes leave when it has computed: the overlapped model.

    compute_s: seconds per node, shape (N,). shares_bytes: per node, shape (N,).
    """
    out, into = loads_bytes(nodes, shares_bytes, model_bytes)
    pushes = np.array([one.is_worker * one.push_part for one in nodes]) * (model_bytes - shares_bytes)
    early = np.minimum(pushes, capacities.up * (compute_s.max() - compute_s))
    unlimited = np.full(len(nodes), UNLIMITED)
    others = replace(capacities, up=unlimited, down=unlimited)
    links_s = np.maximum(into / capacities.down, (out - early) / capacities.up).max()
    return float(compute_s.max() + max(links_s, completion_s(nodes, shares_bytes, model_bytes, others)))


def _check(
    nodes: Sequence[Node], curves: Sequence[Curve], bounds: Bounds, model_bytes: float, capacities: Capacities
) -> None:
    check_nodes(nodes, model_bytes, capacities)
    workers = sum(node.is_worker for node in nodes)
    if not workers == len(curves) == len(bounds.least):
        raise InputError(
            f"joint plan: {len(curves)} compute curves and {len(bounds.least)} bounds for {workers} workers: one each"
        )


def _room(node: Node, left_s: Floats | float, slope_s: float, model_bytes: float) -> Floats:
    """Bytes that a node can sum in the time left by one limit; GROUND where no time is left. left_s may be an array."""
    left = np.asarray(left_s, dtype=np.float64)
    if not node.is_server:
        room = np.zeros_like(left)
    elif slope_s == 0:
        room = np.full_like(left, model_bytes)
    else:
        room = np.minimum(left / slope_s, model_bytes)
    return np.where(left >= 0, room, GROUND)


def _select(rows: Sequence[Floats], bounds: Bounds) -> tuple[Sizes, float]:
    """The sizes with the most room in all, and that room in bytes: each further sample goes where it takes the least room.

    rows[i][k]: worker i's room with least_i + k samples. A row falls ever faster, so its first samples take the least room.
    """
    if any(row[0] == GROUND for row in rows):
        return bounds.least, GROUND
    with_cost = []
    for row in rows:
        reachable = row[row > GROUND]
        cost = np.append(np.maximum.accumulate(-np.diff(reachable)), np.full(len(row) - len(reachable), np.inf))
        with_cost.append(np.append(0.0, cost))
    taken = smallest_steps(with_cost, bounds)
    room = math.fsum(float(row[k]) for row, k in zip(rows, taken, strict=True))
    return tuple(low + k for low, k in zip(bounds.least, taken, strict=True)), room


def _combine(rows: Sequence[Floats], bounds: Bounds) -> tuple[Sizes, float]:
    """As _select, for rows of any shape, by a dynamic program.

    best[s]: the most room of the workers so far with s samples above their least sizes.
    """
    spare = bounds.total - sum(bounds.least)
    best = np.full(spare + 1, GROUND)
    best[0] = 0.0
    choices = []
    for row in rows:
        longer, choice = np.full(spare + 1, GROUND), np.zeros(spare + 1, dtype=np.int64)
        for k, room in enumerate(row):
            through = best[: spare + 1 - k] + room
            better = through > longer[k:]
            longer[k:][better] = through[better]
            choice[k:][better] = k
        best = longer
        choices.append(choice)
    taken, left = [], spare
    for choice in reversed(choices):
        taken.append(int(choice[left]))
        left -= taken[-1]
    return tuple(low + k for low, k in zip(bounds.least, reversed(taken), strict=True)), float(best[spare])
