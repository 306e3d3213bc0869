"""What each rule of the estimator and of trust is worth: networks of every family, simulated with all rules and without each.

A rule is left out by an edit of its module's source, within this process alone. Networks, iterations and starts are those of
simulate_families.py. Printed are times without the rule over times with it, mean and worst: of what counts, and of all iterations.
"""

import argparse
import sys
from inspect import getsource
from itertools import product
from types import ModuleType

import numpy as np

from nalb.feedback import trust
from nalb.measurement import capacity, estimators, evidence
from nalb.protocol import planner
from nalb.simulation.families import STAR_FAMILIES
from simulate_families import simulate

RULES: dict[str, tuple[tuple[ModuleType, str, str], ...]] = {
    "all rules": (),
    "proof moves halfway": ((capacity, "(known + capacity) / 2", "capacity"),),
    "proof by one end alone": ((evidence, "explains & may_explain & (may_explain.sum(axis=0) == 1)", "explains"),),
    "fewest ends": ((evidence, "if by_fewest:", "if False:"),),
    "growth grows": ((capacity, "np.where(found.least > hoped, GROWTH * self._growth, GROWTH)", "GROWTH"),),
    "as hoped": (
        (capacity, "(capacity < NOISE * hoped)", "(capacity < NOISE * known)"),
        (capacity, "self._noise * hoped", "self._noise * known"),
    ),
    "full cores refute nothing": ((capacity, "np.logical_not(traffic.has_full_cores)", "True"),),
    "optimism": ((capacity, "OPTIMISM = 1.1", "OPTIMISM = 1.0"),),
    "15 % refute nothing": ((capacity, "NOISE = 1.15", "NOISE = 1.0"),),
    "doubt": ((capacity, "DOUBT = 16", "DOUBT = 10**9"),),
    "cap": ((capacity, " | found.caps", ""),),
    "cap dropped": ((capacity, "found.carried.get(pair, 0.0) <= NOISE * cap", "True"),),
    "cap is steady": ((evidence, "is_held_back & (of_pair >= FULL * best_of_pair[:, np.newaxis])", "is_held_back"),),
    "none much faster": ((evidence, "LEVEL = 0.75", "LEVEL = 0.0"),),
    "what ends carried before": ((capacity, "self._rate, self._caps", "0.0, self._caps"),),
    "what caps are known": ((capacity, "self._rate, self._caps", "self._rate, {}"),),
    "look again": ((trust, "self._is_settled = not (outcome.is_refuted or (is_late and has_window))", "self._is_settled = True"),),
    "look now and then": ((trust, "is_due = self._since_free >= self._every_free", "is_due = False"),),
    "regret": ((trust, "MOST_REGRET = 1.0", "MOST_REGRET = 1e9"),),
}  # fmt: skip


def leave_out(*edits: tuple[ModuleType, str, str]) -> None:
    """Have planners made from now on follow all rules but these."""
    for module in (evidence, capacity, trust):
        source = getsource(module)
        for _, old, new in (edit for edit in edits if edit[0] is module):
            assert old in source, f"{module.__name__} has no {old!r} any more"
            source = source.replace(old, new)
        exec(compile(source, module.__name__, "exec"), module.__dict__)
    estimators.ESTIMATORS["capacity"] = capacity.CapacityEstimator
    vars(planner).update(Trust=trust.Trust, Outcome=trust.Outcome)


def main() -> int:
    """Simulate and print a line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, help="of the networks, comma-separated")
    parser.add_argument("--noise", action="store_true", help="blur times as recorded runs have it")
    args = parser.parse_args()
    drawn = list(product(STAR_FAMILIES, [args.noise], product(map(int, args.seeds.split(",")), (0, 1))))
    with_all = None
    for name, edits in RULES.items():
        leave_out(*edits)
        rows = [simulate(*one) for one in drawn]
        times = np.array([(row["over_true"], sum(row["times_s"])) for row in rows])
        with_all = times if with_all is None else with_all
        ratio = times / with_all
        worst = [rows[k]["family"] for k in ratio.argmax(axis=0).tolist()]
        (counted, every), (most, most_of_all) = ratio.mean(axis=0), ratio.max(axis=0)
        print(
            f"{name}: {counted:.3f}, worst {most:.3f} ({worst[0]}); all {every:.3f}, {most_of_all:.3f} ({worst[1]})",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
