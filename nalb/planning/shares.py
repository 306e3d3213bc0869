"""How many bytes each server sums: equal shares, pairwise equalisation (Cai et al.), and the optimum.

All three answer in bytes per node, shape (N,), zero where a node is no server, adding up to the model; whole slices
come later (assignment.py). The cost that they fight is nodes.completion_s.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from nalb.errors import InputError
from nalb.planning.nodes import Capacities, Floats, Node, check_nodes, completion_s, linear_load, server_indices

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
        m_fast' = (b_slow (m_slow + m_fast) S_fast + a_slow S_fast - a_fast S_slow) / (b_fast S_slow + b_slow S_fast),
    which for nodes that are all worker and server (a = M, b = N - 2) is
        m_fast' = ((N-2)(m_slow + m_fast) S_fast - M (S_slow - S_fast)) / ((N-2)(S_fast + S_slow)),
    kept within [0, m_slow + m_fast]; until t_slow - t_fast <= tolerance t_slow.
    A server at 0 that is still slower than the rest leaves the pairing. Caps of pairs are not seen. Servers whose
    load does not depend on their share (two workers: b = 0) and fewer than two servers leave nothing to balance:
    equal shares. Every exchange lowers sum_i (a_i m_i + b_i m_i^2 / 2) / S_i, so the loop ends.

    Bytes, shape (N,); ties go to the lower index. Cost: O(log N) an exchange, about N/2 exchanges per halving of
    the spread. Raises InputError for a tolerance that is not in (0, 1). Source: Cai et al., Algorithm 1; its Eq. 14 prints
    (S_min - S_max) below the line, a slip of sign that divides by zero on equal links: solved again from Eqs. 12 and
    13.
    """
    check_nodes(nodes, model_bytes, capacities)
    if not 0 < tolerance < 1:
        raise InputError(f"pairwise: tolerance {tolerance:g} is not between 0 and 1: 0.01 is 1 % of the slowest time")
    shares = average(nodes, model_bytes)
    fixed, per_share = linear_load(nodes, model_bytes)
    servers = server_indices(nodes)
    if len(servers) < 2 or (per_share[servers] <= 0).any():
        return shares
    m, a, b, rate = (x[servers].tolist() for x in (shares, fixed, per_share, capacities.limit))
    times = [(a[i] + b[i] * m[i]) / rate[i] for i in range(len(m))]
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
        moved = b[slow] * both * rate[fast] + a[slow] * rate[fast] - a[fast] * rate[slow]
        moved /= b[fast] * rate[slow] + b[slow] * rate[fast]
        m[fast] = min(max(moved, 0.0), both)
        m[slow] = both - m[fast]
        for i in (slow, fast):
            times[i] = (a[i] + b[i] * m[i]) / rate[i]
            heapq.heappush(slowest, (-times[i], i))
            heapq.heappush(fastest, (times[i], i))
    shares[servers] = m
    return shares


def exact(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> tuple[Floats, float]:
    """The shares of least completion time, and that time in seconds.

    min T  subject to  a_i + b_i m_i <= T c_i,  w_i m_i + w_j m_j <= T s_ij per capped pair,  sum_i m_i = M,  m_i >= 0;
    c_i the smaller of node i's directions, since its load is the same both ways. Where a worker alone sets T, the
    other servers are still levelled as low as they can be.

    Bytes, shape (N,), and seconds. Cost: O(N log N) by one sort (see fill) without caps of pairs; with them a few
    linear programs of N + 1 variables and N + pairs rows. Raises InputError where there is no server, no worker or no
    byte. Source: the model of Cai et al., Eq. 10, solved outright; the pairs are ours.
    """
    check_nodes(nodes, model_bytes, capacities)
    fixed, per_share = linear_load(nodes, model_bytes)
    shares = np.zeros(len(nodes))
    if (per_share < 0).any():  # the only worker is a server as well: all stays on its loopback
        shares[per_share < 0] = model_bytes
        return shares, 0.0
    servers, rate = server_indices(nodes), capacities.limit
    shares[servers] = fill(fixed[servers] / rate[servers], per_share[servers] / rate[servers], model_bytes)
    if capacities.pairs:
        # scipy.optimize takes half a second to import, and few jobs have caps of pairs
        from nalb.planning.pair_caps import level_with_pairs

        shares = level_with_pairs(nodes, model_bytes, capacities, shares)
    return shares, completion_s(nodes, shares, model_bytes, capacities)


def bound_s(nodes: Sequence[Node], model_bytes: float, capacities: Capacities) -> float:
    """The least time in seconds that any shares reach: `exact`'s T. Without loss, latency, headers or TCP."""
    return exact(nodes, model_bytes, capacities)[1]


def fill(start_s: Floats, slope_s: Floats, total_bytes: float) -> Floats:
    """Pour `total_bytes` into vessels to a common level t: m_i = max(0, (t - start_i) / slope_i), sum_i m_i = total.

    start_s: time of server i without a share, seconds, shape (K,), K >= 1; slope_s: seconds per byte of share, >= 0.
    The level is found over prefixes of the sorted starts, t_k = (total + sum start/slope) / (sum 1/slope), the first
    with t_k <= start_(k+1). A slope of 0 takes any share at its start: there the level stays, and such servers take
    the rest in equal parts (all of them: it costs none of them anything). Returns bytes, shape (K,). Cost: O(K log K).
    """
    shares = np.zeros(len(start_s))
    rising = np.flatnonzero(slope_s > 0)
    flat = np.flatnonzero(slope_s <= 0)
    level = np.inf
    if len(rising):
        order = rising[np.argsort(start_s[rising], kind="stable")]
        inverse = 1.0 / slope_s[order]
        levels = (total_bytes + np.cumsum(start_s[order] * inverse)) / np.cumsum(inverse)
        level = float(levels[np.argmax(levels <= np.append(start_s[order][1:], np.inf))])
    if len(flat):
        level = min(level, float(start_s[flat].min()))
    shares[rising] = np.maximum(0.0, (level - start_s[rising]) / slope_s[rising])
    left = total_bytes - shares.sum()
    if len(flat):
        shares[flat] = max(0.0, left) / len(flat)
    shares *= total_bytes / shares.sum()  # what rounding left over
    return shares
