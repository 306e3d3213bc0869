"""How many bytes each server sums: equal shares, pairwise equalisation (Cai et al.), and the optimum.

All three answer in bytes per node, shape (N,), zero where a node is no server, adding up to the model; whole slices
come later (assignment.py). The cost that they fight is nodes.completion_s.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from nalb.errors import InputError
from nalb.planning import levels
from nalb.planning.filling import fill
from nalb.planning.nodes import (
    Capacities,
    Floats,
    Node,
    check_nodes,
    completion_s,
    levels_s,
    limits_s,
    linear_load,
    server_indices,
)

Line = tuple[float, float]  # (start_s, slope_s): of a server's time over its share in bytes
TOLERANCE = 0.01  # of the slowest node's time; the paper stops at 1 s, which is no measure for a small model


def average(nodes: Sequence[Node], model_bytes: float) -> Floats:
    """Equal shares for all servers: M / number of servers, bytes, shape (N,). Raises InputError without a server."""
    check_nodes(nodes, model_bytes)
    is_server = np.array([node.is_server for node in nodes], dtype=np.float64)
    return np.asarray(is_server * (model_bytes / is_server.sum()), dtype=np.float64)


def pairwise(nodes: Sequence[Node], model_bytes: float, capacities: Capacities, tolerance: float = TOLERANCE) -> Floats:
    """Shares that bring all servers' times within `tolerance`, by equalising the slowest and the fastest, repeatedly.

    From equal shares, repeat: slow = argmax t_i among the servers with a share, fast = argmin t_i among all, with
    t_i = (a_i + b_i m_i) / S_i and S_i the smaller direction; then, with the sum m_slow + m_fast kept,
        m_fast' = (b_slow / S_slow (m_slow + m_fast) + a_slow / S_slow - a_fast / S_fast) / (b_fast / S_fast + b_slow / S_slow),
    which for nodes that are all worker and server (a = M, b = N - 2) is
        m_fast' = ((N-2)(m_slow + m_fast) S_fast - M (S_slow - S_fast)) / ((N-2)(S_fast + S_slow)),
    kept within [0, m_slow + m_fast]; until t_slow - t_fast <= tolerance t_slow. Where cores are known, t_i is the longer of the
    links' and the cores' time, and the two nodes meet where the longer ones do.
    A server at 0 that is still slower than the rest leaves the pairing. Caps of pairs are not seen. Servers whose
    load does not depend on their share (two workers: b = 0) and fewer than two servers leave nothing to balance:
    equal shares. By sites: the same with the sites as nodes, then levels.split. Every
    exchange lowers sum_i (a_i m_i + b_i m_i^2 / 2) / S_i, so the loop ends.

    Bytes, shape (N,); ties go to the lower index. Cost: O(log N) an exchange, about N/2 exchanges per halving of
    the spread. Raises InputError for a tolerance that is not in (0, 1). Source: Cai et al., Algorithm 1; its Eq. 14 prints
    (S_min - S_max) below the line, a slip of sign that divides by zero on equal links: solved again from Eqs. 12 and
    13.
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
    if len(servers) < 2 or (per_share[servers] <= 0).any():
        return shares
    m: list[float] = shares[servers].tolist()
    limits = limits_s(nodes, model_bytes, capacities)[:, :, servers]
    of_node: list[list[Line]] = limits.transpose(
        2, 0, 1
    ).tolist()  # per server, of its links, and of its cores if known

    def time_s(i: int) -> float:
        return max([start_s + slope_s * m[i] for start_s, slope_s in of_node[i]])

    times = [time_s(i) for i in range(len(m))]
    slowest = [(-time, i) for i, time in enumerate(times) if m[i] > 0]  # heaps; an old time of a server is passed over
    fastest = [(time, i) for i, time in enumerate(times)]
    heapq.heapify(slowest)
    heapq.heapify(fastest)
    while True:
        while -slowest[0][0] != times[slowest[0][1]] or m[slowest[0][1]] <= 0:
            heapq.heappop(slowest)
        while fastest[0][0] != times[fastest[0][1]]:
            heapq.heappop(fastest)
        slow, fast = slowest[0][1], fastest[0][1]
        if times[slow] - times[fast] <= tolerance * times[slow]:
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
    """(time, the fast one's share) where two servers that share `both_bytes` take equally long by one line each."""
    (slow_start_s, slow_slope_s), (fast_start_s, fast_slope_s) = slow, fast
    share = (slow_slope_s * both_bytes + slow_start_s - fast_start_s) / (fast_slope_s + slow_slope_s)
    return fast_start_s + fast_slope_s * share, share


def exact(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> tuple[Floats, float]:
    """The shares of least completion time, and that time in seconds.

    min T  subject to  a_i + b_i m_i <= T c_i,  w_i m_i + w_j m_j <= T s_ij per capped pair,  A_i + B_i m_i <= T,
    sum_i m_i = M,  m_i >= 0;
    c_i the smaller of node i's directions, since its load is the same both ways. Where a worker alone sets T, the
    other servers are still levelled as low as they can be.

    Bytes, shape (N,), and seconds. Cost: O(N) for each of 60 halvings (see fill) without caps of pairs; with them a few linear
    programs of N + 1 variables and 2 N + pairs rows. Raises InputError where there is no server, no worker or no
    byte. Source: the model of Cai et al., Eq. 10, solved outright; pairs and cores are ours.
    By sites: levels.least_owned_bytes; cores are not counted.
    """
    check_nodes(nodes, model_bytes, capacities)
    if capacities.uplinks is not None:
        shares = levels.least_owned_bytes(capacities.uplinks, capacities.rates, model_bytes)
        return shares, completion_s(nodes, shares, model_bytes, capacities)
    _, per_share = linear_load(nodes, model_bytes)
    shares = np.zeros(len(nodes))
    if (per_share < 0).any():  # the only worker is a server as well: all stays on its loopback
        shares[per_share < 0] = model_bytes
        return shares, 0.0
    servers = server_indices(nodes)
    limits = limits_s(nodes, model_bytes, capacities)[:, :, servers]
    shares[servers] = fill(limits[:, 0], limits[:, 1], model_bytes)
    if capacities.pairs:
        # scipy.optimize takes half a second to import, and few jobs have caps of pairs
        from nalb.planning.pair_caps import level_with_pairs

        shares = level_with_pairs(nodes, model_bytes, capacities, shares)
    return shares, completion_s(nodes, shares, model_bytes, capacities)


def bound_s(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> float:
    """The least time in seconds that any shares reach: `exact`'s T. Without loss, latency, headers or TCP."""
    return exact(nodes, model_bytes, capacities)[1]


def level_bounds_s(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> tuple[float, float]:
    """By sites: what the shares of least time take of the uplinks and of the LANs, seconds; the longer one is the bound."""
    return levels_s(exact(nodes, model_bytes, capacities)[0], model_bytes, capacities)
