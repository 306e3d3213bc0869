"""The coordinator's mind, driven by hand: two nodes, each a worker and a server."""

import msgspec
import pytest
import zmq

from kvstore_patch.keys.plane import PS_LITE
from nalb.errors import InputError, PeerError
from nalb.events import AbortEvent, BlockEvent, IdleEvent, IterationEvent, LayoutEvent, PlanEvent, ReadyEvent
from nalb.failures import Cause, Failure, Phase, render
from nalb.feedback.routing import Routing
from nalb.measurement.samples import samples_of
from nalb.protocol import wire
from nalb.protocol.observers import Measured
from nalb.protocol.participant import natural_order
from nalb.protocol.session import Session, pack
from nalb.services import composition
from nalb.services.batching.messages import JoinBatching
from nalb.services.composition import new_coordinator
from nalb.services.exchange import messages as m
from nalb.services.exchange.calls import announcement
from nalb.services.exchange.service import Exchange
from nalb.services.tokens.messages import JoinTokens
from nalb.settings import from_environment
from nalb.transport.conversations import Conversations
from nalb.transport.server import sample_rows, take_message
from tests.failures import when, who

ENVIRONMENT = {
    "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091",
    "DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2", "NALB_SCHEME": "aware", "NALB_DEADLINE_S": "10",
}  # fmt: skip
TENSORS = [m.TensorSpec("w", 400_000, "float32", 0), m.TensorSpec("b", 100, "float32", 0)]
PEERS = {"s0": (0, "server", "n0"), "w0": (0, "worker", "n0"), "s1": (1, "server", "n1"), "w1": (1, "worker", "n1")}


class Driver:
    """Feeds a coordinator and keeps what it sends, by peer."""

    def __init__(self, new_routing=Routing, **environment):
        settings = from_environment({**ENVIRONMENT, **environment}, "host")
        self.state = new_coordinator(settings, 0.0, new_routing=new_routing, plane=PS_LITE)
        self.now_s = 0.0
        self.sent = {}
        self.answered = {}  # by worker, how many orders for slots

    def say(self, peer, message):
        self.state.receive(peer.encode(), message, self.now_s)
        return self.collect()

    def collect(self):
        fresh = []
        while self.state.outbox:
            identity, message = self.state.outbox.popleft()
            self.sent.setdefault(identity.decode(), []).append(message)
            fresh.append((identity.decode(), message))
        return fresh

    def gather(self):
        for peer, (rank, role, node) in PEERS.items():
            self.say(peer, wire.Hello(wire.VERSION, role, node, rank, 100 + rank))

    def start(self):
        """Up to the first plan."""
        self.gather()
        for worker in ("w0", "w1"):
            self.say(worker, m.Register(TENSORS))
        self.slots_ready()

    def slots_ready(self):
        """From every worker that was asked for slots and has not answered."""
        for worker in [p for p in PEERS if p.startswith("w")] + ["w2"]:
            orders = [x for x in self.sent.get(worker, []) if isinstance(x, m.PrepareSlots)]
            for order in orders[self.answered.get(worker, 0) :]:
                self.say(worker, m.SlotsReady(order.iteration, order.layout_version))
            self.answered[worker] = len(orders)

    def last(self, peer, kind):
        return [x for x in self.sent.get(peer, []) if isinstance(x, kind)][-1]

    def count(self, peer, kind):
        return sum(isinstance(x, kind) for x in self.sent.get(peer, []))

    def heartbeat(self, *peers):
        for peer in peers or PEERS:
            self.say(peer, wire.Report(self.now_s, -1, [], 0))

    def done(self, iteration, *workers, took_s=1.0):
        for worker in workers or ("w0", "w1"):
            self.say(worker, m.Done(iteration, took_s, 1.5, 0.1, 0.5, 6.0))  # all that servers report came since
        self.collected()

    def collected(self):
        """From every server that was asked, each time."""
        for server in [p for p in self.sent if p.startswith("s")]:
            asked = [x for x in self.sent.get(server, []) if isinstance(x, m.Collect)]
            for order in asked[self.answered.get(server, 0) :]:
                self.say(server, m.Collected(order.iteration))
            self.answered[server] = len(asked)


def test_nobody_is_welcomed_before_all_are_there():
    driver = Driver()
    for peer in ("s0", "w0", "s1"):
        rank, role, node = PEERS[peer]
        driver.say(peer, wire.Hello(wire.VERSION, role, node, rank, 1))
    assert not driver.sent
    driver.say("w1", wire.Hello(wire.VERSION, "worker", "n1", 1, 1))
    assert all(driver.last(peer, wire.Welcome).nodes == ["n0", "n1"] for peer in PEERS)


@pytest.mark.parametrize(
    ("environment", "cause", "joining"),
    [
        ({"NALB_BATCHING": "lb-bsp"}, Cause.BATCHING, JoinBatching(8, None)),
        ({"NALB_PARALLEL": "fela"}, Cause.TOKENS, JoinTokens("tcp://10.0.0.1:1", 2, 16, 1)),
        ({}, Cause.TOKENS, JoinTokens("tcp://10.0.0.1:1", 2, 16, 1)),  # the others compute tokens
    ],
    ids=["batching", "parallel", "tokens"],
)
def test_a_worker_that_trains_before_it_joins_ends_the_job_in_its_first_iteration(environment, cause, joining):
    driver = Driver(**environment)
    driver.gather()
    driver.say("w0", joining)
    driver.say("w0", m.Register(TENSORS))
    assert driver.state.verdict is None, "it has joined"
    driver.say("w1", m.Register(TENSORS))
    verdict = driver.state.verdict
    assert (verdict.cause, who(verdict), verdict.phase) == (cause, ("worker", "n1"), Phase.INIT)


