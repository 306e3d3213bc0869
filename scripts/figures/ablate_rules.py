"""Measures the worth of each rule: simulates networks of every family with all rules, and without each rule in turn.

Other values for fields of Rules leave a rule out. Networks, iterations and starts are those of simulate_families.py. The script
prints times without the rule over times with it, their mean and their worst: first of the iterations that count, then of all
iterations.
"""

import argparse
import sys
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from nalb.measurement.rules import RULES
from nalb.simulation.families import STAR_FAMILIES
from simulate_families import simulate

NEVER = 10**9  # more iterations, or iterations' worth of equal shares, than any simulation has
# The changed fields of Rules that leave each rule out, by the name that is printed.
WITHOUT: dict[str, dict[str, Any]] = {
    "all rules": {},
    "proof moves halfway": {"proof_weight": 1.0},
    "proof by one end alone": {"proof_by_one_end": False},
    "fewest ends": {"fewest_ends": False},
    "queues show slower ends": {"queues_show_slower": False},
    "growth grows": {"growth_grows": False},
    "as hoped": {"hope_refutes_nothing": False},
    "full cores refute nothing": {"full_cores_refute_nothing": False},
    "optimism": {"optimism": 1.0},
    "15 % refute nothing": {"noise": 1.0},
    "doubt": {"doubt_iterations": NEVER},
    "cap": {"finds_caps": False},
    "cap dropped": {"drops_caps": False},
    "cap is steady": {"steady_part": 0.0},
    "none much faster": {"fastest_part": 0.0},
    "bytes of connections that last": {"lasting_part": 0.0},
    "what ends carried before": {"knows_rates": False},
    "what caps are known": {"knows_caps": False},
    "look again": {"looks_again": False},
    "look now and then": {"few_free": NEVER},
    "regret": {"most_regret": NEVER},
}


def main() -> int:
    """Simulate and print a line for each rule."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", required=True, help="of the networks, comma-separated")
    parser.add_argument("--noise", action="store_true", help="blur times as recorded runs have it")
    args = parser.parse_args()
    drawn = list(product(STAR_FAMILIES, [args.noise], product(map(int, args.seeds.split(",")), (0, 1))))
    with_all = None
    for name, fields in WITHOUT.items():
        rows = [simulate(*one, rules=replace(RULES, **fields)) for one in drawn]
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
