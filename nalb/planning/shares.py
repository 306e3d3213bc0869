"""Chooses how many bytes each server sums: equal shares, pairwise equalisation (Cai et al.), and the optimum.

All three functions return bytes per node, shape (N,), which are zero where a node is no server and add up to the model;
assignment.py makes whole slices of them. The time that they reduce is nodes.completion_s.
"""

import heapq
import math
from collections.abc import Sequence

import numpy as np

from nalb.errors import InputError
from nalb.planning import levels
from nalb.planning.filling import fill
from nalb.planning.nodes import (
    FEW_SLICES,
    Capacities,
    Floats,
    Node,
    are_workers,
    check_nodes,
    completion_s,
    levels_s,
    limits_s,
    linear_load,
    lone_worker,
    server_indices,
)

Line = tuple[float, float]  # (start_s, slope_s) of a server's time over its share in bytes
TOLERANCE = 0.01  # part of the slowest node's time; the paper's 1 s is too much for a small model


def average(nodes: Sequence[Node], model_bytes: float) -> Floats:
    """Equal shares for all servers: M / number of servers, bytes, shape (N,). Raises InputError as `check_nodes`."""
    check_nodes(nodes, model_bytes)
    is_server = np.array([node.is_server for node in nodes], dtype=np.float64)
    return np.asarray(is_server * (model_bytes / is_server.sum()), dtype=np.float64)


def pairwise(nodes: Sequence[Node], model_bytes: float, capacities: Capacities, tolerance: float = TOLERANCE) -> Floats:
    """Shares that bring all servers' times within `tolerance`, by equalising the slowest and the fastest server repeatedly.

    It begins with equal shares and repeats: slow = argmax t_i among the servers with a share, fast = argmin t_i among all, with
    t_i = (a_i + b_i m_i) / S_i and S_i the rate of the slower direction; then, with the sum m_slow + m_fast kept,
        m_fast' = (b_slow / S_slow (m_slow + m_fast) + a_slow / S_slow - a_fast / S_fast) / (b_fast / S_fast + b_slow / S_slow),
    which for nodes that are all worker and server (a = M, b = N - 2) is
        m_fast' = ((N-2)(m_slow + m_fast) S_fast - M (S_slow - S_fast)) / ((N-2)(S_fast + S_slow)),
    kept within [0, m_slow + m_fast]; until t_slow - t_fast <= tolerance t_slow. Where cores are known, t_i is the longer of the
    links' and the cores' time, and the two servers' longer times are made equal. A server with share 0 that is still slower than
    the rest leaves the pairing, which ends where the load of the slowest server does not depend on its share (two workers: b = 0).
    Caps of pairs are not seen. With fewer than two servers, or a single worker, shares stay equal. By sites: the sites are balanced
    like nodes, and levels.split divides their shares. Every exchange lowers sum_i (a_i m_i + b_i m_i^2 / 2) / S_i: the loop ends.

    Returns bytes, shape (N,); ties go to the lower index. Cost: O(log N) an exchange, about N/2 exchanges per halving of the
    spread. Raises InputError for a tolerance that is not in (0, 1). Source: Cai et al., Algorithm 1. Its Eq. 14 prints
    (S_min - S_max) below the line, a slip of sign that divides by zero on equal links; the equation here is solved again from
    Eqs. 12 and 13.
    """
    check_nodes(nodes, model_bytes, capacities)
    if not 0 < tolerance < 1:
        raise InputError(f"pairwise: tolerance {tolerance:g} is not between 0 and 1: 0.01 is 1 % of the slowest time")
    if (uplinks := capacities.uplinks) is not None:
        ways = levels.ways(uplinks, capacities.rates)
        star = [Node(name) for name in uplinks.sites.names]
        of_site = pairwise(star, model_bytes, Capacities(ways, ways, {}), tolerance)
        return levels.split(uplinks, capacities.rates, model_bytes, of_site)
    shares = average(nodes, model_bytes)
    _, per_share = linear_load(nodes, model_bytes)
    servers = server_indices(nodes)
    if len(servers) < 2 or (per_share[:, servers].max(axis=0) < 0).any():
        return shares
    m: list[float] = shares[servers].tolist()
    limits = limits_s(nodes, model_bytes, capacities)[:, :, servers]
    of_node: list[list[Line]] = limits.transpose(
        2, 0, 1
    ).tolist()  # per server: the line of its links, and that of its cores if known

    def time_s(i: int) -> float:
        return max([start_s + slope_s * m[i] for start_s, slope_s in of_node[i]])

    times = [time_s(i) for i in range(len(m))]
    slowest = [(-time, i) for i, time in enumerate(times) if m[i] > 0]  # heaps; outdated entries are passed over
    fastest = [(time, i) for i, time in enumerate(times)]
    heapq.heapify(slowest)
    heapq.heapify(fastest)
    while True:
        while -slowest[0][0] != times[slowest[0][1]] or m[slowest[0][1]] <= 0:
            heapq.heappop(slowest)
        while fastest[0][0] != times[fastest[0][1]]:
            heapq.heappop(fastest)
        slow, fast = slowest[0][1], fastest[0][1]
        is_flat = all(slope_s == 0 for _, slope_s in of_node[slow])
        if is_flat or times[slow] - times[fast] <= tolerance * times[slow]:
            break
        both = m[slow] + m[fast]
        meetings = [_meeting(one, other, both) for one in of_node[slow] for other in of_node[fast]]
        m[fast] = min(max(max(meetings)[1], 0.0), both)
        m[slow] = both - m[fast]
        for i in (slow, fast):
            times[i] = time_s(i)
            heapq.heappush(slowest, (-times[i], i))
            heapq.heappush(fastest, (times[i], i))
    shares[servers] = m
    return shares


