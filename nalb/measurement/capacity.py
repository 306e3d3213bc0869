"""What is known of the network: each direction's capacity and the caps of pairs, by what iterations prove (evidence.py).

Only the directions that hold iterations up need to be known. So a direction without proof is planned on with optimism: if it is
slower than that, it becomes the last to end, and then the iteration proves its capacity. No wrong value keeps itself alive: a
value that is too high causes an overrun that proves it wrong, and a value that is too low is exceeded. Lower case names are
fields of Rules.

    evidence                                      conclusion                             effect on plans
    a direction was full while others waited      that is its capacity                   plans use it
    it carried more than is proven                it has at least so much                plans use `optimism` times that
    it carried much more than was known           it may have far more                   plans use `growth` times that
    it carried even more than that                the same                               plans use `growth` times that growth
    a known rate was refuted                      the network changed                    older proofs become lower bounds
    the same at a node whose cores were full      cores divide their time otherwise      its value follows, nothing is refuted
                                                  between what comes and what goes
    an end carried less than before, and          the end has room                       its value stays
    few of its bytes were held back
    most bytes of an end were held back at once   the end became slower                  bytes that travelled before do not count
    it carried less while more waited for it      the same, and it was full since then   plans use what it carried since then
    nothing is known yet                          at least what a direction carried      equal shares until all have carried
    a pair was held back, both ends had room      the pair has a cap                     plans avoid the pair
    a capped pair carried more                    it has no such cap                     the cap is dropped
    no proof in every `doubt_iterations`-th one   at least so much, also for a cap       plans use `optimism` times that
"""

import numpy as np

from nalb.measurement.estimates import Estimate, UplinkRates, uplink_rates
from nalb.measurement.evidence import evidence
from nalb.measurement.rules import RULES, Rules
from nalb.measurement.traffic import Traffic
from nalb.planning.sites import Sites


class CapacityEstimator:
    """Estimates capacities by proof, and lower bounds where there is no proof."""

    def __init__(self, num_nodes: int, sites: Sites | None = None, rules: Rules = RULES):
        """sites: the nodes' sites, where machines share uplinks; then rows 2 and 3 hold the uplinks (evidence.py)."""
        self._num_nodes, self._sites, self._rules = num_nodes, sites, rules
        shape = 2 if sites is None else 4, num_nodes
        self._rate = np.zeros(shape)  # bytes per second, up and down; 0 while nothing is known
        self._proven = np.zeros(shape, dtype=np.bool_)  # False: the rate is a lower bound
        self._growth = np.ones(shape)  # times the rate: planned on after an iteration that exceeded it
        # Whether a way leads between sites. Exceeding a LAN's lower bound refutes nothing: the LAN has more room than was known.
        self._is_shared = np.ones(shape, dtype=np.bool_)
        noise = rules.noise
        self._noise = np.array([noise, noise, noise**2, noise**2])[: shape[0], np.newaxis]  # by way, see evidence.py
        if sites is not None:
            self._is_shared[:2] = sites.machines == 1
        self._caps: dict[tuple[int, int], float] = {}  # bytes per second
        self._iterations = 0

    def observe(self, traffic: Traffic) -> bool:
        """Take one iteration in; returns whether it refuted an estimate."""
        rules, known = self._rules, self._rate
        rates, caps = known if rules.knows_rates else 0.0, self._caps if rules.knows_caps else {}
        found = evidence(traffic, self._num_nodes, rates, caps, self._sites, rules=rules)
        capacity, proven = found.capacity, np.isfinite(found.capacity)
        hoped = (1.0 if traffic.is_stale else self._growth) * known
        within = hoped if rules.hope_refutes_nothing else known  # a rate within this leaves estimates valid
        is_near = (capacity < rules.noise * within) & (known < rules.noise * capacity)
        exceeded = ~proven & (found.least > self._noise * known)
        bound = np.where(self._proven & ~exceeded, known, np.maximum(known, found.least))
        moved = (1 - rules.proof_weight) * known + rules.proof_weight * capacity
        self._rate = np.where(proven, np.where(is_near & self._proven, moved, capacity), bound)
        self._iterations += 1
        grows = (found.least > self._noise * hoped) & (rules.growth_grows and not traffic.is_stale)
        rest = self._growth if traffic.is_stale else 1.0  # no plan has hoped for a growth that is newer
        self._growth = np.where(exceeded & (known > 0), rules.growth * np.where(grows, self._growth, 1.0), rest)
        matters = ~proven & (found.least > self._noise * within) & self._is_shared
        is_other = (known > 0) & (proven & ~is_near | matters)
        if rules.full_cores_refute_nothing:
            is_other[:2] &= np.logical_not(traffic.has_full_cores)
        is_refuted = bool(found.has_slowed or is_other.any())
        doubts = self._iterations % rules.doubt_iterations == 0
        self._proven = proven | self._proven & ~exceeded & (not (doubts or is_refuted))
        highest = rules.noise if rules.drops_caps else np.inf  # times its cap: a pair that carried more has no such cap
        kept = {pair: cap for pair, cap in self._caps.items() if found.carried.get(pair, 0.0) <= highest * cap}
        new = found.caps if rules.finds_caps else {}
        grown = {pair: cap * (rules.optimism if doubts else 1.0) for pair, cap in kept.items()} | new
        self._caps = {pair: cap for pair, cap in grown.items() if np.isfinite(cap)}
        return is_refuted

    def estimate(self) -> Estimate:
        """The rates to plan on, and what is proven of them."""
        least = np.where(self._rate > 0, self._rate, np.nan)
        rates = np.where(self._proven, least, np.maximum(self._growth, self._rules.optimism) * least)
        if self._sites is None:
            return Estimate(rates[0], rates[1], least, dict(self._caps))
        sites = self._sites  # plans by sites cannot take caps of pairs into account
        shared = UplinkRates(*(uplink_rates(sites, one[2:, : sites.count], one[:2]) for one in (rates, least)))
        return Estimate(rates[0], rates[1], least[:2], {}, shared)