def test_no_plan_before_the_slots_that_it_needs_exist():
    driver = Driver()
    driver.gather()
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register(TENSORS))
    orders = [driver.last(worker, m.PrepareSlots).slots for worker in ("w0", "w1")]
    assert [{new.server for new in order} for order in orders] == [{0}, {1}]  # each its own node's, over loopback
    driver.say("w0", m.SlotsReady(0, 0))
    assert driver.count("w0", m.Plan) == driver.count("w1", m.Plan) == 0
    driver.say("w1", m.SlotsReady(0, 0))
    assert driver.last("w0", m.Plan) == driver.last("w1", m.Plan)
    prepared = {(new.server, new.first + k) for order in orders for new in order for k in range(new.count)}
    plan = driver.last("w0", m.Plan)
    assert set(zip(plan.server_of_slice, plan.slot_of_slice, strict=True)) == prepared


def test_no_slot_is_used_twice_in_a_plan():
    driver = Driver()
    driver.start()
    plan = driver.last("w0", m.Plan)
    places = list(zip(plan.server_of_slice, plan.slot_of_slice, strict=True))
    assert len(set(places)) == len(places)


def test_the_next_plan_waits_for_every_worker():
    driver = Driver()
    driver.start()
    driver.done(0, "w0")
    assert driver.count("w0", m.Plan) == 1
    driver.done(0, "w1")
    assert driver.last("w0", m.Plan).iteration == 1
    assert driver.last("w0", m.Plan) == driver.last("w1", m.Plan)


def test_the_next_plan_waits_for_what_servers_have_still_to_tell():
    driver = Driver()
    driver.start()
    driver.now_s = 7.0
    for worker in ("w0", "w1"):
        driver.say(worker, m.Done(0, 1.0, 1.5, 0.1, 5.0, 6.0))
    before, after = (wire.SampleRow(3, 4000, start, start + 10**8) for start in (4 * 10**9, 5 * 10**9))
    driver.say("s0", wire.Report(7.0, -1, [before, after], 0))
    driver.say("w0", wire.Report(7.0, -1, [], 0))
    driver.say("s0", m.Collected(0))
    driver.say("s0", m.Collected(0))  # a repetition
    assert driver.count("w0", m.Plan) == 1
    driver.say("s1", m.Collected(0))
    assert driver.last("w0", m.Plan).iteration == 1
    (samples,) = (event.samples for event in driver.state.events if isinstance(event, Measured))
    assert samples["end_s"].tolist() == pytest.approx([5.1])  # what came before the first push is not the iteration's


def test_rates_of_another_network_end_the_job_before_it_begins():
    driver = Driver()
    rates = {"n0": 1e6, "n1": 1e6, "n2": 1e6}
    driver.say("observer", wire.Configured(rates, rates, []))
    driver.gather()
    assert driver.state.verdict.cause is Cause.REFUSED
    assert driver.state.phase == "OVER"
    assert not driver.count("w0", wire.Welcome)


@pytest.mark.parametrize("hold", ["0", "1"])
def test_a_long_training_tells_ever_fewer_iterations_whole(monkeypatch, hold):
    monkeypatch.setattr("nalb.protocol.observers.RECORDED", 5)
    driver = Driver(NALB_HOLD=hold)
    driver.start()
    if hold == "1":
        driver.say("observer", wire.RunBlock("exact", 1000))
        driver.slots_ready()
    for iteration in range(230):
        driver.done(iteration)
    plans = [event for event in driver.state.events if isinstance(event, PlanEvent)]
    told = [plan.iteration for plan in plans if plan.server_of_slice is not None]
    assert len(plans) == 231
    assert told == list(range(231)) if hold == "1" else told[95:] == [*range(95, 101), *range(110, 240, 10)]


def say_rows(driver, exchanging=-1, computed=-1):
    """The next second: a server has been sent ten messages in it, of whatever sums, and everyone reports."""
    driver.now_s += 1.0
    ends_ns = [int((driver.now_s - k / 10) * 1e9) for k in range(1, 11)]
    for peer in PEERS:
        rows = [wire.SampleRow(3, 400, end_ns - 10**8, end_ns) for end_ns in ends_ns] if peer == "s0" else []
        doing = exchanging if peer == "w0" else -1
        driver.say(peer, wire.Report(driver.now_s, doing, rows, 0, 0, computed if peer == "w0" else -1))
    driver.state.tick(driver.now_s)
    driver.collect()


def kept_rows(driver):
    (exchange,) = (one for one in driver.state.services if isinstance(one, Exchange))
    return sum(len(report.rows) for one in exchange.progress for report in one.reports)


@pytest.mark.parametrize("is_planned", [False, True])
def test_reports_of_sums_without_a_plan_are_not_kept(is_planned):
    """Also once a plan is out: a script may have gone over to sums that have none."""
    driver = Driver()
    if is_planned:
        driver.start()
    else:
        driver.gather()
    for _ in range(100):
        say_rows(driver)
    assert driver.state.verdict is None
    assert kept_rows(driver) <= 80


@pytest.mark.parametrize(("exchanging", "computed"), [(0, -1), (-1, 0)])
def test_reports_of_an_iteration_that_one_worker_has_begun_are_kept(exchanging, computed):
    driver = Driver()
    driver.start()
    for _ in range(20):  # until the iteration begins
        say_rows(driver)
    for k in range(100):
        say_rows(driver, *((exchanging, computed) if k else ()))  # the first report comes before that of its beginning
    for worker in ("w0", "w1"):
        driver.say(worker, m.Done(0, 100.0, 100.0, 0.0, 20.0, 120.0))
    driver.collected()
    (iteration,) = (event for event in driver.state.events if isinstance(event, IterationEvent))
    assert iteration.samples == 1000


