"""A job's iterations with `--precision auto`, from the agents' messages to the coordinator's plans."""

from dataclasses import replace

import numpy as np
import pytest

from nalb.errors import InputError
from nalb.events import AbortEvent, IterationEvent, LayoutEvent, PlanEvent, ReadyEvent
from nalb.failures import Cause, Phase
from nalb.planning.nodes import Capacities, Node
from nalb.planning.precisions import Precisions
from nalb.planning.slices import Tensor, build_layout, wire_dtype
from nalb.protocol import wire
from nalb.schemes import EXACT, SCHEMES
from nalb.services.composition import new_coordinator
from nalb.services.exchange import messages as m
from nalb.services.exchange.planes import AGENTS_WITHOUT_RING
from nalb.settings import for_agents
from nalb.simulation.exchange import exchange

SPECS = [m.TensorSpec("w", 1_500_000, "float32", 0)]
NAMES = ["n0", "n1", "n2"]
SLOW_BYTES_PER_S = np.array([20e6, 20e6, 3e6])


class Agents:
    """The ranks, whose exchanges are simulated, and the coordinator."""

    def __init__(self, precision="auto", nodes=NAMES, scheme="exact", plan_wait_s=0.0, schemes=SCHEMES):
        """nodes: by rank. plan_wait_s: what ranks wait for a plan that is not there when an iteration begins."""
        environ = {"NALB_PRECISION": precision, "NALB_SCHEME": scheme, "NALB_ALPHA_BYTES": "16000"}
        self.iteration, self.plan_wait_s = 0, plan_wait_s
        settings = for_agents(environ, node="n0", endpoint="tcp://127.0.0.1:1", size=3, role="scheduler")
        self.state, self.now_s = new_coordinator(settings, 0.0, schemes=schemes, plane=AGENTS_WITHOUT_RING), 0.0
        self.sent = []  # to rank 0
        for rank, name in enumerate(nodes):
            self.say(rank, wire.Hello(wire.VERSION, "agent", name, rank, 100 + rank))
        for rank in range(3):
            self.say(rank, m.Register(SPECS, 0, precision))

    def say(self, rank, message):
        self.state.receive(b"r%d" % rank, message, self.now_s)
        while self.state.outbox:
            identity, told = self.state.outbox.popleft()
            self.sent += [told] * (identity == b"r0")

    def last(self, kind):
        return [one for one in self.sent if isinstance(one, kind)][-1]

    def is_next_plan_there(self):
        """Whether ranks have the plan of the next iteration but one."""
        return self.last(m.Plan).iteration > self.iteration

    def exchange(self, rates, begun_s):
        """The next iteration on links of these rates, from the first push on: its plan, rows by rank, and the moment of its end."""
        plan = next(one for one in self.sent if isinstance(one, m.Plan) and one.iteration == self.iteration)
        setup = self.last(m.Setup)
        assert plan.layout_version == setup.layout_version
        tensors = [Tensor(one.name, one.elements, wire_dtype(one.dtype, setup.precision), one.group) for one in SPECS]
        layout = build_layout(
            tensors,
            num_nodes=3,
            num_servers=3,
            alpha_bytes=setup.alpha_bytes,
            fixed_slice_bytes=setup.fixed_slice_bytes,
            num_probe=setup.num_probe,
        )
        assert layout.digest() == setup.digest
        pushes = tuple(plan.pushes or [setup.precision] * 3)
        nodes = Precisions(setup.precision, pushes).on([Node(name) for name in NAMES], tensors)
        servers = np.array(plan.server_of_slice)
        done = exchange(nodes, Capacities(rates, rates, {}), layout.sizes_bytes, servers, plan.inflight_bytes or 0)
        self.iteration += 1
        rows = {rank: [] for rank in range(3)}
        for one in done.samples:
            start_ns, end_ns = (int(1e9 * (begun_s + one[at])) for at in ("start_s", "end_s"))
            number = wire.peer_number(int(one["source"]), bool(one["is_push"]))
            rows[int(one["target"])].append(wire.SampleRow(number, int(one["size_bytes"]), start_ns + 1, end_ns + 2))
        return plan, rows, begun_s + done.time_s

    def report(self, rank, plan, rows):
        """A rank tells its samples of an iteration."""
        iteration = plan.iteration
        self.say(rank, wire.Report(self.now_s, iteration, rows[rank], 0, computed=iteration, iteration=iteration))

    def done(self, rank, plan, begun_s, wait_s, is_whole=True):
        """A rank has its sums, now."""
        took_s = self.now_s - begun_s
        done = m.Done(plan.iteration, took_s, took_s + wait_s, wait_s, begun_s, self.now_s, begun_s, is_whole=is_whole)
        self.say(rank, done)
        assert not any(isinstance(one, m.Collect) for one in self.sent), "an agent has reported all when it is done"

    def iterate(self, rates):
        """One iteration on links of these rates, after which all ranks report at the same time."""
        begun_s, wait_s = self.now_s + 0.01, self.plan_wait_s
        plan, rows, ended_s = self.exchange(rates, begun_s)
        self.state.tick(begun_s)  # while the exchange goes on
        self.now_s = ended_s
        for rank in range(3):
            self.report(rank, plan, rows)
        for rank in range(3):
            self.done(rank, plan, begun_s, wait_s)
        precision = self.last(m.Setup).precision
        return precision, tuple(plan.pushes or [precision] * 3)

    def events(self, kind):
        return [one for one in self.state.events if isinstance(one, kind)]


