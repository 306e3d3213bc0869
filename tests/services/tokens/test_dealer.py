"""Tokens at the coordinator: messages in, messages out, for each policy; and who is named where something cannot be."""

from collections import Counter, deque

import pytest
from msgspec import UNSET

from nalb.errors import InputError
from nalb.events import TokensEvent, TokenShapeEvent
from nalb.failures import Cause, Failure, Phase, render
from nalb.protocol import wire
from nalb.reporting.parallel_file import ParallelResult
from nalb.services import composition
from nalb.services.composition import new_coordinator
from nalb.services.exchange import messages as m
from nalb.services.tokens.dealer import TokenDealer, TokenOptions
from nalb.services.tokens.messages import (
    JoinTokens,
    NextIteration,
    SendPart,
    SumGradients,
    TokenPeers,
    TokenRequest,
    TokenShape,
    TokenWork,
)
from nalb.services.tokens.service import Tokens
from nalb.settings import from_environment
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Part, name_of
from nalb.tokens.shape import Shape
from nalb.tokens.stragglers import Stragglers
from tests.failures import who
from tests.protocol.test_joint import LearntLater

ENVIRONMENT = {"DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091"}
COUNTS = {"DMLC_NUM_WORKER": "3", "DMLC_NUM_SERVER": "3"}
TOTAL, SUB_MODELS, THRESHOLD = 24, 3, 2


class Job:
    """Workers w0, w1, ... and their servers, all welcomed. What each worker was told waits in `told`."""

    def __init__(self, workers=3, **environment):
        counts = {"DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": str(workers)}
        self.state = new_coordinator(from_environment({**ENVIRONMENT, **counts, **environment}, "host"), 0.0)
        self.now_s, self.workers, self.told = 0.0, range(workers), [deque() for _ in range(workers)]
        for rank in self.workers:
            for role in ("server", "worker"):
                self.say(rank, wire.Hello(wire.VERSION, role, f"n{rank}", rank, 1), role)

    def say(self, rank, message, role="worker"):
        frame = wire.encode(message)
        self.state.receive(f"{role}{rank}".encode(), composition.decode_at_coordinator(frame, "a test"), self.now_s)
        while self.state.outbox:
            identity, answer = self.state.outbox.popleft()
            answer = composition.decode_at_client(wire.encode(answer))
            if identity.startswith(b"worker") and not isinstance(answer, wire.Welcome | wire.Alive):
                self.told[int(identity[6:])].append(answer)

    def join(self, *ranks, **other):
        words = {"sub_models": SUB_MODELS, "total": TOTAL, "threshold": THRESHOLD, **other}
        for rank in ranks or self.workers:
            self.say(rank, JoinTokens(f"tcp://10.0.0.{rank}:7000", **words))

    @property
    def verdict(self):
        return self.state.verdict


class Worker:
    """What a worker does with its messages, in their order; computing takes as many turns as it is slow."""

    def __init__(self, job, rank, slow=1):
        self.job, self.rank, self.slow = job, rank, slow
        self.iteration, self.steps, self.work, self.turns = 0, 0, None, 0
        self.has, self.sums, self.shapes, self.computed = set(), [], [], []

    def turn(self, everyone):
        if self.job.told[self.rank]:
            self.obey(self.job.told[self.rank].popleft(), everyone)
        elif self.work and self.turns < self.slow:
            self.turns += 1
        elif self.work and self.needs() <= self.has:
            work, self.work = self.work, None
            self.computed.append(work)
            self.job.now_s += 0.1
            self.job.say(self.rank, TokenRequest(self.iteration, work.token, False, 0.1, 0.01, 1000))

    def needs(self):
        return {(fetch.token, fetch.part) for fetch in self.work.fetches}

    def obey(self, message, everyone):
        if isinstance(message, TokenWork):
            assert self.work is None
            assert message.token.iteration <= self.iteration
            assert self.shapes[-1].iteration <= message.token.iteration
            self.work, self.turns = message, 0
        elif isinstance(message, SendPart):
            held = {one.token for one in self.computed}
            assert message.fetch.source == self.rank
            assert message.fetch.token in held
            everyone[message.worker].has.add((message.fetch.token, message.fetch.part))
        elif isinstance(message, SumGradients):
            assert self.shapes[-1].iteration <= message.iteration
            self.sums.append(message)
        elif isinstance(message, TokenShape):
            assert message.iteration == 0 or message.iteration > self.iteration, "it ended the one before without this"
            assert all(one.iteration < message.iteration for one in self.sums)
            self.shapes.append(message)
        elif isinstance(message, NextIteration):
            assert message.iteration == self.iteration
            self.iteration += 1
            if self.iteration < self.steps:
                self.job.say(self.rank, TokenRequest(self.iteration))


