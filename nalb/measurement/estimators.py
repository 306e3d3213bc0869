"""From samples to capacities: the estimators that can be chosen.

`PaperEstimator` (Cai et al., Eqs. 6 and 8) divides each link's bytes by the time that they took, and adds up a node's links. Its
estimate of a node is too low where the node's peers limit it, and too high where its links take turns. `CapacityEstimator`
(capacity.py), the default, asks which ends were full while others waited for them.

Both take in each iteration once and answer at any time. Both are pure: the same samples give the same estimate.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from nalb.measurement.capacity import CapacityEstimator
from nalb.measurement.estimates import Estimate, UplinkRates
from nalb.measurement.rules import RULES, Rules
from nalb.measurement.samples import READ_S, Samples
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


PAPER_MEMORY = 0.5  # weight of a link's earlier records once an iteration adds new ones. Choice.


class PaperEstimator:
    """Estimates S_i = sum_j s_ij with s_ij the rate of the link from node i to node j (Cai et al., Eqs. 6 and 8).

    The paper times each message on its own, size over (end - start), and takes the mean of all these rates as s_ij. Four things
    differ here, since a mean of rates breaks down in a real job: a message that was read right after its forecast, both waiting,
    took microseconds, and a single such rate outweighs thousands of others.

    - Messages of one connection that were read in a row, less than READ_S apart, make one record. A record shorter than READ_S
      says nothing: its bytes had all come before. So probes of 7 kB do, in place of the paper's 40 kB.
    - s_ij is bytes over time, which weighs each record by the time that it took.
    - A directed pair has two connections, pushes and answers, that share its rate. Their bytes add up, and the time is that in
      which at least one of them had a record.
    - The paper averages a link's records of all iterations. In a network that changes the newest must weigh more, so each
      iteration's records weigh twice as much as those of the one before. Links that an iteration does not use keep their value.
    """

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        self._bytes, self._time_s = np.zeros((2, num_nodes, num_nodes))  # of each link's records

    def observe(self, traffic: Traffic) -> bool:
        """Take in the records of each link. Returns False: an estimate follows its records, and none is ever refuted."""
        records = read_together(traffic.samples)
        if not len(records):
            return False
        count, read = self._num_nodes**2, Traffic(records)
        link = read.source * self._num_nodes + read.target
        time_s = read.active(link, count, 1).reshape(self._time_s.shape)
        memory = np.where(time_s > 0, PAPER_MEMORY, 1.0)
        self._time_s = memory * self._time_s + time_s
        self._bytes = memory * self._bytes + np.bincount(link, read.size_bytes, count).reshape(self._bytes.shape)
        return False

    def estimate(self) -> Estimate:
        """The sum over each node's links; NaN for a node without records."""
        is_known = self._time_s > 0
        rate = np.divide(self._bytes, self._time_s, out=np.zeros_like(self._bytes), where=is_known)
        up, down = (np.where(is_known.any(axis=axis), rate.sum(axis=axis), np.nan) for axis in (1, 0))
        return Estimate(up, down, np.array([up, down]))


def read_together(samples: Samples) -> Samples:
    """One sample for all messages of a connection that were read in a row, less than READ_S apart, by connection and time.

    It has their bytes, the first start and the last end. A row that was read within READ_S is left out.
    """
    ordered = samples[np.lexsort((samples["end_s"], samples["is_push"], samples["target"], samples["source"]))]
    is_next = ordered["start_s"][1:] - ordered["end_s"][:-1] < READ_S
    for name in ("source", "target", "is_push"):
        is_next &= ordered[name][1:] == ordered[name][:-1]
    first = np.flatnonzero(np.append(True, ~is_next))
    joined = ordered[first]
    joined["size_bytes"] = np.add.reduceat(ordered["size_bytes"], first)
    joined["start_s"] = np.minimum.reduceat(ordered["start_s"], first)
    joined["end_s"] = np.maximum.reduceat(ordered["end_s"], first)
    return np.asarray(joined[joined["end_s"] - joined["start_s"] >= READ_S])


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