def test_an_iteration_tells_what_waited_on_each_node_and_what_tcp_sent_again():
    driver = Driver()
    driver.start()
    for iteration, reports in enumerate(
        (
            {"w0": [(5000, 2), (1000, 3)], "s0": [(700, 4)], "w1": [(0, 0)], "s1": [(9, 0)]},
            {"w0": [(0, 3)], "s0": [(0, 1)], "s1": [(0, 6)]},  # of s0 a connection was made anew
        )
    ):
        for peer, told in reports.items():
            for queued_bytes, resent in told:
                driver.say(peer, wire.Report(driver.now_s, -1, [], 0, queued_bytes=queued_bytes, resent=resent))
        driver.done(iteration)
    first, second = (event for event in driver.state.events if isinstance(event, IterationEvent))
    assert (first.queued_bytes, first.resent) == ({"n0": 5700, "n1": 9}, {"n0": 7})
    assert (second.queued_bytes, second.resent) == ({}, {"n1": 6})


def test_a_plan_waits_for_servers_a_second_at_most():
    driver = Driver()
    driver.start()
    for worker in ("w0", "w1"):
        driver.say(worker, m.Done(0, 1.0, 1.5, 0.1, 5.0, 6.0))
    driver.say("s1", m.Collected(0))
    for driver.now_s, plans in ((0.9, 1), (1.1, 2)):
        driver.state.tick(driver.now_s)
        driver.collect()
        assert driver.count("w0", m.Plan) == plans
    driver.say("s0", m.Collected(0))  # too late, and harmless
    assert driver.state.phase == "RUN"


def test_a_silent_worker_that_was_an_iteration_ahead_failed_in_that_one():
    driver = Driver(NALB_SCHEME="average")
    driver.start()
    driver.done(0, "w0")
    driver.say("w0", wire.Report(driver.now_s, 1, [], 0))
    for driver.now_s in (3.0, 6.5):
        driver.heartbeat("s0", "s1", "w1")
    driver.state.tick(driver.now_s)
    verdict = driver.state.verdict
    assert (verdict.cause, who(verdict), when(verdict)) == (Cause.SILENT, ("worker", "n0"), (Phase.EXCHANGE, 1))


def test_a_silent_process_ends_the_job_everywhere_with_its_name():
    driver = Driver()
    driver.start()
    driver.now_s = 5.0
    driver.heartbeat("s0", "w0", "w1")
    driver.now_s = 6.5
    driver.state.tick(driver.now_s)
    driver.collect()
    assert driver.state.phase == "OVER"
    verdict = driver.state.verdict
    assert (verdict.cause, who(verdict), when(verdict)) == (Cause.SILENT, ("server", "n1"), (None, 0))
    assert all(driver.last(peer, wire.Abort).failure == verdict for peer in PEERS)
    (abort,) = (event for event in driver.state.events if isinstance(event, AbortEvent))
    assert (abort.failure, abort.reason) == (verdict, render(verdict))


def test_what_the_coordinator_has_slept_through_is_nobodys_silence():
    driver = Driver()
    driver.start()
    driver.state.overslept(60.0, 60.0)
    driver.now_s += 63.0
    driver.state.tick(driver.now_s)
    assert driver.state.verdict is None
    driver.now_s += 3.5
    driver.state.tick(driver.now_s)
    assert driver.state.verdict.cause is Cause.SILENT


def test_a_message_that_came_while_the_coordinator_was_at_work_is_no_newer_than_its_end():
    driver = Driver()
    driver.start()
    driver.now_s = 3.9
    driver.heartbeat()
    driver.state.overslept(3.9, 4.0)
    driver.state.tick(9.9)
    assert driver.state.verdict is None
    driver.state.tick(10.1)
    assert driver.state.verdict.cause is Cause.SILENT


def test_ps_lites_end_has_its_time_though_all_stood_still_meanwhile():
    driver = Driver()
    driver.start()
    for worker in ("w0", "w1"):
        driver.say(worker, wire.Goodbye())
    driver.state.overslept(60.0, 60.0)
    for driver.now_s in (62.0, 64.0, 66.0):
        driver.heartbeat("s0", "s1")
        driver.state.tick(driver.now_s)
    assert driver.state.verdict is None
    driver.state.tick(66.1)
    assert driver.state.verdict.cause is Cause.LINGERING


def test_who_can_be_reached_is_not_given_up_while_its_connection_waits_for_tcp():
    driver = Driver()
    driver.start()

    def reach(now_s):
        """w1 is heard on a second connection alone."""
        driver.now_s = now_s
        driver.heartbeat("s0", "w0", "s1")
        driver.say("another", wire.Still("w1"))
        assert driver.last("another", wire.Alive) == wire.Alive()
        driver.state.tick(driver.now_s)
        driver.collect()

    for now_s in range(4, 20, 4):
        reach(float(now_s))
    assert driver.state.verdict is None
    reach(20.5)  # but not for ever
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.SILENT, ("worker", "n1"))


def test_nobody_else_says_that_a_process_lives():
    driver = Driver()
    driver.start()
    driver.now_s = 6.5
    driver.heartbeat("s0", "w0", "s1")
    driver.state.receive(b"another", wire.Still("w1"), driver.now_s, "n0")  # by its key, of another node
    driver.say("another", wire.Still("nobody"))
    assert not driver.count("another", wire.Alive), "it would wait for ever for the coordinator of a job that has ended"
    driver.state.tick(driver.now_s)
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.SILENT, ("worker", "n1"))


