"""The bytes that plans let pass between two nodes."""

from dataclasses import replace

import numpy as np

from nalb.planning.distribution import Distribution
from nalb.planning.leaders import SitePlan
from nalb.planning.sites import Sites
from nalb.services.exchange.passing import HEADER_BYTES, REMEMBERED, PassingBytes

EQUAL = Distribution("average", 0, (0, 1), (0, 0), (50, 50), (50, 50), None, None, "")
UNEVEN = replace(EQUAL, shares_bytes=(80, 20))
HEADERS = 2 * HEADER_BYTES  # of a plan's two slices


def most(passing, iterations):
    return passing.most(iterations).tolist()


def test_so_many_iterations_and_the_one_before_count():
    passing = PassingBytes(2)
    for plan in (EQUAL, UNEVEN, UNEVEN):
        passing.note(plan)
    assert most(passing, 1) == [160 + 2 * HEADERS, 40 + 2 * HEADERS]
    assert most(passing, 2) == most(passing, 3) == [210 + 3 * HEADERS, 90 + 3 * HEADERS]


def test_before_the_first_iteration_a_broadcast_and_a_sum_may_have_gone_to_one_server():
    passing = PassingBytes(2)
    passing.note(UNEVEN)
    before = 2 * (100 + HEADERS)
    assert most(passing, 1) == [80 + HEADERS + before, 20 + HEADERS + before]


def test_nothing_bounds_what_passes_without_a_plan():
    passing = PassingBytes(2)
    assert most(passing, 1) == [np.inf] * 2
    passing.note(EQUAL)
    passing.note(None)
    assert most(passing, 1) == [np.inf] * 2
    passing.note(UNEVEN)
    assert most(passing, 1) == [130 + 2 * HEADERS, 70 + 2 * HEADERS]


def test_what_a_node_leads_passes_twice_more():
    sites = Sites(("a", "a"))
    passing = PassingBytes(2)
    led = replace(EQUAL, by_site=SitePlan(sites, ((0, 1),), ((0, 0),), (60, 40)))
    passing.note(led)
    assert most(passing, 1) == [170 + 2 * 300 + 3 * HEADERS, 130 + 2 * 300 + 3 * HEADERS]


def test_a_long_job_remembers_only_the_last_plans():
    passing = PassingBytes(2)
    for _ in range(REMEMBERED + 5):
        passing.note(EQUAL)
    assert most(passing, 2 * REMEMBERED) == [50 * REMEMBERED + REMEMBERED * HEADERS] * 2