@pytest.mark.jobs
def test_a_job_begins_whole_and_lowers_what_binds():
    agents = Agents()
    told = [agents.iterate(SLOW_BYTES_PER_S) for _ in range(80)]
    assert told[0] == told[1] == ("float32", ("float32",) * 3)
    answers, pushes = told[-1]
    assert answers == pushes[2] == "int8"
    assert told[8] == ("int8", ("int8",) * 3), "links are known by what they carried, so none is known to have room"
    assert pushes[:2] == ("float16",) * 2, (
        "they have shown that they have room, and that many iterations are worth a change"
    )
    layouts, iterations = agents.events(LayoutEvent), agents.events(IterationEvent)
    assert [one.precision for one in layouts[1:]] == ["int8"]
    assert iterations[0].rounded is None
    rounded = iterations[-1].rounded
    assert (rounded.answers, tuple(rounded.pushes.values())) == told[-1]
    assert rounded.saved_bytes["n2"] > 0.7 * 2 * 6e6  # of its own gradients, out and in
    assert rounded.worth_s["n2"] == max(rounded.worth_s.values()) > 0
    assert sum(iterations[-1].rejected.values()) == 0  # pushes that are larger than answers are believed


def test_windows_reach_workers_by_rank_and_observers_by_node():
    nodes = ["n2", "n0", "n1"]
    agents = Agents("float32", nodes)
    rates = np.array([3e6, 40e6, 12e6])  # by rank
    for _ in range(4):
        agents.iterate(rates)
    by_rank, by_node = agents.last(m.Plan).inflight_bytes, agents.events(PlanEvent)[-1].inflight_bytes
    assert by_rank[0] < 0.7 * min(by_rank[1:])  # the other two do not show how fast they are
    assert dict(zip(agents.events(ReadyEvent)[-1].nodes, by_node, strict=True)) == dict(
        zip(nodes, by_rank, strict=True)
    )


def test_a_rank_that_was_told_another_precision_is_named():
    agents = Agents("auto")
    agents.say(1, m.Register(SPECS, 1, "int8"))
    failure = agents.events(AbortEvent)[-1].failure
    assert (failure.cause, failure.node) == (Cause.UNEQUAL, "n1")


FAILS_AT = 12
STEADY = np.array([20e6, 12e6, 6e6])
LAST_LOOK = 40  # iterations without a window are 5, 10, 20, ... apart
WAIT_S = 0.5  # where an exchange takes 1.1 s at these rates, so three such waits make up for one


def iterate_until_plans_are_early(agents, rates=STEADY):
    """Returns the number of iterations that it took."""
    while not agents.is_next_plan_there():
        agents.iterate(rates)
        assert agents.iteration < 50
    return agents.iteration


def test_plans_are_early_once_waiting_for_them_has_cost_an_iteration_and_never_where_nobody_waits():
    assert iterate_until_plans_are_early(Agents("float32", plan_wait_s=WAIT_S)) < 10
    assert iterate_until_plans_are_early(Agents("float32", plan_wait_s=WAIT_S / 10)) > 20
    hidden = Agents("float32", plan_wait_s=0.0)
    for _ in range(40):
        hidden.iterate(STEADY)
        assert not hidden.is_next_plan_there()