def train(job, steps, slow=()):
    """All workers, so many steps."""
    job.join()
    workers = [Worker(job, rank, dict(slow).get(rank, 1)) for rank in job.workers]
    for worker in workers:
        worker.steps = steps
        job.say(worker.rank, TokenRequest(0))
    for _ in range(100_000):
        for worker in workers:
            worker.turn(workers)
        if all(worker.iteration == steps for worker in workers) and not any(job.told):
            return workers
    raise AssertionError(f"workers wait for ever: {job.verdict}")


WAYS = {
    "fela": {},
    "fela by default": {"NALB_PARALLEL": ""},
    "fela by the paper": {"NALB_PARALLEL": "fela-paper"},
    "fela with a subset": {"NALB_TOKEN_WEIGHTS": "1,2,4", "NALB_TOKEN_SUBSET": "2"},
    "fela on one head": {"NALB_TOKEN_WEIGHTS": "1,2,2", "NALB_TOKEN_SUBSET": "1"},
    "stale fela": {"NALB_TOKEN_WEIGHTS": "1,1,2", "NALB_STALENESS": "2"},
    "dp": {"NALB_PARALLEL": "dp"},
    "hp": {"NALB_PARALLEL": "hp"},
    "mp": {"NALB_PARALLEL": "mp"},
}
MEMBERS = {
    "fela with a subset": [0, 1],
    "fela on one head": [0],
    "hp": [2],
    "mp": [2],
}  # of the last sub-model's sums, where not all


@pytest.mark.parametrize("way", WAYS)
def test_every_level_is_computed_once_and_every_gradient_summed(way):
    job = Job(**({"NALB_PARALLEL": "fela"} | WAYS[way]))
    workers = train(job, 4, slow=[(1, 7)])
    assert job.verdict is None
    assert all(len(worker.shapes) >= 1 and worker.shapes == workers[0].shapes for worker in workers)
    shape = Shape(TOTAL, workers[0].shapes[0].chunks, tuple(workers[0].shapes[0].weights))
    covered = Counter(
        (one.token.iteration, one.token.level, chunk)
        for worker in workers
        for one in worker.computed
        for chunk in one.chunks
    )
    assert set(covered) == {
        (k, level, c) for k in range(4) for level in range(shape.levels) for c in range(shape.chunks)
    }
    assert set(covered.values()) == {1}
    sums = workers[0].sums
    assert all(worker.sums == sums for worker in workers)
    assert [(one.iteration, one.sub_model) for one in sums] == [(k, i) for k in range(4) for i in (2, 1, 0)]
    assert [one.workers for one in sums if one.sub_model == 2] == [MEMBERS.get(way, [0, 1, 2])] * 4


def test_workers_learn_of_each_other_and_of_the_shape_once_all_have_joined():
    job = Job(NALB_PARALLEL="fela", NALB_TOKEN_WEIGHTS="1,2,4", NALB_TOKEN_SUBSET="2")
    job.join(0, 1)
    assert not any(job.told)
    job.join(2)
    for told in job.told:
        assert list(told) == [
            TokenPeers([f"tcp://10.0.0.{rank}:7000" for rank in range(3)]),
            TokenShape(0, 12, [1, 2, 4], [[0, 1, 2], [0, 1, 2], [0, 1]]),
        ]


def test_a_slow_workers_tokens_are_computed_by_others_from_what_it_holds():
    workers = train(Job(NALB_PARALLEL="fela", NALB_TOKEN_WEIGHTS="1,2,4"), 3, slow=[(0, 8)])
    counts = [len(worker.computed) for worker in workers]
    assert counts[0] < min(counts[1:])
    fetched = [fetch for worker in workers for one in worker.computed for fetch in one.fetches]
    assert {fetch.part for fetch in fetched} == {Part.OUTPUT, Part.INPUT, Part.GRADIENT}


