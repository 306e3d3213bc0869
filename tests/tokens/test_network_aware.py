"""Fela that knows its network: it fetches from where it is cheap, helps where it pays, and breaks no law of the token server."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nalb.tokens.network_aware import NetworkAware
from nalb.tokens.policies import fela
from nalb.tokens.server import FOREVER, ComputeToken, GoOn, TokenServer
from nalb.tokens.shape import Shape
from tests.tokens.test_token_server import jobs


class Workers:
    """Workers that ask and compute; the caller says who reports."""

    def __init__(self, server, aware):
        self.server, self.aware = server, aware
        self.work, self.now_s, self.given = {}, 0.0, []

    def report(self, worker, compute_s=1.0, bytes_=0.0, fetch_s=0.0):
        """The worker asks, and reports what it had; what it gets, if anything."""
        had = self.work.pop(worker, None)
        orders = self.server.report(worker, had and had.token.id, 0, self.now_s, True)
        for one in self.server.completed:
            self.aware.observe_token(one, compute_s, bytes_, fetch_s)
        self.server.completed.clear()
        for order in orders:
            if isinstance(order, ComputeToken):
                self.work[order.worker] = order
                self.given.append(order)
        return self.work.get(worker)


def workers_of(shape, workers, rates=None, subset=None):
    server = TokenServer(workers, shape, fela(workers, shape.sub_models, subset))
    return Workers(server, NetworkAware(server, None if rates is None else lambda: rates))


def seen(each):
    """Two workers with 4 tokens of one sub-model each; both have computed one, which took `each` seconds."""
    both = workers_of(Shape(8, 8, (1,)), 2)
    for worker in (0, 1):
        both.report(worker)
    both.now_s += 1.0
    for worker in (0, 1):
        both.report(worker, each[worker])
    return both


def test_a_worker_helps_one_that_would_take_longer():
    both = seen((1.0, 10.0))
    for _ in range(3):
        both.report(0)
    assert both.work[0].owner == 1


def test_a_slow_worker_does_not_help_a_fast_one_that_is_soon_done():
    both = seen((1.0, 10.0))
    both.report(0)  # one left in its bucket, of about 1 s
    for _ in range(3):
        both.report(1, 10.0)
    assert 1 not in both.work  # 10 s of it would end later
    both.now_s += 1.0
    assert both.report(0).owner == 0


def test_what_a_worker_has_not_computed_is_reckoned_from_what_it_has():
    """Going forward again and back, from its own times; of a sub-model that it has never had, from another worker's."""
    two = workers_of(Shape(8, 4, (1, 1)), 2, subset=[0])
    two.report(1)
    for _ in range(4):
        two.report(0, 1.0)
    two.report(1, 5.0)
    aware = two.aware
    assert aware.compute_s(1, True, False, 0, 2) == 5.0
    assert aware.compute_s(1, True, True, 0, 2) == 15.0
    assert aware.compute_s(1, True, True, 0, 4) == 30.0
    assert aware.compute_s(1, True, False, 1, 2) == 1.0
    assert aware.compute_s(1, True, False, 2, 2) is None


def test_one_that_sleeps_is_always_helped():
    both = workers_of(Shape(8, 8, (1,)), 2)
    for _ in range(8):
        both.report(1)
    assert [one.owner for one in both.given] == [1] * 4 + [0] * 4


def test_one_that_is_a_little_later_than_others_is_not_helped():
    """Worker 2 has no samples of its own and enters first. Worker 1 counts as asleep once worker 0 has computed a token."""
    three = workers_of(Shape(2, 2, (1,)), 3)
    assert three.report(2) is None
    assert three.report(0).owner == 0
    assert 2 not in three.work
    assert three.report(0).owner == 1


def test_tokens_of_one_that_sleeps_go_before_last_levels():
    """Worker 0 sleeps: its forward tokens begin their way before the others go back for the last time."""
    three = workers_of(Shape(6, 6, (1, 1)), 3)
    asking, order = [1, 2], []
    while asking:
        worker = asking.pop(0)
        if three.report(worker):
            order.append((three.work[worker].owner, three.work[worker].token.id.level))
            asking.append(worker)
    last_levels = [place for place, (_, level) in enumerate(order) if level == 2]
    helped = [place for place, (owner, level) in enumerate(order) if owner == 0 and level == 0]
    assert len(helped) == 2
    assert max(helped) < min(last_levels)


