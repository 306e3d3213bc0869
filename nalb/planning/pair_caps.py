"""The optimum where single directed pairs are capped: a linear program, solved level by level.

Where one resource sets T, minimising T alone leaves the other shares open. A solver then answers with any corner, such as one that
makes all servers as slow as the slowest. So the resources that must take T (those with a price in the dual) are held there, and the
rest is minimised again. The times, sorted from the slowest, are then least in dictionary order, and do not depend on the order of
the nodes. Choice not taken: a quadratic second objective, which would need another solver.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack

from nalb.planning.nodes import Bools, Capacities, Floats, Node, completion_s, limits_s, pair_weights, server_indices

ROUNDS = 12  # levels that are held one after another, at most; further ones would change times too little to matter
PRICE = 1e-9  # larger dual values are prices; the prices add up to 1


def level_with_pairs(
    nodes: Sequence[Node],
    model_bytes: float,
    capacities: Capacities,
    start: Floats,
    is_leveled: bool,
    slice_bytes: float = 0.0,
    few: Bools | None = None,
) -> Floats:
    """Shares in bytes, shape (N,), of least completion time with caps of pairs. start: the optimum without caps, shape (N,).

    is_leveled: False where only the time matters: then the answer is any of the shares that take it.
    slice_bytes, few: see `limits_s`.

    min t  subject to  start_i + slope_i M y_i <= T0 t of each limit (nodes.limits_s),
    M (w_i y_i + w_j y_j) / s_ij <= T0 t,  sum y = 1,  y >= 0;
    y = m / M over the servers, and T0 the time without caps, so that all terms are near 1. Where `start` keeps the caps, it is
    the answer. Cost: linear programs of 2 N + pairs rows in HiGHS, until one answer is left, ROUNDS at most. Raises
    RuntimeError where the solver fails.
    """
    unit_s = completion_s(nodes, start, model_bytes, replace(capacities, pairs={}))
    if completion_s(nodes, start, model_bytes, capacities) <= unit_s:
        return start
    servers = server_indices(nodes)
    column = {int(node): k for k, node in enumerate(servers)}
    entries: list[tuple[int, int, float]] = []  # row, column, coefficient: time over T0 per y
    base: list[float] = []  # per row: time over T0 without any share
    of_node = limits_s(nodes, model_bytes, capacities, slice_bytes, few).transpose(2, 0, 1) / unit_s
    for node, lines in enumerate(of_node.tolist()):
        for start_part, slope_part in dict.fromkeys(map(tuple, lines)):  # of two equal rows only one would have a price
            if node in column:
                entries.append((len(base), column[node], slope_part * model_bytes))
            base.append(start_part)
    for pair, rate in capacities.pairs.items():
        for node, weight in zip(pair, pair_weights(nodes, pair), strict=True):
            if weight:
                entries.append((len(base), column[node], weight * model_bytes / (rate * unit_s)))
        base.append(0.0)
    rows, columns, values = zip(*entries, strict=True)
    matrix = csr_matrix((values, (rows, columns)), shape=(len(base), len(servers)))
    y = _least_levels(matrix, np.array(base), ROUNDS if is_leveled else 1)
    shares = np.zeros(len(nodes))
    shares[servers] = y * model_bytes
    return shares


def _least_levels(matrix: csr_matrix, base: Floats, rounds: int) -> Floats:
    """The y >= 0 with sum 1 for which the values `matrix @ y + base`, sorted downwards, are least in dictionary order.

    rounds: how many of the values are made least.
    """
    num_rows, num_columns = matrix.shape
    free = np.ones(num_rows, dtype=bool)  # rows bounded by t; the others are bounded by `held`
    held = np.zeros(num_rows)
    objective = np.append(np.zeros(num_columns), 1.0)
    total = np.append(np.ones(num_columns), 0.0)[np.newaxis, :]
    y = np.zeros(num_columns)
    for _ in range(rounds):
        constraints = hstack([matrix, csr_matrix(-free.astype(np.float64)[:, np.newaxis])], format="csr")
        result = linprog(objective, constraints, held - base, total, [1.0], bounds=(0, None), method="highs")
        if result.x is None and y.any():
            break  # rounding may put a level that is held to the last digit out of reach: the solution before stands
        if result.x is None:
            raise RuntimeError(f"the linear program of the shares was not solved: {result.message}")
        y = np.maximum(result.x[:-1], 0.0)
        priced = free & (-result.ineqlin.marginals > PRICE)
        held[priced] = result.x[-1]
        free &= ~priced
        if not priced.any() or not free.any() or _is_single(matrix[~free]):
            break
    return np.asarray(y / y.sum(), dtype=np.float64)


def _is_single(held: csr_matrix) -> bool:
    """Whether no other y with sum 1 has the same values in these rows."""
    rows, columns = held.shape
    if rows + 1 < columns:
        return False
    return bool(np.linalg.matrix_rank(np.vstack([held.toarray(), np.ones(columns)])) == columns)