def test_a_wrong_sum_ends_the_job_though_something_else_is_pushed_before_servers_have_reported():
    driver = Driver(NALB_VERIFY_SUMS="1")
    driver.start()
    for worker in ("w0", "w1"):
        driver.say(worker, m.Sums(0, [], []))
        driver.say(worker, m.Done(0, 1.0, 1.5, 0.1, 5.0, 6.0))
    assert driver.state.phase == "COLLECT"
    setups = driver.count("w0", m.Setup)
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register(TENSORS, 1))
    assert driver.state.phase == "OVER"
    assert driver.last("w0", wire.Abort).failure == driver.state.verdict
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.PROTOCOL, ("worker", "n0"))
    assert driver.count("w0", m.Setup) == setups


def test_an_exchange_in_which_nothing_is_under_way_any_more_is_ended():
    """All report, so nobody is silent: ps-lite would wait for ever for what a lost connection took along."""
    driver = Driver()
    driver.start()

    def report(peer, computed=0, rows=(), queued_bytes=0, exchanging=0):
        doing = -1 if peer[0] == "s" else exchanging
        driver.say(peer, wire.Report(driver.now_s, doing, list(rows), 0, 1, computed, queued_bytes))
        driver.state.tick(driver.now_s)

    def all_report(**of_all):
        driver.now_s += 5
        for peer in PEERS:
            report(peer, **of_all)

    for _ in range(100):  # gradients may take as long as they like
        driver.now_s += 5
        for peer in PEERS:
            report(peer, 0 if peer == "w0" else -1)
    row = wire.SampleRow(1, 4000, 10**9, 2 * 10**9)
    for _ in range(20):  # and slices, as long as some come
        all_report(rows=[row])
    for _ in range(20):  # or are on their way
        all_report(queued_bytes=1)
    for _ in range(20):  # and what workers do with them
        all_report(exchanging=-1)
    all_report(queued_bytes=1)
    quiet_since_s = driver.now_s
    while driver.now_s < quiet_since_s + 9:  # or may be, as far as those can tell whose own connections are silent
        driver.now_s += 0.5
        for peer in PEERS:
            if peer == "s1":
                driver.say("another", wire.Still("s1"))
            else:
                report(peer)
    assert driver.state.verdict is None
    all_report()
    all_report()
    verdict = driver.state.verdict
    assert (verdict.cause, when(verdict)) == (Cause.STUCK, (Phase.EXCHANGE, 0))


@pytest.mark.parametrize(
    ("what", "words"), [("calls", "sums and broadcasts by nalb"), ("by_gloo", "collectives by gloo")]
)
def test_who_begins_what_one_that_has_left_never_will_is_told(what, words):
    driver = Driver()
    driver.gather()
    for made in (3, 4):
        for worker in ("w0", "w1"):
            driver.say(worker, wire.Report(driver.now_s, -1, [], 0, **{what: min(made, 3) if worker == "w1" else made}))
    driver.say("w1", wire.Goodbye())
    assert driver.state.verdict is None
    driver.say("w0", wire.Report(driver.now_s, -1, [], 0, **{what: 4}))
    verdict = driver.state.verdict
    assert (verdict.cause, verdict.node) == (Cause.UNEQUAL, "n1")
    assert f"left after 3 {words}, worker n0 has begun 4" in verdict.detail


def counts_told(w0, w1, unordered="", goes_on=False, slept_s=0.0):
    """Both workers tell for ten seconds that they have begun so many sums and collectives by gloo.

    unordered: the worker that says so. goes_on: one begins more. slept_s: the coordinator's machine does so after a second.
    """
    driver = Driver()
    driver.gather()
    driver.now_s = 100.0  # all have computed for long
    for number in range(40 if not slept_s else 8):
        for worker, (calls, by_gloo) in (("w0", w0), ("w1", w1)):
            report = wire.Report(driver.now_s, -1, [], 0, calls, by_gloo=by_gloo, is_ordered=worker != unordered)
            driver.say(worker, report)
        driver.now_s += 0.25
        w1 = (w1[0], w1[1] + goes_on)
        if number == 3 and slept_s:
            driver.now_s += slept_s
            driver.state.overslept(slept_s, driver.now_s)
    return driver.state.verdict


def test_two_that_wait_for_each_other_in_a_sum_and_in_a_collective_by_gloo_are_told():
    verdict = counts_told((21, 5), (19, 6))
    assert (verdict.cause, verdict.node, verdict.culprit) == (Cause.UNEQUAL, "n1", None)
    assert "has begun 6 collectives by gloo and 19 sums and broadcasts by nalb, worker n0 5 and 21: " in verdict.detail


@pytest.mark.parametrize(
    "told",
    [
        {"w0": (21, 5), "w1": (19, 5)},
        {"w0": (21, 6), "w1": (21, 5)},
        {"w0": (21, 6), "w1": (19, 5)},
        {"w0": (21, 5), "w1": (19, 6), "unordered": "w0"},
        {"w0": (21, 5), "w1": (19, 6), "unordered": "w1"},
        {"w0": (21, 5), "w1": (19, 6), "slept_s": 60.0},
        {"w0": (21, 5), "w1": (19, 6), "goes_on": True},
    ],
)
def test_one_that_is_ahead_or_unordered_or_goes_on_waits_for_nobody_for_ever(told):
    assert counts_told(**told) is None


def test_a_lost_sum_is_noticed_where_scripts_wait_for_it_within_an_iteration():
    """PyTorch's scripts may need a sum before they begin the next one, so that the iteration's gradients are never complete."""
    driver = Driver()
    driver.start()

    def all_report(ready, summed):
        driver.now_s += 5
        for peer in PEERS:
            rank = PEERS[peer][0]
            told = {"ready": ready[rank], "summed": summed[rank]} if peer[0] == "w" else {}
            driver.say(peer, wire.Report(driver.now_s, -1 if peer[0] == "s" else 0, [], 0, 5, -1, **told))
        driver.state.tick(driver.now_s)

    for _ in range(20):  # one may compute for as long as it likes
        all_report(ready=(4, 3), summed=(3, 3))
    for _ in range(20):  # also what comes next
        all_report(ready=(4, 4), summed=(4, 4))
    assert driver.state.verdict is None
    for _ in range(3):
        all_report(ready=(5, 5), summed=(5, 4))
    verdict = driver.state.verdict
    assert (verdict.cause, when(verdict)) == (Cause.STUCK, (Phase.EXCHANGE, 0))
    assert "worker n1" in verdict.detail
    assert "n0" not in verdict.detail