def test_of_a_level_the_cheapest_to_fetch_goes_first():
    """Two tokens of the last sub-model for worker 2, with inputs of worker 0, behind a thin link, and of worker 1."""
    rates = [1.0, 100.0, 100.0], [100.0, 100.0, 100.0]
    three = workers_of(Shape(6, 3, (1, 1)), 3, rates, subset=[2])
    first, second = three.report(0), three.report(1)
    three.report(2)
    three.now_s += 1.0
    three.report(0)
    three.report(1)
    assert (first.token.id.number, second.token.id.number) == (0, 1)
    assert [one.token.inputs[0].number for one in three.given if one.token.id.level == 1] == []
    given = three.report(2)
    assert given.token.inputs[0].number == 2  # its own: nothing to fetch
    given = three.report(2, 1.0, 0.0)
    assert given.token.inputs[0].number == 1


def test_fetching_takes_as_long_as_the_slowest_way():
    rates = [10.0, 20.0, 1000.0], [1000.0, 1000.0, 40.0]
    three = workers_of(Shape(6, 3, (1, 3)), 3, rates, subset=[2])
    for worker in (0, 1, 2):
        three.report(worker)
    for worker in (0, 1, 2):
        three.report(worker)
    token = three.work[2].token
    assert len(three.work[2].fetches) == 2
    # of 2 samples each; nothing is known of their size: 1 byte. 2 / 10 from worker 0, 2 / 20 from worker 1, 4 / 40 into worker 2
    assert three.aware.fetch_s(2, token) == 0.2
    three.report(2, fetch_s=0.7)
    assert three.aware.fetch_s(2, token) == pytest.approx(0.7)  # as much longer than the links need as the last one


@pytest.mark.parametrize(("up", "helps"), [(100.0, True), (0.5, False)])
def test_a_worker_does_not_help_where_the_gradient_would_come_back_too_late(up, helps):
    """Worker 0 has gone back with one of its two chunks. Worker 1 has nothing left, and its way out may be thin."""
    both = workers_of(Shape(8, 4, (1, 1, 2)), 2, ([100.0, up], [100.0, 100.0]))
    both.aware.sample_bytes[0] = 1.0
    for _ in range(6):
        both.report(0)  # twice F1 and F2, FB3, and the first B2 is given
    for _ in range(9):
        both.report(1)
    assert both.work[0].token.id.level == 3
    both.report(1)
    assert (1 in both.work) == helps


def test_the_subset_is_of_the_fastest():
    three = workers_of(Shape(12, 12, (1, 1)), 3)
    assert three.aware.members(2) == [0, 1]  # nothing known
    for each, worker in ((3.0, 0), (1.0, 1), (2.0, 2)):
        for _ in range(3):
            three.report(worker, each)
    assert three.aware.members(1) == [1]
    assert three.aware.members(2) == [1, 2]


@pytest.mark.jobs
@settings(max_examples=60)
@given(
    jobs(), st.sampled_from([0, 0, 1, FOREVER]), st.integers(0, 1 << 30), st.lists(st.floats(0.01, 10), min_size=6, max_size=6)
)  # fmt: skip
def test_with_advice_too_every_sample_goes_through_every_level_once(job, staleness, seed, speeds):
    workers, shape, policy = job
    server = TokenServer(workers, shape, policy, staleness)
    aware = NetworkAware(server, lambda: (speeds[:workers], speeds[::-1][:workers]))
    ends = dict.fromkeys(range(workers), 0.0)  # when each one reports next
    at, work, given_ = [0] * workers, {}, []
    while ends:
        worker = min(ends, key=lambda one: (ends[one], one))
        now_s = ends.pop(worker)
        had = work.pop(worker, None)
        for order in server.report(worker, had and had.token.id, at[worker], now_s, at[worker] == 1):
            if isinstance(order, ComputeToken):
                work[order.worker] = order
                given_.append(order.token.id)
                ends[order.worker] = now_s + speeds[order.worker] * (1 + (seed >> order.token.id.number % 20) % 3)
            elif isinstance(order, GoOn):
                at[order.worker] += 1
                if at[order.worker] < 2:
                    ends[order.worker] = now_s
        for one in server.completed:
            aware.observe_token(one, speeds[one.worker], 8.0, 0.5)
        server.completed.clear()
    assert at == [2] * workers
    assert len(given_) == len(set(given_))
    by_level = [sum(one.iteration == 0 and one.level == level for one in given_) for level in range(shape.levels)]
    assert by_level == [shape.counts[shape.sub_model(level)] for level in range(shape.levels)]
    assert staleness or all(one.iteration <= later.iteration for one, later in pairwise(given_))


def test_one_slow_token_does_not_make_a_worker_the_slower_one():
    """A busy machine stretches single tokens; the members of S are chosen by the mean of many."""
    both = workers_of(Shape(80, 80, (1,)), 2)
    both.report(0)
    both.report(1)
    for _ in range(20):
        both.report(0, 1.0)
        both.report(1, 1.2)
    both.report(0, 2.5)
    assert both.aware.members(1) == [0]
    for _ in range(30):  # it has become slower
        both.report(0, 1.5)
    assert both.aware.members(1) == [1]