@pytest.mark.jobs
def test_what_was_computed_is_told_for_every_iteration_and_token_by_token_ever_more_rarely():
    job = Job(NALB_PARALLEL="fela", NALB_TOKEN_WEIGHTS="1,2,4")
    workers = train(job, 202, slow=[(0, 8)])
    told = [event for event in job.state.events if isinstance(event, TokensEvent)]
    assert [event.iteration for event in told] == list(range(202))
    assert [event.iteration for event in told if event.rows] == list(range(201))
    assert all(event.workers == ["n0", "n1", "n2"] for event in told)
    for rank, worker in enumerate(workers):
        assert sum(event.tokens[rank] for event in told) == len(worker.computed)
        assert sum(event.fetched_bytes[rank] for event in told) == 1000 * len(worker.computed)
        assert sum(event.compute_s[rank] for event in told) == pytest.approx(0.1 * len(worker.computed))
    assert sum(event.helped[0] for event in told) < sum(event.helped[1] for event in told)
    first = told[0]
    assert sum(row.samples for row in first.rows if row.level == "FB3") == TOTAL
    assert all(0 <= row.given_us < row.done_us <= 1e6 * first.iteration_s + 1 for row in first.rows)


@pytest.mark.jobs
def test_the_shape_is_told_with_its_reason():
    job = Job()
    train(job, 6)
    told = [event for event in job.state.events if isinstance(event, TokenShapeEvent)]
    assert [(event.iteration, event.weights) for event in told] == [(0, [1, 1, 1]), (5, [1, 1, 3])]
    assert told[1].reason == "weights 1,1,3, |S| = 3: case 2 is tried"
    assert (told[0].workers, told[0].parallel, told[0].total, told[0].chunks) == (["n0", "n1", "n2"], "fela", TOTAL, 12)
    train(job := Job(), 200)
    result = ParallelResult("exact", TOTAL)
    for event in job.state.events:
        if isinstance(event, TokenShapeEvent | TokensEvent):
            result.add(event)
    assert [case.is_tuned for case in result.cases] == [UNSET] * (len(result.cases) - 1) + [True]
    assert len(result.cases) > 3


def test_weights_and_subset_are_tuned_between_iterations_unless_they_are_given():
    workers = train(Job(), 22)
    shapes = workers[0].shapes
    assert all(worker.shapes == shapes for worker in workers)
    assert [one.iteration for one in shapes][:4] == [0, 5, 10, 15]
    assert [one.weights for one in shapes][:3] == [[1, 1, 1], [1, 1, 3], [1, 3, 3]]
    assert [one.eligible[2] for one in shapes][:4] == [[0, 1, 2], [0, 1, 2], [0, 1, 2], [0]]
    assert [(one.iteration, one.sub_model) for one in workers[1].sums] == [(k, i) for k in range(22) for i in (2, 1, 0)]
    by_iteration = {one.iteration: one.workers for one in workers[1].sums if one.sub_model == 2}
    assert {k for k, members in by_iteration.items() if members == [0]} >= set(range(15, 20))
    assert len(train(Job(NALB_TOKEN_WEIGHTS="1,3,3"), 7)[0].shapes) == 1


def test_nothing_can_be_tuned_while_iterations_overlap():
    job = Job(NALB_PARALLEL="fela", NALB_STALENESS="1")
    job.join()
    assert "give weights" in render(job.verdict)


def test_what_is_known_of_the_links_is_by_rank_and_asked_for_once_an_iteration():
    links, settings = LearntLater(3), from_environment(ENVIRONMENT | COUNTS, "host")
    state = new_coordinator(settings, 0.0, estimators={settings.estimator: lambda _: links})
    (tokens,) = (service for service in state.services if isinstance(service, Tokens))
    for node, rank in enumerate((1, 2, 0)):
        state.receive(b"s%d" % rank, wire.Hello(wire.VERSION, "server", f"n{node}", node, 1), 0.0)
        state.receive(b"w%d" % rank, wire.Hello(wire.VERSION, "worker", f"n{node}", rank, 1), 0.0)
    for rank in range(3):
        state.receive(b"w%d" % rank, m.Register([m.TensorSpec("w", 3_000_000, "float32", 0)]), 0.0)
    assert tokens.rates() is None
    links.rates = [1e6, 2e6, 3e6], [4e6, 5e6, 6e6]
    assert tokens.rates() == ([3e6, 1e6, 2e6], [6e6, 4e6, 5e6])

    asked = []
    options = TokenOptions(weights=(1, 2, 4))
    dealer = TokenDealer(options, 3, lambda: asked.append(1) or ([3e6, 1e6, 2e6], [6e6, 4e6, 5e6]))
    for rank in range(3):
        # 4, 3 and 3 chunks: groups across homes
        dealer.join(rank, JoinTokens("tcp://10.0.0.1:7000", SUB_MODELS, 20, 2), 0.0)
    due = deque((rank, TokenRequest(0)) for rank in range(3))
    while due:
        dealer.request(*due.popleft(), 0.0)
        for rank, message in dealer.outbox:
            if isinstance(message, TokenWork):
                due.append((rank, TokenRequest(message.token.iteration, message.token, compute_s=0.1)))
            elif isinstance(message, NextIteration) and message.iteration < 4:
                due.append((rank, TokenRequest(message.iteration + 1)))
        dealer.outbox.clear()
    assert len([event for event in dealer.events if isinstance(event, TokensEvent)]) == 5
    assert 1 <= len(asked) <= 5