def test_a_direct_call_of_which_nothing_is_under_way_any_more_is_ended():
    driver = Driver()
    driver.gather()

    def all_report(ready=(1, 1), summed=(0, 0), calls=(1, 1), **of_all):
        driver.now_s += 5
        for peer in PEERS:
            rank = PEERS[peer][0]
            told = {"ready": ready[rank], "summed": summed[rank], "calls": calls[rank]} if peer[0] == "w" else {}
            driver.say(peer, wire.Report(driver.now_s, -1, [], 0, **of_all, **told))
        driver.state.tick(driver.now_s)

    driver.say("w0", announcement(0, "sum", (("w", 1, "float32"),)))
    for _ in range(20):  # another worker may compute for as long as it likes before it makes the call
        all_report(ready=(0, 0), calls=(1, 0))
    driver.say("w1", announcement(0, "sum", (("w", 1, "float32"),)))
    for _ in range(20):  # and for as long as it likes what is to be summed
        all_report(ready=(1, 0))
    for _ in range(20):  # sums may take long, as long as something is under way
        all_report(queued_bytes=1)
    for _ in range(20):  # and nothing is missing once they are there
        all_report(summed=(1, 1))
    assert driver.state.verdict is None
    all_report(summed=(1, 0))
    all_report(summed=(1, 0))
    all_report(summed=(1, 0))
    verdict = driver.state.verdict
    assert (verdict.cause, when(verdict)) == (Cause.STUCK, (Phase.INIT, None))
    assert "worker n1" in verdict.detail
    assert "n0" not in verdict.detail


def test_a_process_that_never_comes_is_told_after_the_startup_time():
    driver = Driver(NALB_STARTUP_S="30")
    driver.say("s0", wire.Hello(wire.VERSION, "server", "n0", 0, 1))
    driver.state.tick(29.0)
    assert driver.state.phase == "GATHER"
    driver.state.tick(31.0)
    verdict = driver.state.verdict
    assert (verdict.cause, who(verdict), when(verdict)) == (Cause.ABSENT, (None, None), (Phase.START, None))


def test_different_tensors_are_named():
    driver = Driver()
    driver.gather()
    driver.say("w0", m.Register(TENSORS))
    driver.say("w1", m.Register([m.TensorSpec("w", 7, "float32", 0), TENSORS[1]]))
    assert (driver.state.verdict.cause, when(driver.state.verdict)) == (Cause.UNEQUAL, (Phase.INIT, None))


def test_two_processes_of_one_name_and_other_versions_are_refused():
    driver = Driver()
    driver.say("s0", wire.Hello(wire.VERSION, "server", "n0", 0, 1))
    driver.say("x", wire.Hello(wire.VERSION, "server", "n0", 1, 1))
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.IDENTITY, ("server", "n0"))
    driver = Driver()
    driver.say("s0", wire.Hello(wire.VERSION + 1, "server", "n0", 0, 1))
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.PROTOCOL, ("server", "n0"))


def test_a_worker_that_leaves_while_another_goes_on_is_named():
    driver = Driver()
    driver.start()
    driver.done(0)
    driver.say("w1", wire.Goodbye())
    driver.say("w0", wire.Report(1.0, -1, [], 0))  # evaluating, perhaps: no harm
    assert driver.state.verdict is None
    driver.say("w0", wire.Report(1.0, 1, [], 0))
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.UNEQUAL, ("worker", "n1"))


def test_nobody_may_enter_the_exit_barrier_before_all_say_goodbye():
    driver = Driver()
    driver.start()
    driver.done(0)
    driver.say("w1", wire.Goodbye())
    assert driver.count("w1", wire.Farewell) == 0
    driver.now_s = 9.0
    driver.heartbeat("s0", "s1", "w0")
    driver.now_s = 6.5
    driver.state.tick(driver.now_s)
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.SILENT, ("worker", "n1")), (
        "one that waits to leave must still be alive"
    )
    driver = Driver()
    driver.start()
    driver.done(0)
    driver.say("w1", wire.Goodbye())
    driver.say("w0", wire.Goodbye())
    assert driver.count("w0", wire.Farewell) == driver.count("w1", wire.Farewell) == 1


def test_a_repeated_or_wrong_done_ends_the_job_instead_of_mixing_iterations():
    driver = Driver()
    driver.start()
    driver.done(7, "w0")
    verdict = driver.state.verdict
    assert (verdict.cause, who(verdict), when(verdict)) == (Cause.PROTOCOL, ("worker", "n0"), (None, 0))


def test_strangers_are_counted_not_obeyed():
    driver = Driver()
    driver.start()
    driver.say("intruder", m.Done(0, 1.0, 1.0, 0.0, 0.0, 1.0))
    driver.say("intruder", wire.Failed(Failure(cause=Cause.SCRIPT, detail="stop")))
    assert driver.state.phase == "RUN"
    assert driver.state.rejected["message before hello"] == 2