def test_each_iteration_has_its_own_samples_though_some_ranks_have_begun_the_next_one():
    """Rank 0 is a part of an iteration ahead when the others report."""
    agents = Agents("float32", plan_wait_s=WAIT_S)
    for _ in range(LAST_LOOK):
        agents.iterate(STEADY)
    iterate_until_plans_are_early(agents)
    begun_s, before = agents.now_s + 0.01, len(agents.events(IterationEvent))
    plan, untold, ended_s = agents.exchange(STEADY, begun_s)
    sent = [sum(map(len, untold.values()))]
    for _ in range(12):
        agents.now_s = ended_s
        agents.report(0, plan, untold)
        agents.done(0, plan, begun_s, 0.0)
        next_s = agents.now_s + 0.001
        next_plan, rows, ended_s = agents.exchange(STEADY, next_s)
        sent.append(sum(map(len, rows.values())))
        agents.now_s = next_s + 0.1 * (ended_s - next_s)
        now_ns = 1e9 * agents.now_s
        early = {rank: [row for row in some if row.end_ns < now_ns] for rank, some in rows.items()}
        assert all(early.values())
        for rank in range(3):
            agents.report(rank, next_plan, early)
        for rank in (1, 2):
            agents.report(rank, plan, untold)
            agents.done(rank, plan, begun_s, 0.0)
        assert agents.last(m.Plan).iteration == agents.iteration, "while the iteration before it is under way"
        untold = {rank: [row for row in some if row.end_ns >= now_ns] for rank, some in rows.items()}
        plan, begun_s = next_plan, next_s
    told = agents.events(IterationEvent)[before:]
    assert [one.samples for one in told] == sent[:-1]
    assert told[-1].rejected == {}


def test_the_plan_of_a_look_waits_so_the_wait_is_measured_anew():
    agents, early = Agents("float32", plan_wait_s=WAIT_S), set()
    for _ in range(80):
        if agents.is_next_plan_there():
            early.add(agents.iteration + 1)
        agents.iterate(STEADY)
    looks = {one.iteration for one in agents.events(PlanEvent) if not one.inflight_bytes}
    assert len(early) > 50
    assert max(looks) > 70
    assert not early & looks
    agents.plan_wait_s = 0.0  # scripts compute for longer now, which two looks show
    for rates, iterations in ((STEADY, 100), (STEADY / 4, 4), (STEADY, 100)):
        for _ in range(iterations):
            agents.iterate(rates)
    assert not agents.is_next_plan_there(), "what was saved is spent, and nothing more is saved"


def test_a_change_is_known_one_iteration_later_and_plans_wait_again_once_it_has_cost_much():
    agents = Agents("float32", plan_wait_s=WAIT_S)
    iterate_until_plans_are_early(agents)
    begun = agents.iteration
    slower = np.array([20e6, 2e6, 6e6])
    for _ in range(3):
        agents.iterate(slower)
    shares = {one.iteration: one.shares["n1"] for one in agents.events(PlanEvent)}
    assert shares[begun] == pytest.approx(shares[begun + 1], rel=0.01), "that of the next iteration was there already"
    assert shares[begun + 2] < 0.5 * shares[begun + 1]
    assert not agents.is_next_plan_there()


@pytest.mark.parametrize("scheme", ["elastic", "average"])
def test_plans_that_learn_from_the_times_of_the_last_iteration_are_never_early(scheme):
    agents = Agents("float32", scheme=scheme, plan_wait_s=WAIT_S)
    for _ in range(30):
        agents.iterate(STEADY)
        assert agents.is_next_plan_there() == (scheme == "average"), "only what cannot change is ahead"


def test_a_scheme_that_fails_while_plans_are_early_fails_in_the_iteration_that_it_plans():
    def decide(situation):
        if situation.iteration == FAILS_AT:
            raise InputError("not this one")
        return EXACT.decide(situation)

    own = replace(EXACT, decide=decide)
    agents = Agents("float32", plan_wait_s=WAIT_S, schemes=SCHEMES | {"exact": own})
    iterate_until_plans_are_early(agents)
    while not (failures := agents.events(AbortEvent)):
        agents.iterate(STEADY)
    (failure,) = [one.failure for one in failures]
    assert (failure.cause, failure.phase, failure.iteration) == (Cause.REFUSED, Phase.PLAN, FAILS_AT)
    assert agents.iteration == FAILS_AT - 1, "that one was planned while the iteration before it was under way"


@pytest.mark.jobs
def test_an_iteration_that_was_broken_off_teaches_nothing():
    agents = Agents("float32")
    for _ in range(5):
        agents.iterate(SLOW_BYTES_PER_S)
    begun_s = agents.now_s + 0.01
    plan, rows, _ = agents.exchange(SLOW_BYTES_PER_S, begun_s)
    agents.now_s = begun_s + 1e-3  # of the time that all tensors would take
    for rank in range(3):
        agents.report(rank, plan, {rank: rows[rank][:1]})
        agents.done(rank, plan, begun_s, 0.0, is_whole=False)
    for rank in range(3):
        agents.say(rank, m.Register(SPECS, 1, "float32"))
    agents.iteration = agents.last(m.Setup).iteration
    after = [agents.iterate(SLOW_BYTES_PER_S) for _ in range(3)]
    assert len(after) == 3
    numbers = [one.iteration for one in agents.events(IterationEvent)]
    assert plan.iteration not in numbers
    took_s = [max(one.communication_s.values()) for one in agents.events(IterationEvent)]
    assert max(took_s[-3:]) <= 1.05 * took_s[4]
