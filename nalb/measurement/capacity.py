"""What is known of the network: each direction's capacity and the caps of pairs, by what iterations prove (evidence.py).

Only what holds iterations up needs to be known. So whatever is not proven is planned on with optimism: if it is slower than
that, it becomes the last to end, and then the iteration proves what it can do. No wrong value keeps itself alive: one that is
too high is proven wrong by the overrun that it causes, one that is too low is exceeded.

    evidence                                      conclusion                             effect on plans
    a direction was full while others waited      that is its capacity                   planned on
    it carried more than is proven                at least so much                       planned on with OPTIMISM
    it carried much more than was known           it may have far more                   planned on with GROWTH
    it carried even more than that                the same                               with GROWTH times that growth
    something known was refuted                   the network changed                    older proofs are lower bounds
    the same of a node whose cores were full      they share their time otherwise        its value follows, nothing was refuted
                                                  between what comes and what goes
    an end carried less than before, and          it has room                            its value stays
    little of that was held back
    most bytes of an end were held back at once   the end became slower                  only what travelled since then counts
    nothing is known yet                          at least what it carried               equal shares until all have carried
    a pair was held back, both ends had room      the pair has a cap                     planned around
    a capped pair carried more                    it has no such cap                     the cap is dropped
    no proof in each DOUBT-th iteration           at least so much, a cap too            planned on with OPTIMISM
"""

import numpy as np

from nalb.measurement.estimates import Estimate, UplinkRates, uplink_rates
from nalb.measurement.evidence import evidence
from nalb.measurement.traffic import Traffic
from nalb.planning.sites import Sites

OPTIMISM = 1.1  # times what a direction has carried: so wrong may a plan be, for one iteration, to learn more
# Times what it carried, where that is much more than was known: 1.1 needs six iterations where a rate has tripled. Of 1.1, 1.3 and
# 1.5, measured on 50 simulated networks of family changing, the last one left the fewest plans behind, and 2 overshoots.
GROWTH = 1.5
NOISE = 1.15  # times: late readers and bursts make links look so much faster (6 to 18 % measured on wan6-static)
DOUBT = 16  # iterations until proof is asked for again, which costs up to OPTIMISM - 1 of one iteration


class CapacityEstimator:
    """Capacities by proof, lower bounds otherwise."""

    def __init__(self, num_nodes: int, sites: Sites | None = None):
        """sites: of the nodes, where machines share uplinks; then rows 2 and 3 are the uplinks' (evidence.py)."""
        self._num_nodes, self._sites = num_nodes, sites
        shape = 2 if sites is None else 4, num_nodes
        self._rate = np.zeros(shape)  # bytes per second, up and down; 0 while nothing is known
        self._proven = np.zeros(shape, dtype=np.bool_)  # else the rate is a lower bound
        self._growth = np.ones(shape)  # times the rate: planned on after an iteration that exceeded it
        # The ways between sites. A lower bound of a LAN's that is exceeded refutes nothing: the LAN has more room than was thought.
        self._is_shared = np.ones(shape, dtype=np.bool_)
        self._noise = np.array([NOISE, NOISE, NOISE**2, NOISE**2])[: shape[0], np.newaxis]  # by way, see evidence.py
        if sites is not None:
            self._is_shared[:2] = sites.machines == 1
        self._caps: dict[tuple[int, int], float] = {}  # bytes per second
        self._iterations = 0

    def observe(self, traffic: Traffic) -> bool:
        """Take one iteration in; returns whether it refuted what was known."""
        found = evidence(traffic, self._num_nodes, self._rate, self._caps, self._sites)
        known, capacity, proven = self._rate, found.capacity, np.isfinite(found.capacity)
        hoped = self._growth * known  # what comes out no higher refutes nothing
        is_near = (capacity < NOISE * hoped) & (known < NOISE * capacity)
        exceeded = ~proven & (found.least > self._noise * known)
        bound = np.where(self._proven & ~exceeded, known, np.maximum(known, found.least))
        self._rate = np.where(proven, np.where(is_near & self._proven, (known + capacity) / 2, capacity), bound)
        self._iterations += 1
        growth = np.where(found.least > hoped, GROWTH * self._growth, GROWTH)
        self._growth = np.where(exceeded & (known > 0), growth, 1.0)
        matters = ~proven & (found.least > self._noise * hoped) & self._is_shared
        is_other = (known > 0) & (proven & ~is_near | matters)
        is_other[:2] &= np.logical_not(traffic.has_full_cores)
        is_refuted = bool(found.has_slowed or is_other.any())
        doubts = self._iterations % DOUBT == 0
        self._proven = proven | self._proven & ~exceeded & (not (doubts or is_refuted))
        kept = {pair: cap for pair, cap in self._caps.items() if found.carried.get(pair, 0.0) <= NOISE * cap}
        self._caps = {pair: cap * (OPTIMISM if doubts else 1.0) for pair, cap in kept.items()} | found.caps
        return is_refuted

    def estimate(self) -> Estimate:
        """What to plan on."""
        least = np.where(self._rate > 0, self._rate, np.nan)
        rates = np.where(self._proven, least, np.maximum(self._growth, OPTIMISM) * least)
        if self._sites is None:
            return Estimate(rates[0], rates[1], least, dict(self._caps))
        sites = self._sites  # caps of pairs cannot be planned on there
        shared = UplinkRates(*(uplink_rates(sites, one[2:, : sites.count], one[:2]) for one in (rates, least)))
        return Estimate(rates[0], rates[1], least[:2], {}, shared)