def _meeting(slow: Line, fast: Line, both_bytes: float) -> tuple[float, float]:
    """(time in seconds, the fast server's share in bytes) at which two servers with `both_bytes` in all take equally long.

    slow, fast: one line of each server. Two lines that no share changes never meet: their time is -inf.
    """
    (slow_start_s, slow_slope_s), (fast_start_s, fast_slope_s) = slow, fast
    if fast_slope_s + slow_slope_s == 0:
        return -math.inf, 0.0
    share = (slow_slope_s * both_bytes + slow_start_s - fast_start_s) / (fast_slope_s + slow_slope_s)
    return fast_start_s + fast_slope_s * share, share


def exact(
    nodes: Sequence[Node], model_bytes: float, capacities: Capacities, slice_bytes: float = 0.0
) -> tuple[Floats, float]:
    """The shares of least completion time, and that time in seconds.

    min T  subject to  a_i + b_i m_i <= T c_i,  w_i m_i + w_j m_j <= T s_ij per capped pair,  A_i + B_i m_i <= T,
    sum_i m_i = M,  m_i >= 0;
    c_i the rate of node i's link, in either direction; its load is the same in both where workers push as many bytes as sums have,
    else a_i and b_i are those of the direction, and b_i must not be negative (precisions.py). Where a node that is only a worker
    sets T, the servers' times are still made as small as possible. By sites: levels.least_owned_bytes, without cores.

    slice_bytes: of a slice; 0: shares are not made of whole slices. Then a_i of a server that is no worker has the answers to its
    last slices (nodes.limits_s). The second result is the completion time without them.

    Returns bytes, shape (N,), and seconds. Cost: O(N) for each of 60 halvings (see fill) without caps of pairs; with them a few
    linear programs of N + 1 variables and 2 N + pairs rows. Raises InputError where there is no server, no worker or no byte.
    Source: the model of Cai et al., Eq. 10, solved exactly; the terms of pairs and cores are ours.
    """
    return _least_time(nodes, model_bytes, capacities, is_leveled=True, slice_bytes=slice_bytes)


def _least_time(
    nodes: Sequence[Node], model_bytes: float, capacities: Capacities, is_leveled: bool, slice_bytes: float = 0.0
) -> tuple[Floats, float]:
    """As `exact`. is_leveled: whether the times of servers that do not set T are least too."""
    check_nodes(nodes, model_bytes, capacities)
    if capacities.uplinks is not None:
        shares = levels.least_owned_bytes(capacities.uplinks, capacities.rates, model_bytes)
        return shares, completion_s(nodes, shares, model_bytes, capacities)
    shares = np.zeros(len(nodes))
    if (alone := lone_worker(nodes)) is not None:
        shares[alone] = model_bytes
        return shares, 0.0
    servers = server_indices(nodes)
    few = np.zeros(len(nodes), dtype=bool)
    for _ in range(2):  # the first shares say who has few slices
        limits = limits_s(nodes, model_bytes, capacities, slice_bytes, few)[:, :, servers]
        shares[servers] = fill(limits[:, 0], limits[:, 1], model_bytes)
        few = few | ((shares < FEW_SLICES * slice_bytes) & ~are_workers(nodes))
        if not few.any():
            break
    if capacities.pairs:
        # scipy.optimize takes half a second to import, and few jobs have caps of pairs
        from nalb.planning.pair_caps import level_with_pairs

        shares = level_with_pairs(nodes, model_bytes, capacities, shares, is_leveled, slice_bytes, few)
    return shares, completion_s(nodes, shares, model_bytes, capacities)


def bound_s(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> float:
    """The least time in seconds that any shares reach: the T of `exact`, without loss, latency, headers or TCP."""
    return _least_time(nodes, model_bytes, capacities, is_leveled=False)[1]


def level_bounds_s(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> tuple[float, float]:
    """Seconds that the uplinks and the LANs take with the shares of least time, in a job by sites; the longer one is the bound."""
    return levels_s(exact(nodes, model_bytes, capacities)[0], model_bytes, capacities)
