"""From samples to capacities: the estimators that can be chosen.

`PaperEstimator` (Cai et al., Eqs. 6 and 8) averages each link's rates and adds up a node's links. Its estimate of a node is too
low where the node's peers limit it. `CapacityEstimator` (capacity.py), the default, asks which ends were full while others waited
for them.

Both take in each iteration once and answer at any time. Both are pure: the same samples give the same estimate.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from nalb.measurement.capacity import CapacityEstimator
from nalb.measurement.estimates import Estimate, UplinkRates
from nalb.measurement.rules import RULES, Rules
from nalb.measurement.traffic import Traffic
from nalb.planning.sites import Sites


class Estimator(Protocol):
    """Takes in one iteration's traffic after the other, and answers what is known of the links."""

    def observe(self, traffic: Traffic) -> bool:
        """Take one iteration in; returns whether it refuted an estimate."""
        ...

    def estimate(self) -> Estimate:
        """The rates to plan on."""
        ...


class PaperEstimator:
    """Estimates S_i = sum_j s_ij with s_ij the mean of the link's sample rates (Cai et al., Eqs. 6 and 8).

    A directed pair has two connections, pushes and answers, that share its rate; their means are added.

    The paper averages all records of a link. In a network that changes the newest must weigh more, so each mean is of one iteration
    alone. Links that an iteration does not use keep their last value.
    """

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        self._connection = np.full((2, self._num_nodes, self._num_nodes), np.nan)  # pushes, answers

    def observe(self, traffic: Traffic) -> bool:
        """Replace the mean of each link that has samples. Returns False: an estimate is replaced, never refuted."""
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
        """The sum over each node's links; NaN for a node without samples."""
        known = np.isfinite(self._connection)
        link = np.where(known.any(axis=0), np.where(known, self._connection, 0.0).sum(axis=0), np.nan)
        up, down = (np.where(np.isfinite(link).any(axis=axis), np.nansum(link, axis=axis), np.nan) for axis in (1, 0))
        return Estimate(up, down, np.array([up, down]))


class SiteEstimator:
    """Makes an estimator for sites of any estimator: one instance for the machines' links, one for the star whose nodes are sites.

    The second one sees the traffic between sites, and takes the traffic of all machines of a site for that of one node. Caps of
    pairs are left out: plans by sites cannot take them into account.
    """

    def __init__(self, new_estimator: Callable[[int], Estimator], sites: Sites):
        self._sites = sites
        self._nodes, self._star = new_estimator(len(sites.of_node)), new_estimator(sites.count)

    def observe(self, traffic: Traffic) -> bool:
        """Both instances take the iteration in; returns whether it refuted an estimate of either."""
        is_refuted = self._nodes.observe(traffic)
        between = traffic.grouped(self._sites.place)
        return (between is not None and self._star.observe(between)) or is_refuted

    def estimate(self) -> Estimate:
        """The machines' rates from the one instance, the uplinks' from the other."""
        nodes, star = self._nodes.estimate(), self._star.estimate()
        shared = UplinkRates(np.array([star.up, star.down]), star.least)
        return Estimate(nodes.up, nodes.down, nodes.least, {}, shared)


def estimator_of(
    new_estimator: Callable[[int], Estimator], num_nodes: int, sites: Sites | None = None, rules: Rules = RULES
) -> Estimator:
    """A job's estimator. new_estimator: makes one from the number of nodes. sites: None where sums have one level.

    Only nalb's own default estimator follows `rules` and knows sites by itself.
    """
    if new_estimator is CapacityEstimator:
        return CapacityEstimator(num_nodes, sites, rules)
    return new_estimator(num_nodes) if sites is None else SiteEstimator(new_estimator, sites)


DEFAULT_ESTIMATOR = "capacity"
ESTIMATORS: dict[str, Callable[[int], Estimator]] = {"paper": PaperEstimator, "capacity": CapacityEstimator}