@pytest.mark.parametrize("key_node", [None, "n0", "n1"])
@pytest.mark.parametrize(("rank", "version"), [(0, wire.VERSION), (9, wire.VERSION), (0, wire.VERSION + 1)])
def test_who_comes_after_all_have_met_is_turned_away(key_node, rank, version):
    driver = Driver()
    driver.start()
    driver.state.receive(b"late", wire.Hello(version, "worker", "n0", rank, 7), driver.now_s, key_node)
    ((peer, told),) = driver.collect()
    assert (peer, told.failure.cause, who(told.failure)) == ("late", Cause.IDENTITY, ("worker", "n0"))
    assert driver.state.phase == "RUN"
    assert driver.state.rejected["hello after all have met"] == 1


def test_a_held_job_runs_what_observers_ask_and_then_finishes():
    driver = Driver(NALB_HOLD="1")
    driver.say("watcher", wire.Observe(wire.VERSION))
    driver.gather()
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register(TENSORS))
    assert driver.count("w0", m.Plan) == 0
    driver.say("watcher", wire.RunBlock("average", 2))
    driver.slots_ready()
    driver.done(0)
    driver.done(1)
    assert driver.count("w0", m.Plan) == 2
    assert [told.event.scheme for told in driver.sent["watcher"] if isinstance(told.event, BlockEvent)] == ["average"]
    driver.say("watcher", wire.EndJob())
    assert driver.count("w0", m.Finish) == driver.count("w1", m.Finish) == 1


def test_an_iteration_ends_for_every_worker_though_none_has_reported():
    """A short iteration is over before the first report. The workers' clocks differ from each other."""
    driver = Driver()
    driver.start()
    driver.now_s = 7.0
    driver.say("w0", m.Done(0, 1.0, 1.5, 0.1, 105.0, 106.0))
    driver.now_s = 8.0
    driver.say("w1", m.Done(0, 1.0, 1.5, 0.1, 45.0, 46.0))
    driver.collected()
    (iteration,) = (event for event in driver.state.events if isinstance(event, IterationEvent))
    assert iteration.finished_s == {"n0": 7.0, "n1": 8.0}
    assert iteration.started_s == {"n0": 6.0, "n1": 7.0}


def test_a_new_registration_begins_a_new_layout():
    driver = Driver()
    driver.start()
    driver.done(0)
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register([m.TensorSpec("v", 50_000, "float64", 0)], 1))
    assert driver.last("w0", m.Setup).layout_version == 1
    driver.slots_ready()
    assert driver.last("w0", m.Plan).layout_version == 1


def test_measured_rates_move_load_off_the_slow_node():
    """Node n1 is ten times slower: samples say so, and the plan after next gives it less. Three nodes, else nothing moves."""
    driver = Driver(DMLC_NUM_WORKER="3", DMLC_NUM_SERVER="3")
    driver.gather()
    driver.say("s2", wire.Hello(wire.VERSION, "server", "n2", 2, 1))
    driver.say("w2", wire.Hello(wire.VERSION, "worker", "n2", 2, 1))
    for worker in ("w0", "w1", "w2"):
        driver.say(worker, m.Register(TENSORS))
    driver.slots_ready()
    first = driver.last("w0", m.Plan).server_of_slice
    for peer in ("s0", "s1", "s2"):
        rows = []
        for other, worker in (("s0", 1), ("s1", 3), ("s2", 5)):
            if other != peer:
                slow = "s1" in (other, peer)
                step_ns = int(1e8 if slow else 1e7)
                rows += [
                    wire.SampleRow(worker, 40_000, 10**9 + k * step_ns, 10**9 + (k + 1) * step_ns) for k in range(20)
                ]
        driver.say(peer, wire.Report(5.0, -1, rows, 0))
    driver.done(0, "w0", "w1", "w2")
    driver.slots_ready()
    second = driver.last("w0", m.Plan).server_of_slice
    assert driver.last("w0", m.Plan).iteration == 1
    assert second.count(1) < first.count(1)


def test_samples_as_rows_of_the_runs_file():
    samples = samples_of([(0, 2, 500, 10.0, 10.25, True), (2, 1, 70, 10.0000004, 10.0000016, False)])
    assert sample_rows(samples, 10.0) == [(0, 2, 1, 500, 0, 250_000), (2, 1, 0, 70, 0, 2)]


def test_what_was_cut_and_sent_is_told_so_that_it_can_be_simulated():
    driver = Driver()
    driver.start()
    told = {type(event): event for event in driver.state.events}
    plan = driver.last("w0", m.Plan)
    assert told[ReadyEvent].servers == ["n0", "n1"]
    assert [m.TensorSpec(*row) for row in told[LayoutEvent].tensors] == TENSORS
    assert told[PlanEvent].server_of_slice == plan.server_of_slice
    assert told[PlanEvent].inflight_bytes == 0  # nothing is measured yet
    assert not plan.inflight_bytes


def run_fast(driver, first, last):
    """These iterations of 1.6 MB, 1 ms each: a node's links drain 1.6 GB/s."""
    for iteration in range(first, last + 1):
        driver.done(iteration, took_s=0.001)
        driver.slots_ready()


# without forecasts, where the next plan is out already, and with
@pytest.mark.parametrize(("scheme", "anew"), [("average", 4), ("aware", 3)])
def test_where_links_are_fast_tensors_are_cut_anew_into_larger_slices_between_two_iterations(scheme, anew):
    driver = Driver(NALB_SCHEME=scheme)
    driver.start()
    usual = len(driver.last("w0", m.Plan).server_of_slice)
    run_fast(driver, 0, anew - 2)
    assert driver.count("w0", m.Setup) == 1
    driver.done(anew - 1, "w0", took_s=0.001)
    assert driver.count("w0", m.Setup) == 1  # w1 is not between iterations yet
    driver.done(anew - 1, "w1", took_s=0.001)
    driver.slots_ready()
    assert driver.last("w0", m.Setup) == driver.last("w1", m.Setup)
    plan = next(x for x in driver.sent["w0"] if isinstance(x, m.Plan) and x.layout_version == 1)
    assert plan.iteration == driver.last("w0", m.Setup).iteration == anew
    assert len(plan.server_of_slice) < usual / 2
    run_fast(driver, anew, 9)
    assert driver.count("w0", m.Setup) == 2
    first, second = (event for event in driver.state.events if isinstance(event, LayoutEvent))
    assert (first.iteration, second.iteration) == (0, anew)
    assert first.alpha_bytes < second.alpha_bytes == driver.last("w0", m.Setup).alpha_bytes
    assert first.slice_bytes < second.slice_bytes


