"""Any shape, any policy, workers of any speed: every sample goes through every level once, and nobody waits for ever."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nalb.errors import InputError, PeerError
from nalb.tokens.iteration import TokenId
from nalb.tokens.policies import data_parallel, fela, hybrid_parallel, model_parallel
from nalb.tokens.server import FOREVER, ComputeToken, GoOn, Part, Synchronise, TokenServer, name_of
from nalb.tokens.shape import Shape


class Driver:
    """Workers that compute one token at a time, in turns by lot. asleep: those that do not ask before all others wait."""

    def __init__(self, server, workers, iterations, seed, asleep=()):
        self.server, self.iterations = server, iterations
        self.random = np.random.default_rng(seed)
        self.at = dict.fromkeys(range(workers), 0)  # iteration of each worker
        self.can_ask, self.asleep = [w for w in range(workers) if w not in asleep], list(asleep)
        self.busy, self.orders, self.finished = {}, [], set()

    def run(self):
        now_s = 0.0
        while len(self.finished) < len(self.at):
            ready = [*self.can_ask, *self.busy]
            if not ready:
                assert self.asleep, "workers wait for ever"
                self.can_ask, self.asleep = self.asleep, []
                continue
            worker = ready[self.random.integers(len(ready))]
            now_s += 1.0
            done = self.busy.pop(worker).token.id if worker in self.busy else None
            if worker in self.can_ask:
                self.can_ask.remove(worker)
            drains = self.at[worker] == self.iterations - 1
            self.take(self.server.report(worker, done, self.at[worker], now_s, drains))
        return self.orders

    def take(self, orders):
        self.orders += orders
        for order in orders:
            if isinstance(order, ComputeToken):
                assert order.worker not in self.busy
                self.busy[order.worker] = order
            elif isinstance(order, GoOn):
                self.at[order.worker] += 1
                if self.at[order.worker] == self.iterations:
                    self.finished.add(order.worker)
                else:
                    self.can_ask.append(order.worker)


@st.composite
def jobs(draw):
    """(workers, shape, policy)."""
    workers, sub_models = draw(st.integers(1, 6)), draw(st.integers(1, 4))
    total = draw(st.integers(workers * 2, 60))
    kind = draw(st.sampled_from(["fela", "fela", "fela", "dp", "hp", "mp"]))
    if kind == "dp":
        policy, shape = data_parallel(workers, total, sub_models)
    elif kind == "hp" and workers > 1 and sub_models > 1:
        policy, shape = hybrid_parallel(workers, total, sub_models)
    elif kind == "mp":
        policy, shape = model_parallel(workers, total, sub_models, draw(st.integers(1, total)))
    else:
        steps = draw(st.lists(st.sampled_from([1, 1, 2, 3, 4]), min_size=sub_models - 1, max_size=sub_models - 1))
        shape = Shape.of(total, workers, tuple(int(one) for one in np.cumprod([1, *steps])), draw(st.integers(1, 20)))
        subset = draw(st.sets(st.integers(0, workers - 1), min_size=1))
        policy = fela(workers, sub_models, sorted(subset), draw(st.integers(0, sub_models - 1)))
    return workers, shape, policy


@settings(max_examples=100)
@given(jobs(), st.sampled_from([0, 0, 1, 3, FOREVER]), st.integers(0, 1 << 30))
def test_every_sample_goes_through_every_level_once(job, staleness, seed):
    workers, shape, policy = job
    asleep = [0] if policy.helps and workers > 1 and all(len(one) > 1 for one in policy.eligible) else []
    orders = Driver(TokenServer(workers, shape, policy, staleness), workers, 3, seed, asleep).run()
    given_ = [order for order in orders if isinstance(order, ComputeToken)]
    covered = Counter((one.token.id.iteration, one.token.id.level, c) for one in given_ for c in one.token.chunks)
    begun = {iteration for iteration, _, _ in covered}
    assert set(covered) == {(k, level, c) for k in begun for level in range(shape.levels) for c in range(shape.chunks)}
    assert set(covered.values()) == {1}
    tokens = Counter(
        (one.token.id.iteration, shape.sub_model(one.token.id.level), one.token.mirrors is None) for one in given_
    )
    assert all(n == shape.counts[sub_model] for (_, sub_model, _), n in tokens.items())
    for one in given_:
        assert one.worker in policy.eligible[shape.sub_model(one.token.id.level)]
        assert policy.helps or one.worker == one.owner
    sums = [(one.iteration, -one.sub_model) for one in orders if isinstance(one, Synchronise)]
    assert sums == sorted(sums)
    assert sums == [(k, -one) for k in sorted(begun) for one in reversed(range(shape.sub_models))]


@settings(max_examples=100)
@given(jobs(), st.integers(0, 1 << 30))
def test_what_a_token_needs_is_where_it_is_fetched_from(job, seed):
    workers, shape, policy = job
    orders = Driver(TokenServer(workers, shape, policy), workers, 2, seed).run()
    computed_by, inputs = {}, {}
    for one in (order for order in orders if isinstance(order, ComputeToken)):
        token = one.token
        has = {fetch.token: fetch.source for fetch in one.fetches}
        for need in token.needs:
            is_sample = need == token.mirrors and need.level == 0
            assert is_sample or computed_by[need] == has.get(need, one.worker)
        for fetch in one.fetches:
            expected = Part.INPUT if fetch.token == token.mirrors else Part.GRADIENT if token.mirrors else Part.OUTPUT
            assert fetch.part == expected
            assert fetch.source != one.worker
        if token.mirrors is None:
            inputs[token.id] = token.chunks
            assert token.chunks == tuple(c for need in token.inputs for c in inputs[need]) or not token.inputs
        else:
            assert token.chunks == inputs[token.mirrors]
        computed_by[token.id] = one.worker


def test_tokens_of_the_example_in_the_paper():
    """Geng et al., III-B: 128 samples, batches of 16, 32 and 64: 8, 4 and 2 tokens."""
    shape = Shape.of(128, 8, (1, 2, 4), 16)
    assert shape.counts == (8, 4, 2)
    assert [len(shape.samples_of(chunk)) for chunk in range(8)] == [16] * 8


def test_equal_workers_stay_with_their_own():
    """All at the same speed: nobody helps, nothing is fetched where every weight is 1."""
    shape = Shape(32, 8, (1, 1, 1))
    server = TokenServer(4, shape, fela(4, 3))
    orders, asking = [], [(worker, None) for worker in range(4)]
    while asking:
        worker, done = asking.pop(0)
        new = server.report(worker, done, 0, 0.0)
        orders += new
        asking += [(one.worker, one.token.id) for one in new if isinstance(one, ComputeToken)]
    work = [one for one in orders if isinstance(one, ComputeToken)]
    assert all(one.owner == one.worker and not one.fetches for one in work)
    # depth first: the worker's first token goes all the way before its second
    assert [name_of(one.token.id, 3) for one in work if one.worker == 0][:5] == [
        "0/F1.0", "0/F2.0", "0/FB3.0", "0/B2.0", "0/B1.0",
    ]  # fmt: skip


def test_a_sleeping_workers_tokens_are_computed_by_others():
    server = TokenServer(4, Shape(32, 8, (1, 2, 4)), fela(4, 3))
    orders = Driver(server, 4, 1, 0, asleep=[2]).run()
    work = [one for one in orders if isinstance(one, ComputeToken)]
    assert {one.worker for one in work} == {0, 1, 3}
    assert any(one.owner == 2 for one in work)


def test_nobody_takes_a_token_from_a_worker_that_waits_for_it():
    """Worker 3 has waited for longer, but the gradient that comes is for what worker 1 has computed, which waits too."""
    server, has = TokenServer(4, Shape(3, 3, (1, 1)), fela(4, 2, [0])), {}

    def report(worker):
        had = has.pop(worker, None)
        for one in server.report(worker, had and had.token.id, 0, 0.0, drains=True):
            if isinstance(one, ComputeToken):
                has[one.worker] = one

    for worker in (0, 1, 2, 3, 1, 0):
        report(worker)
    assert sorted(has) == [0, 2]
    for _ in range(2):  # the two tokens of the last sub-model that are there
        report(0)
    assert has[1].token.mirrors == TokenId(0, 0, 1)
    assert (has[1].owner, has[1].recomputes) == (1, False)
    assert 3 not in has or has[3].owner != 1


def test_the_subset_alone_computes_the_conditional_sub_model():
    server = TokenServer(4, Shape(32, 8, (1, 1, 1)), fela(4, 3, [1, 3]))
    orders = Driver(server, 4, 2, 5).run()
    assert {one.worker for one in orders if isinstance(one, ComputeToken) and one.token.id.level == 2} == {1, 3}
    assert {one.workers for one in orders if isinstance(one, Synchronise)} == {(1, 3), (0, 1, 2, 3)}


def test_data_parallel_sums_after_the_last_token():
    policy, shape = data_parallel(3, 30, 2)
    orders = Driver(TokenServer(3, shape, policy), 3, 1, 0).run()
    first = next(i for i, one in enumerate(orders) if isinstance(one, Synchronise))
    assert not any(isinstance(one, ComputeToken) for one in orders[first:])


def test_the_same_reports_give_the_same_orders():
    def run():
        return Driver(TokenServer(5, Shape(60, 20, (1, 2, 4)), fela(5, 3, [0, 1])), 5, 3, 7).run()

    assert run() == run()


def test_lies_of_a_worker_are_refused():
    server = TokenServer(2, Shape(8, 4, (1,)), fela(2, 1))
    with pytest.raises(PeerError, match="was given None"):
        server.report(0, TokenId(0, 0, 0), 0, 0.0)
    server.report(0, None, 0, 0.0)
    with pytest.raises(PeerError, match="reported token None"):
        server.report(0, None, 0, 0.0)
    with pytest.raises(PeerError, match="the last one begun is 0"):
        server.report(1, None, 2, 0.0)


@pytest.mark.parametrize("weights", [(2, 2), (1, 2, 3), (), (1, 0)])
def test_weights_that_no_token_can_have_are_refused(weights):
    with pytest.raises(InputError, match="weights"):
        Shape(32, 8, weights)
