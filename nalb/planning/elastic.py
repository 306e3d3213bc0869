"""Scheme `elastic` (Chen et al., SoCC 2020, as Cai et al. compare with it): it learns each server's time from its load.

For each server it fits a straight line, time = a load + b, by least squares over the last observations. Then it chooses the shares
for which the predicted times are equal. A line needs two different loads, and equal shares give only one. So until every server
has seen two loads, shares are moved a little from slow servers to fast ones. The scheme does not see the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nalb.errors import InputError, listed
from nalb.planning.filling import fill
from nalb.planning.nodes import Floats, Node, check_nodes, server_indices

OBSERVATIONS_KEPT = 10  # of each server: those of a few plans, so that a changed network is soon learnt (ours)
# The slice size that the scheme takes from experience, whatever the model. Cai et al. name no value; this one lies amid those
# that the default alpha gives MobileNet, ResNet-50 and AlexNet on six nodes (46 to 200 kB). BytePS's default of 4 MB
# would leave most servers of a small model without a slice.
FIXED_SLICE_BYTES = 131_072
DISTINCT_PART = 0.01  # part of the larger load: loads that differ by less tell only noise about a slope
EXPLORE_FACTOR = 1.25  # the most by which one exploring step changes a share
EXPLORE_LOW_PART = 0.05  # part of an equal share that an idle server gets, so that it is observed
EQUAL_PART = 0.01  # part of the slowest time: times that differ by less count as equal


@dataclass(frozen=True)
class ServerObservation:
    """The load and the time of one server in one iteration."""

    load_bytes: float  # m_i, the bytes that the server summed
    time_s: float  # until the server's last slice was back at every worker

    def __post_init__(self) -> None:
        if not (np.isfinite(self.load_bytes) and self.load_bytes >= 0 and np.isfinite(self.time_s) and self.time_s > 0):
            raise InputError(
                f"observation of {self.load_bytes:g} bytes in {self.time_s:g} s: give bytes >= 0 and a time above 0"
            )


def fit_line(observations: Sequence[ServerObservation]) -> tuple[float, float]:
    """(a, b) of time = a load + b by least squares: a in seconds per byte, b in seconds.

    a = cov(load, time) / var(load), b = mean(time) - a mean(load); at least two different loads. Cost:
    O(observations).
    """
    loads = np.array([o.load_bytes for o in observations])
    times = np.array([o.time_s for o in observations])
    centred = loads - loads.mean()
    slope = float(centred @ (times - times.mean()) / (centred @ centred))
    return slope, float(times.mean() - slope * loads.mean())


def elastic(
    nodes: Sequence[Node], model_bytes: float, observations: Sequence[Sequence[ServerObservation]]
) -> tuple[Floats | None, str]:
    """Shares in bytes, shape (N,), whose predicted times are equal, with the reason; None: keep the present shares.

    observations: one sequence per node, newest last, empty for nodes that are no server. The shares are max(0, (t - b_i) / a_i)
    with the t for which they add up to M; a_i and b_i are fit_line's over server i's last OBSERVATIONS_KEPT observations. A line
    that does not rise with the load is noise: then a_i is the mean time per byte and b_i = 0, and the reason names the server.
    While a server has not seen two different loads, the shares are those of `_explore`. None where a server has no observation, or
    where all times are equal while exploring. Cost: O(N (OBSERVATIONS_KEPT + log N)). Raises InputError for a wrong number of
    sequences. Source: Chen et al., SoCC 2020, from the description in Cai et al., section 2.
    """
    check_nodes(nodes, model_bytes)
    if len(observations) != len(nodes):
        raise InputError(f"{len(observations)} windows of observations for {len(nodes)} nodes: give one per node")
    servers = server_indices(nodes)
    windows = [observations[int(server)][-OBSERVATIONS_KEPT:] for server in servers]
    names = [nodes[int(server)].name for server in servers]
    unseen = [name for name, window in zip(names, windows, strict=True) if not window]
    if unseen:
        return None, f"elastic: keep the shares, no observation of {listed(unseen)}"
    shares = np.zeros(len(nodes))
    flat = [name for name, window in zip(names, windows, strict=True) if not _has_two_loads(window)]
    if flat:
        explored = _explore(windows, model_bytes)
        if explored is None:
            return None, "elastic: keep the shares, the servers take equally long"
        shares[servers] = explored
        return shares, f"elastic: explore, fewer than two different loads seen of {listed(flat)}"
    lines = [fit_line(window) for window in windows]
    not_rising = [name for name, (slope, _) in zip(names, lines, strict=True) if slope <= 0]
    lines = [line if line[0] > 0 else (_mean_slope(window), 0.0) for line, window in zip(lines, windows, strict=True)]
    slope_s, start_s = (np.array(column) for column in zip(*lines, strict=True))
    shares[servers] = fill(start_s[np.newaxis], slope_s[np.newaxis], model_bytes)
    if not_rising:
        return shares, f"elastic: time does not rise with load, mean time per byte taken for {listed(not_rising)}"
    return shares, "elastic: equal predicted times"


def _has_two_loads(window: Sequence[ServerObservation]) -> bool:
    loads = [o.load_bytes for o in window]
    return max(loads) - min(loads) > DISTINCT_PART * max(loads)


def _mean_slope(window: Sequence[ServerObservation]) -> float:
    return sum(o.time_s for o in window) / sum(o.load_bytes for o in window)


def _explore(windows: Sequence[Sequence[ServerObservation]], model_bytes: float) -> Floats | None:
    """The last shares times (mean time / own time), shape (servers,), scaled to the model; None if times are equal.

    The factor stays within EXPLORE_FACTOR. Shares below EXPLORE_LOW_PART of an equal share are raised to it first.
    """
    loads = np.array([window[-1].load_bytes for window in windows])
    times = np.array([window[-1].time_s for window in windows])
    if times.max() - times.min() <= EQUAL_PART * times.max():
        return None
    lifted = np.maximum(loads, EXPLORE_LOW_PART * model_bytes / len(windows))
    moved = lifted * np.clip(times.mean() / times, 1 / EXPLORE_FACTOR, EXPLORE_FACTOR)
    return np.asarray(moved * (model_bytes / moved.sum()), dtype=np.float64)