def plans(driver, worker):
    return [x.iteration for x in driver.sent[worker] if isinstance(x, m.Plan)]


def iterations(driver):
    return [event.iteration for event in driver.state.events if isinstance(event, IterationEvent)]


def test_a_plan_that_the_present_iteration_cannot_change_is_there_before_it_is_needed():
    driver = Driver(NALB_SCHEME="average", NALB_ALPHA_BYTES="1000")
    driver.start()
    assert plans(driver, "w0") == plans(driver, "w1") == [0, 1]
    driver.done(0, "w0")
    driver.done(1, "w0")  # w1 has pushed all of 0 by then, and what it says of it is late
    assert plans(driver, "w0") == [0, 1]
    assert iterations(driver) == []
    driver.done(0, "w1")
    assert plans(driver, "w0") == plans(driver, "w1") == [0, 1, 2]
    driver.done(1, "w1")
    assert plans(driver, "w1") == [0, 1, 2, 3]
    assert iterations(driver) == [0, 1]
    assert driver.state.verdict is None


def test_where_an_iteration_is_measured_the_next_plan_waits_for_it():
    driver = Driver()
    driver.start()
    assert plans(driver, "w0") == [0]


def test_where_sums_are_verified_the_next_plan_waits_for_them():
    driver = Driver(NALB_SCHEME="average", NALB_VERIFY_SUMS="1")
    driver.start()
    assert plans(driver, "w0") == [0]


def test_other_tensors_take_the_place_of_a_plan_that_was_sent_ahead():
    driver = Driver(NALB_SCHEME="average")
    driver.start()
    driver.done(0)
    assert plans(driver, "w0") == [0, 1, 2]
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register([m.TensorSpec("v", 4_000_000, "float32", 0)], 1))
    driver.slots_ready()
    assert driver.last("w0", m.Setup).iteration == 3
    assert plans(driver, "w0") == [0, 1, 2, 3, 4]
    driver.done(3)
    assert driver.state.verdict is None


class BegunOwn(Routing):
    """MXNet's own routing is chosen for the first iterations, four by one plan."""

    def __init__(self, iterations):
        super().__init__()
        self._left = iterations
        self._own.append(0.25)


def left_to_mxnet(iterations, **environment):
    """A job whose first iterations are left to MXNet, four by one plan."""
    driver = Driver(lambda: BegunOwn(iterations), NALB_SCHEME="exact", **environment)
    driver.gather()
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register(TENSORS))
    return driver


def spans(driver, worker="w0"):
    return [(x.iteration, x.until) for x in driver.sent[worker] if isinstance(x, m.Plan)]


def test_a_plan_may_hold_for_several_iterations_each_of_which_is_told():
    driver = left_to_mxnet(99)
    assert spans(driver) == [(0, 3), (4, 7)]
    for iteration in range(6):
        driver.done(iteration, "w0", took_s=0.2)
    assert iterations(driver) == []
    for iteration in range(4):
        driver.done(iteration, "w1", took_s=0.2)
    assert iterations(driver) == [0, 1, 2, 3]
    assert spans(driver) == spans(driver, "w1") == [(0, 3), (4, 7), (8, 8)]  # these took longer: fewer at once
    told = [event for event in driver.state.events if isinstance(event, PlanEvent | IterationEvent)]
    assert [(type(event), event.iteration) for event in told] == [
        *((kind, k) for k in range(4) for kind in (PlanEvent, IterationEvent)),
        (PlanEvent, 4),
    ]
    assert driver.state.verdict is None


def test_an_iteration_that_workers_tell_of_late_has_ended_when_they_say():
    driver = left_to_mxnet(99)
    driver.heartbeat()  # clocks are known
    driver.now_s = 9.0
    driver.done(0)
    ended = next(event for event in driver.state.events if isinstance(event, IterationEvent))
    assert ended.at_s == 6.0


def test_a_worker_is_done_with_no_iteration_that_it_has_no_plan_for():
    driver = left_to_mxnet(99)
    for iteration in range(8):
        driver.done(iteration, "w0")
    assert driver.state.verdict is None
    driver.done(8, "w0")
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.PROTOCOL, ("worker", "n0"))


def test_no_plan_holds_for_more_iterations_than_an_observer_asked_for():
    driver = left_to_mxnet(99, NALB_HOLD="1")
    driver.say("observer", wire.RunBlock("exact", 6))
    assert spans(driver) == [(0, 3), (4, 5)]
    for iteration in range(6):
        driver.done(iteration)
    assert spans(driver) == [(0, 3), (4, 5)]
    assert [type(event) for event in driver.state.events][-2:] == [BlockEvent, IdleEvent]


def test_other_tensors_take_the_place_of_a_plan_that_holds_on():
    driver = left_to_mxnet(8)
    driver.done(0)
    driver.done(1)
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register([m.TensorSpec("v", 4_000_000, "float32", 0)], 1))
    driver.slots_ready()
    assert driver.last("w0", m.Setup).iteration == 8
    assert spans(driver)[-1] == (8, 8)
    driver.done(8)
    assert driver.state.verdict is None