def test_a_sum_over_some_workers_is_shared_out_by_their_links_where_the_scheme_does_so():
    up = [100e6, 50e6, 100e6, 100e6]

    def shares(balances):
        dealer = TokenDealer(TokenOptions(weights=(1, 1, 1), subset=3, balances=balances), 4, lambda: (up, up))
        for rank in range(4):
            dealer.join(rank, JoinTokens("tcp://10.0.0.1:7000", SUB_MODELS, 16, 4), 0.0)
        due = deque((rank, TokenRequest(0)) for rank in range(4))
        sums = {}
        while due:
            dealer.request(*due.popleft(), 0.0)
            for rank, message in dealer.outbox:
                if isinstance(message, TokenWork):
                    due.append((rank, TokenRequest(message.token.iteration, message.token, compute_s=0.1)))
                elif isinstance(message, SumGradients):
                    sums[tuple(message.workers)] = message.shares
            dealer.outbox.clear()
        return sums

    # each of three carries its gradients M and (3 - 2) times its share, so the slow one has none: M / 50 > 1.5 M / 100
    assert shares(True)[0, 1, 2] == pytest.approx([0.5, 0.0, 0.5], abs=1e-6)
    assert shares(False)[0, 1, 2] == [1 / 3] * 3
    assert shares(True)[0, 1, 2, 3] == [1 / 4] * 4  # the store's


# ---- who is named


def test_workers_that_disagree_are_named_with_what_they_say():
    job = Job(NALB_PARALLEL="fela")
    job.join(0)
    job.join(2, total=25)
    assert job.verdict.cause is Cause.TOKENS
    assert who(job.verdict) == ("worker", "n2")
    assert "samples of an iteration: 25 here, 24 with rank 0" in render(job.verdict)


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"NALB_TOKEN_WEIGHTS": "1,2"}, "2 weights for 3 sub-models"),
        ({"NALB_TOKEN_SUBSET": "2"}, "a subset needs weights"),
        ({"NALB_PARALLEL": "hp", "NALB_TOKEN_WEIGHTS": "1,2,4"}, "fela's alone"),
        ({"NALB_TOKEN_WEIGHTS": "1,2,4", "NALB_TOKEN_SUBSET": "4"}, "a subset of 4 among 3 workers"),
    ],
)
def test_what_was_asked_for_must_fit_the_script(environment, words):
    job = Job(**{"NALB_PARALLEL": "fela", **environment})
    job.join()
    assert words in render(job.verdict)


def test_one_token_for_every_sample_of_a_huge_batch_is_refused():
    job = Job(NALB_PARALLEL="fela")
    job.join(total=1_000_000_000, threshold=1)
    assert "at most 100000 tokens" in render(job.verdict)


def test_a_job_sizes_batches_or_deals_tokens():
    job = Job(NALB_BATCHING="lb-bsp")
    job.join(0)
    assert job.verdict.cause is Cause.TOKENS
    assert "leave out --batching" in render(job.verdict)


def test_lies_are_named():
    for message in (
        TokenRequest(1),
        TokenRequest(0, TokenId(0, 4, 3)),
    ):
        job = Job(NALB_PARALLEL="fela")
        job.join()
        job.say(1, message)
        assert job.verdict.cause is Cause.PROTOCOL
        assert who(job.verdict) == ("worker", "n1")
    job = Job(NALB_PARALLEL="fela")
    job.say(1, TokenRequest(0))
    assert "before all workers have joined" in render(job.verdict)


def test_a_worker_that_trains_without_joining_is_named():
    job = Job(NALB_PARALLEL="fela", NALB_STARTUP_S="30", NALB_DEADLINE_S="1000")
    job.join(0, 1)
    job.now_s = 40.0
    for rank, calls in enumerate((0, 0, 3)):
        job.say(rank, wire.Report(1.0, -1, [], 0, calls=calls))
    job.state.tick(job.now_s)
    assert job.verdict.cause is Cause.TOKENS
    assert who(job.verdict) == ("worker", "n2")


def test_a_worker_that_ends_without_joining_is_named_where_tokens_were_asked_for():
    job = Job(NALB_PARALLEL="dp")
    job.say(1, wire.Goodbye())
    assert job.verdict.cause is Cause.TOKENS
    plain = Job()
    plain.say(1, wire.Goodbye())
    assert plain.verdict is None


