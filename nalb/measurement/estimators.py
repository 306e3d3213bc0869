"""From samples to capacities: the estimators that can be chosen.

`PaperEstimator` (Cai et al., Eqs. 6 and 8) averages each link's rates and adds a node's links up. A node whose peers
limit it reads low. `CapacityEstimator` (capacity.py), the default, asks which ends were full while others waited for them.

Both are fed once per iteration and answer at any time; both are pure: the same samples give the same estimate.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from nalb.measurement.capacity import CapacityEstimator
from nalb.measurement.estimates import Estimate, UplinkRates
from nalb.measurement.traffic import Traffic
from nalb.planning.sites import Sites


class Estimator(Protocol):
    """One iteration's traffic in, the present estimate out."""

    def observe(self, traffic: Traffic) -> bool:
        """Take one iteration in; returns whether it refuted what was known."""
        ...

    def estimate(self) -> Estimate: ...


class PaperEstimator:
    """S_i = sum_j s_ij with s_ij the mean of the link's sample rates (Cai et al., Eqs. 6 and 8).

    A directed pair has two connections, pushes and answers, that share its rate; their means are added.

    The paper averages all of a link's records; a network that changes needs the newest to weigh more, so each iteration's
    mean is taken over that iteration alone. Links not used in an iteration keep their last value.
    """

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        self._connection = np.full((2, self._num_nodes, self._num_nodes), np.nan)  # pushes, answers

    def observe(self, traffic: Traffic) -> bool:
        """Replace the mean of each link that has samples. What was known is never refuted: it is replaced."""
        rate = traffic.size_bytes / (traffic.end_s - traffic.start_s)
        place = (np.where(traffic.is_push, 0, 1), traffic.source, traffic.target)
        key = np.ravel_multi_index(place, self._connection.shape)
        total, count = (
            np.bincount(key, weight, self._connection.size).reshape(self._connection.shape) for weight in (rate, None)
        )
        seen = count > 0
        self._connection[seen] = total[seen] / count[seen]
        return False

    def estimate(self) -> Estimate:
        """Sums over each node's links; a node without any sample is NaN."""
        known = np.isfinite(self._connection)
        link = np.where(known.any(axis=0), np.where(known, self._connection, 0.0).sum(axis=0), np.nan)
        up, down = (np.where(np.isfinite(link).any(axis=axis), np.nansum(link, axis=axis), np.nan) for axis in (1, 0))
        return Estimate(up, down, np.array([up, down]))


class SiteEstimator:
    """Any estimator with sites: one of it for the machines' links, and one for the star whose nodes are the sites.

    The second sees what travels between sites, and takes what all machines of a site carry together as one node's. Caps of pairs
    are left out: they cannot be planned on there.
    """

    def __init__(self, new_estimator: Callable[[int], Estimator], sites: Sites):
        self._sites = sites
        self._nodes, self._star = new_estimator(len(sites.of_node)), new_estimator(sites.count)

    def observe(self, traffic: Traffic) -> bool:
        """Both take it in; whether it refuted what either knew."""
        is_refuted = self._nodes.observe(traffic)
        between = traffic.grouped(self._sites.place)
        return (between is not None and self._star.observe(between)) or is_refuted

    def estimate(self) -> Estimate:
        """Of both."""
        nodes, star = self._nodes.estimate(), self._star.estimate()
        shared = UplinkRates(np.array([star.up, star.down]), star.least)
        return Estimate(nodes.up, nodes.down, nodes.least, {}, shared)


def with_sites(new_estimator: Callable[[int], Estimator], sites: Sites) -> Estimator:
    """An estimator of a job that sums by sites."""
    if new_estimator is CapacityEstimator:
        return CapacityEstimator(len(sites.of_node), sites)
    return SiteEstimator(new_estimator, sites)


DEFAULT_ESTIMATOR = "capacity"
ESTIMATORS: dict[str, Callable[[int], Estimator]] = {"paper": PaperEstimator, "capacity": CapacityEstimator}