def test_no_plan_is_sent_ahead_beyond_what_an_observer_asked_for():
    driver = Driver(NALB_HOLD="1")
    driver.start()
    driver.say("observer", wire.RunBlock("average", 2))
    driver.slots_ready()
    driver.done(0)
    driver.done(1)
    assert plans(driver, "w0") == [0, 1]


@pytest.mark.parametrize("fixed", [{"NALB_ALPHA_BYTES": "1000"}, {"NALB_SCHEME": "elastic"}, {"NALB_SCHEME": "stock"}])
def test_nothing_is_cut_anew_where_the_size_is_given_or_is_mxnets_own(fixed):
    driver = Driver(**fixed)
    driver.start()
    run_fast(driver, 0, 9)
    assert driver.last("w0", m.Plan).iteration >= 10
    assert driver.count("w0", m.Setup) == 1


def test_what_comes_after_other_tensors_is_cut_as_the_links_were_measured():
    driver = Driver()
    driver.start()
    run_fast(driver, 0, 3)
    measured = driver.last("w0", m.Setup).alpha_bytes
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register([m.TensorSpec("v", 4_000_000, "float32", 0)], 1))
    assert driver.last("w0", m.Setup).alpha_bytes == measured > 1000


def test_natural_order():
    assert sorted(["n10", "n2", "n1", "b", "m²"], key=natural_order) == ["b", "m²", "n1", "n2", "n10"]


@pytest.mark.parametrize(
    "frame",
    [b"", b"\xc1", b"\x93\x01\x02\x03", msgspec.msgpack.encode({"type": "Plan"}),
     msgspec.msgpack.encode({"type": "Done", "iteration": -1}),
     msgspec.msgpack.encode({"type": "Goodbye", "extra": 1}), b"\x91" * 5000,
     wire.encode(wire.Hello(wire.VERSION, "worker\n", "n9", 0, 1)),
     wire.encode(m.Register([m.TensorSpec("w", 1, "float32\n", 0)]))],
)  # fmt: skip
def test_frames_that_are_not_ours_are_the_peers_error(frame):
    with pytest.raises(PeerError):
        composition.decode_at_coordinator(frame, "n9")


def test_a_members_message_that_is_not_ours_ends_the_job_which_would_wait_for_it():
    driver = Driver()
    driver.gather()
    frame = wire.encode(m.Register([m.TensorSpec("k" * 257, 1, "float32", 0)]))
    with zmq.Context() as context, context.socket(zmq.ROUTER) as router:
        talks = Conversations(router)
        first = pack(Session[bytes]().keep(b""))
        for frames in ([frame], [frame, frame], [first, frame], [wire.encode(wire.Goodbye())], [first] * 3):
            take_message(talks, driver.state, [b"a stranger", *frames])
        assert driver.state.verdict is None
        take_message(talks, driver.state, [b"w1", first, frame])
    assert (driver.state.verdict.cause, who(driver.state.verdict)) == (Cause.PROTOCOL, ("worker", "n1"))


def test_signs_of_life_are_well_within_the_silence():
    assert from_environment(ENVIRONMENT, "host").heartbeat_s == 0.25
    assert from_environment(ENVIRONMENT | {"NALB_DEADLINE_S": "1"}, "host").heartbeat_s == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("name", "value"),
    [("DMLC_NUM_WORKER", "0"), ("DMLC_NUM_SERVER", "two"), ("NALB_SCHEME", "magic"), ("NALB_DEADLINE_S", "nan"),
     ("DMLC_PS_ROOT_PORT", "70000"), ("NALB_ALPHA_BYTES", "-1"), ("DMLC_ROLE", "boss"),
     ("NALB_HEARTBEAT_S", "1.6")],
)  # fmt: skip
def test_a_bad_environment_names_the_variable(name, value):
    with pytest.raises(InputError, match=name):
        from_environment({**ENVIRONMENT, name: value}, "host")


def test_where_mxnet_runs_alone_nobody_registers():
    """A worker that spoke of plans there ended the coordinator with a trace."""
    driver = Driver(NALB_STOCK="1", NALB_BATCHING="ssp")
    for peer, (rank, role, node) in PEERS.items():
        if role == "worker":
            driver.say(peer, wire.Hello(wire.VERSION, role, node, rank, 1))
    for worker in ("w0", "w1"):
        driver.say(worker, m.Register(TENSORS))
        driver.say(worker, m.Done(0, 1.0, 1.0, 0.0, 1.0, 2.0))
    assert driver.state.phase == "REGISTER"
    assert driver.state.rejected["message out of place"] == 4


def test_who_says_that_it_fails_is_named_whatever_it_calls_itself():
    driver = Driver()
    driver.start()
    driver.say("w1", wire.Failed(Failure(cause=Cause.SCRIPT, detail="failed", role="server", node="n0")))
    verdict = driver.state.verdict
    assert (verdict.cause, who(verdict), when(verdict)) == (Cause.SCRIPT, ("worker", "n1"), (None, 0))


def test_a_failure_that_says_when_it_came_keeps_it():
    driver = Driver()
    driver.start()
    driver.say(
        "w1", wire.Failed(Failure(cause=Cause.CHECKPOINT, detail="no room", phase=Phase.CHECKPOINT, iteration=7))
    )
    assert when(driver.state.verdict) == (Phase.CHECKPOINT, 7)


def test_standing_still_while_processes_come_is_no_lateness():
    """As by `scontrol suspend` of all."""
    limit_s = 20.0
    driver = Driver(NALB_STARTUP_S=f"{limit_s:g}")
    driver.state.overslept(limit_s, limit_s)
    driver.state.tick(1.5 * limit_s)
    assert driver.state.phase != "OVER"
    driver.state.tick(2.5 * limit_s)
    assert driver.state.phase == "OVER"