def test_a_worker_that_makes_fewer_steps_is_named():
    job = Job(NALB_PARALLEL="fela")
    train(job, 2)
    job.say(2, wire.Goodbye())
    assert job.verdict is None
    job.say(0, TokenRequest(2))
    assert job.verdict.cause is Cause.UNEQUAL
    assert "rank 2 left after 2 steps, another begins its step 3" in render(job.verdict)


@pytest.mark.parametrize("level", range(5))
def test_a_worker_that_falls_silent_is_named_with_its_token_at_every_level(level):
    job = Job(NALB_PARALLEL="fela", NALB_TOKEN_WEIGHTS="1,2,4", NALB_DEADLINE_S="10")
    job.join()
    workers = [Worker(job, rank) for rank in job.workers]
    for worker in workers:
        worker.steps = 1
        job.say(worker.rank, TokenRequest(0))
    while workers[1].work is None or workers[1].work.token.level != level:
        for worker in workers:
            worker.turn(workers)
    fell_silent_s = job.now_s
    while job.verdict is None:
        job.now_s += 0.5
        for rank in (0, 2):
            job.say(rank, wire.Report(job.now_s, -1, [], 0))
        for rank in job.workers:
            job.say(rank, wire.Report(job.now_s, -1, [], 0), "server")
        job.state.tick(job.now_s)
    assert job.now_s - fell_silent_s < 10
    assert (job.verdict.cause, who(job.verdict)) == (Cause.SILENT, ("worker", "n1"))
    assert f"it held token {name_of(workers[1].work.token, 3)}" in render(job.verdict)
    assert (job.verdict.phase, job.verdict.iteration) == (Phase.FORWARD, workers[1].work.token.iteration)


@pytest.mark.parametrize("way", ["mp", "stale fela"])
def test_failures_count_iterations_as_tokens_do(way):
    """Exchanges have a count of their own, or there are none."""

    def fail(**moment):
        job = Job(**({"NALB_PARALLEL": "fela"} | WAYS[way]))
        workers = train(job, 3)
        job.say(1, TokenRequest(3))
        failure = Failure(cause=Cause.SCRIPT, detail="failed", role="worker", node="n0", **moment)
        job.say(0, wire.Failed(failure))
        assert {worker.iteration for worker in workers} == {3}
        return job.verdict.phase, job.verdict.iteration

    assert fail()[1] == 2  # it has not asked for tokens of iteration 3
    assert fail(iteration=0)[1] == 2
    assert fail(phase=Phase.CHECKPOINT, iteration=1) == (Phase.CHECKPOINT, 1)
    job = Job(**({"NALB_PARALLEL": "fela"} | WAYS[way]))
    job.join()
    for rank in job.workers:
        job.say(rank, TokenRequest(0))
    job.state.abort(Failure(cause=Cause.UNREACHABLE, detail="the link is down"), job.now_s)
    assert (job.verdict.phase, job.verdict.iteration) == (None, 0)


def test_a_worker_that_computes_for_long_and_gives_signs_of_life_is_waited_for():
    job = Job(NALB_PARALLEL="fela", NALB_DEADLINE_S="10")
    job.join()
    for rank in job.workers:
        job.say(rank, TokenRequest(0))
    for _ in range(200):
        job.now_s += 0.5
        for rank in job.workers:
            job.say(rank, wire.Report(job.now_s, -1, [], 0))
            job.say(rank, wire.Report(job.now_s, -1, [], 0), "server")
        job.state.tick(job.now_s)
    assert job.verdict is None


# ---- stragglers


def test_stragglers_take_turns_or_are_drawn_by_lot():
    turns = Stragglers.read("round-robin:2.5")
    assert [[turns.sleep_s(w, k, 3) for w in range(3)] for k in range(2)] == [[2.5, 0, 0], [0, 2.5, 0]]
    lots = Stragglers.read("probability:0.3:2:7")
    slept = [lots.sleep_s(w, k, 4) for k in range(500) for w in range(4)]
    assert set(slept) == {0.0, 2.0}
    assert 0.25 < slept.count(2.0) / len(slept) < 0.35
    assert slept == [lots.sleep_s(w, k, 4) for k in range(500) for w in range(4)]


@pytest.mark.parametrize(
    "text", ["", "round-robin", "round-robin:-1", "round-robin:nan", "probability:2:1:0", "probability:0.1:1:-1", "x:1"]
)
def test_stragglers_that_cannot_be_are_refused(text):
    with pytest.raises(InputError, match="round-robin:SECONDS"):
        Stragglers.read(text)
