"""Rules of the estimator and of trust: without each, a small case comes out otherwise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from nalb.feedback.trust import Outcome, Trust
from nalb.measurement.capacity import CapacityEstimator
from nalb.measurement.rules import RULES
from nalb.measurement.traffic import Traffic
from tests.measurement.test_estimators import EQUAL, simulated
from tests.measurement.test_evidence import BOTH, FIRST, MB, streams

FULL, ROOM = [5 * MB, 20 * MB, 20 * MB, 20 * MB], [20 * MB] * 4  # of node 0, up and down
HALVES = [0, 0, 0.5, 0.5]


def carried(
    rates: Sequence[float], shares: Sequence[float] = EQUAL, has_full_cores: bool = False, **other: Any
) -> Traffic:
    """One exchange over links with these rates each way."""
    traffic = simulated(rates, rates, shares, **other)
    traffic.has_full_cores = has_full_cores
    return traffic


def told(
    iterations: Sequence[Traffic], **without: Any
) -> tuple[list[bool], list[list[float]], dict[tuple[int, int], float]]:
    """What an estimator with other rules says: which iterations refuted an estimate, and in the end rates and caps."""
    capacity = CapacityEstimator(4, rules=replace(RULES, **without))
    refuted = [capacity.observe(one) for one in iterations]
    estimate = capacity.estimate()
    return (
        refuted,
        np.array([estimate.up, estimate.down]).round(-4).tolist(),
        {pair: round(cap, -4) for pair, cap in estimate.pairs.items()},
    )


CAP = {(2, 3): 0.4 * MB}
EVEN = [10 * MB] * 4
# By rule: another value, and iterations.
CASES: dict[str, tuple[Any, Callable[[], list[Traffic]]]] = {
    "proof_weight": (1.0, lambda: [carried(FULL), carried([1.1 * rate for rate in FULL])]),
    "growth": (2.0, lambda: [carried([5 * MB] * 4, HALVES), carried(ROOM, HALVES)]),
    "growth_grows": (False, lambda: [carried([rate] * 4, HALVES) for rate in (5 * MB, 20 * MB, 80 * MB)]),
    "hope_refutes_nothing": (False, lambda: [carried([rate] * 4, HALVES) for rate in (5 * MB, 20 * MB, 28 * MB)]),
    "full_cores_refute_nothing": (
        False, lambda: [carried(FULL), carried([2.5 * MB, *FULL[1:]], has_full_cores=True)],
    ),
    "optimism": (1.0, lambda: [carried(ROOM, HALVES)]),
    "noise": (1.0, lambda: [carried(FULL), carried([1.1 * rate for rate in FULL])]),
    "doubt_iterations": (2, lambda: [carried(EVEN, pairs=CAP), carried(EVEN, [1, 0, 0, 0])]),
    "finds_caps": (False, lambda: [carried(EVEN, pairs=CAP)]),
    "drops_caps": (False, lambda: [carried(EVEN, pairs=CAP), carried(EVEN)]),
    "knows_rates": (False, lambda: [carried(ROOM, HALVES), carried([3 * MB] * 3 + [20 * MB], [0, 0, 0, 1])]),
    # Pair (0, 1) has a cap. Then it carries that while node 0 carries as much as ever: the pair proves nothing of node 0.
    "knows_caps": (
        False,
        lambda: [
            Traffic(streams((0, 1, 1, BOTH), (0, 2, 1.2, FIRST), (3, 1, 10, FIRST))),
            Traffic(streams((0, 1, 1, BOTH), (0, 2, 1.2, BOTH))),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", CASES)
def test_without_a_rule_of_the_estimator_a_case_comes_out_otherwise(rule):
    value, draw = CASES[rule]
    iterations = draw()
    assert told(iterations, **{rule: value}) != told(iterations)


def outcome(took_s: float, window: bool, equal: bool = False, refuted: bool = False) -> Outcome:
    return Outcome(took_s, 1.0, refuted, equal, not equal, True, window)


@pytest.mark.parametrize(
    ("rule", "value"),
    [
        ("late_plan", 3.0),
        ("looks_again", False),
        ("few_free", 10),
        ("many_free", 5),
        ("most_regret", 9.0),
        ("regret_of_one", 0.1),
        ("max_patience", 2),
    ],
)
def test_without_a_rule_of_trust_other_iterations_have_windows_or_equal_shares(rule, value):
    def said(trust: Trust) -> list[tuple[bool, bool]]:
        found: list[tuple[bool, bool]] = []
        trust.judge(outcome(1.0, window=False, equal=True))
        for number in range(200):
            equal = trust.needs_equal_shares
            found.append((equal, trust.allow_window()))
            trust.judge(outcome(1.0 if equal else 1.0 if number < 60 else 2.0, trust.has_window, equal))
        return found

    assert said(Trust(replace(RULES, **{rule: value}))) != said(Trust())
