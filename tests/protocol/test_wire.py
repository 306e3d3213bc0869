"""Every message at its honest largest: 1,000 nodes with long names, on a run of ten years."""

from itertools import pairwise

import pytest

from kvstore_patch.keys.plane import PS_LITE
from nalb.batching.lbb import BatchProfile
from nalb.errors import InputError, listed
from nalb.events import IterationEvent, Rates
from nalb.failures import DETAIL_MOST, Cause, Failure, Phase
from nalb.measurement.capacity import CapacityEstimator
from nalb.protocol import wire
from nalb.schemes import EXACT
from nalb.services import composition
from nalb.services.batching.messages import BatchSizes, Computed, JoinBatching
from nalb.services.batching.sizer import BatchSizer
from nalb.services.exchange import messages as m
from nalb.services.exchange.calls import announcement
from nalb.services.exchange.decision import PlanOptions
from nalb.services.exchange.job_nodes import JobNodes
from nalb.services.exchange.planner import new_planner
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
from nalb.settings import from_environment
from nalb.tokens.iteration import TokenId
from nalb.tokens.server import Fetch, Part
from nalb.tokens.shape import CHUNKS_MOST, SAMPLES_MOST, SUB_MODELS_MOST
from nalb.transport.tcp_info import Ways
from nalb.workloads import load
from tests.protocol.test_coordinator import ENVIRONMENT, Driver

NODES = 1000
NAMES = [f"{node:0128}" for node in range(NODES)]
MOST = (1 << 31) - 1  # of a C int: what MXNet, ps-lite and the kernel count in
ELEMENTS = 1 << 40  # of a tensor of PyTorch, which counts in 64 bits
PID = 1 << 22  # the kernel's largest
ITERATIONS = 10 * 365 * 86400 * 1000  # of a millisecond each
CALLS = 10_000 * ITERATIONS  # one for each tensor
YEARS_S = 3e8
NS = int(YEARS_S * 1e9)
DETAIL = "é" * DETAIL_MOST
FAILURE = Failure(
    cause=Cause.NO_COORDINATOR,
    detail=DETAIL,
    role="scheduler",
    node="é" * 64,
    phase=Phase.CHECKPOINT,
    iteration=ITERATIONS,
)
ROW = wire.SampleRow(1 + 2 * NODES, 8 * MOST, NS, NS)
SUM = m.SliceSum(1e308, float("-inf"), 1e308)
# on each connection the most that ioctl(SIOCOUTQ) can say
TOKEN = TokenId(ITERATIONS, 2 * SUB_MODELS_MOST - 2, CHUNKS_MOST)
CHUNKS = list(range(CHUNKS_MOST))  # of a last sub-model that takes the whole iteration at once
FETCH = Fetch(TOKEN, Part.GRADIENT, NODES)
OF_TOKENS = {TokenPeers, TokenShape, TokenWork, SendPart, SumGradients, NextIteration}
WAYS = Ways(2 * NODES * MOST, ((1 << 32) - 2) / 1e6)


def planned():
    """A plan for all nodes, every slot of which is new."""
    nodes = JobNodes.of(NAMES, set(NAMES), {name: rank for rank, name in enumerate(NAMES)})
    planner = new_planner(nodes, CapacityEstimator, plane=PS_LITE)
    tensors = [m.TensorSpec(one.name, one.elements, one.dtype, 0) for one in load("resnet50")]
    digest = planner.register(tensors, 1000.0).digest()
    return planner.plan(ITERATIONS, ITERATIONS, PlanOptions(EXACT)), digest


def profiled():
    """The samples and seconds that a worker of the largest memory times."""
    profile, points = BatchProfile(1 << 31), []
    while (size := profile.next_size) is not None:
        points.append((size, 1.0))
        profile.measured(1.0)
    return points


def endless():
    """The sizes of workers that nobody keeps together."""
    manager = BatchSizer("asp", NODES)
    for rank in range(NODES):
        manager.join(rank, JoinBatching(1 << 20, None))
    return manager.outbox[0]


PLANNED, DIGEST = planned()
RATES = dict.fromkeys(NAMES, 50000000000.0)
LARGEST = [
    wire.Hello(wire.VERSION, "worker", NAMES[0], NODES, PID),
    m.Register([m.TensorSpec("é" * m.NAME_MOST, ELEMENTS, "float64", k) for k in range(10_000)], ITERATIONS),
    wire.Report(YEARS_S, ITERATIONS, [ROW] * wire.ROWS_MOST, CALLS, CALLS, ITERATIONS, *WAYS),
    announcement(CALLS, "broadcast", [("é" * m.NAME_MOST, MOST, "float64")] * 1_000_000),
    m.CallAgreed(CALLS),
    wire.Still(f"server-{NAMES[0]}-{PID}"),
    m.SlotsReady(ITERATIONS, ITERATIONS),
    m.Done(ITERATIONS, *[YEARS_S] * 6),
    m.Collected(ITERATIONS),
    m.Sums(ITERATIONS, *2 * [[SUM] * len(PLANNED.message.slot_of_slice)]),
    JoinBatching(1 << 31, 1 << 31, profiled(), 1e18),  # FLOP/s, of a large machine
    Computed(ITERATIONS, 1 << 31, YEARS_S, 1.0, 1.0, YEARS_S, YEARS_S),
    JoinTokens(f"tcp://[{'f' * 32}]:65535", SUB_MODELS_MOST, SAMPLES_MOST, SAMPLES_MOST),
    TokenRequest(ITERATIONS, TOKEN, True, YEARS_S, YEARS_S, 1 << 50),
    wire.Goodbye(),
    wire.Failed(FAILURE),
    wire.Welcome(wire.VERSION, "job", NAMES, 60.0, 86400.0, NODES),
    m.Setup(ITERATIONS, ITERATIONS, NODES, NODES, 1e12, 1e12, 2, "bfloat16", DIGEST, ITERATIONS),
    m.PrepareSlots(ITERATIONS, ITERATIONS, PLANNED.new_slots),
    PLANNED.message,
    endless(),
    TokenPeers([f"tcp://{name}:65535" for name in NAMES]),
    TokenShape(ITERATIONS, CHUNKS_MOST, [CHUNKS_MOST] * SUB_MODELS_MOST, [list(range(NODES))] * SUB_MODELS_MOST),
    TokenWork(TOKEN, CHUNKS, [TOKEN] * CHUNKS_MOST, TOKEN, [FETCH] * CHUNKS_MOST),
    SendPart(FETCH, NODES, TOKEN, CHUNKS),
    SumGradients(ITERATIONS, SUB_MODELS_MOST, list(range(NODES)), [1 / NODES] * NODES),
    NextIteration(ITERATIONS, ITERATIONS),
    m.Measure(True),
    m.Collect(ITERATIONS),
    wire.Alive(),
    wire.Farewell(),
    m.Finish(),
    wire.Abort(FAILURE),
    wire.Told(
        IterationEvent(
            at_s=YEARS_S,
            iteration=ITERATIONS,
            scheme="exact",
            communication_s=RATES,
            estimate=Rates(up=RATES, down=RATES),
        )
    ),
    wire.Observe(wire.VERSION),
    wire.RunBlock("exact", ITERATIONS, 1e12, 10**12, 999_999_999_999.0, False, False, "oracle-probes+forecasts@999999999999"),
    wire.Configured(RATES, RATES, [(*pair, 50e9) for pair in pairwise(NAMES)]),
    wire.EndJob(),
]  # fmt: skip


SENT = [kind for service in composition.SERVICES for kind in service.sends]
FROM_COORDINATOR = {*wire.TO_PROCESSES, *wire.TO_OBSERVERS, *SENT}


@pytest.mark.parametrize("message", LARGEST, ids=lambda message: type(message).__name__)
def test_the_largest_message_arrives(message):
    is_from_coordinator = type(message) in FROM_COORDINATOR
    decode = composition.decode_at_client if is_from_coordinator else at_coordinator
    assert decode(wire.encode(message)) == message
    assert is_from_coordinator or len(wire.encode(message)) <= wire.MESSAGE_MOST


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (m.Register([m.TensorSpec("w" * m.NAME_MOST, 1, "float32", 0)] * 100_000), "100000 tensors take 2[0-9]{7} bytes to tell"),
        (m.Sums(0, [SUM] * 400_000, [SUM] * 400_000), "sums of 400000 slices take 2[0-9]{7} bytes to tell"),
    ],
    ids=["Register", "Sums"],
)  # fmt: skip
def test_what_no_message_holds_is_refused_where_it_is_said(message, says):
    with pytest.raises(InputError, match=says):
        m.require_fit(message)


def at_coordinator(frame):
    return composition.decode_at_coordinator(frame, "a test")


def test_all_messages_are_among_them():
    taken = (kind for service in composition.SERVICES for kind in service.takes)
    kinds = {*wire.FROM_PROCESSES, *wire.FROM_OBSERVERS, *taken, *FROM_COORDINATOR}
    assert {type(message) for message in LARGEST} == kinds


class Wired(Driver):
    """A coordinator that all messages reach, and leave, as frames. `kinds` are those it has sent."""

    def __init__(self, **environment):
        super().__init__(**environment)
        self.kinds = set()

    def say(self, peer, message):
        return super().say(peer, at_coordinator(wire.encode(message)))

    def collect(self):
        encoded, decoded = None, None  # one object for all workers
        while self.state.outbox:
            identity, message = self.state.outbox.popleft()
            if message is not encoded:
                encoded, decoded = message, composition.decode_at_client(wire.encode(message))
            self.kinds.add(type(message))
            self.sent.setdefault(identity.decode(), []).append(decoded)


@pytest.mark.jobs
def test_a_job_of_a_thousand_nodes_from_its_first_message_to_its_last():
    driver = Wired(DMLC_NUM_WORKER=str(NODES), DMLC_NUM_SERVER=str(NODES))
    workers, servers = ([f"{role}{k}" for k in range(NODES)] for role in "ws")
    driver.say("watcher", wire.Observe(wire.VERSION))
    for k, (worker, server, name) in enumerate(zip(workers, servers, NAMES, strict=True)):
        driver.say(server, wire.Hello(wire.VERSION, "server", name, k, PID))
        driver.say(worker, wire.Hello(wire.VERSION, "worker", name, k, PID))
    for worker in workers:
        driver.say(worker, announcement(0, "broadcast", (("w", 25_000_000, "float32"),)))
    assert all(driver.last(worker, m.CallAgreed).number == 0 for worker in workers)
    for worker in workers:
        driver.say(worker, m.Register([m.TensorSpec("w", 25_000_000, "float32", 0)]))
    for worker in workers:
        for order in [one for one in driver.sent[worker] if isinstance(one, m.PrepareSlots)]:
            driver.say(worker, m.SlotsReady(order.iteration, order.layout_version))
    assert all(driver.last(worker, m.Plan).iteration == 0 for worker in workers)
    for k, server in enumerate(servers):
        rows = [wire.SampleRow(1 + 2 * peer, 6000, 10**9, 2 * 10**9) for peer in range(NODES) if peer != k]
        driver.say(server, wire.Report(0.0, -1, rows, CALLS, CALLS, 0, *WAYS))
    driver.done(0, *workers)
    driver.state.tick(1.0)
    for worker in workers:
        driver.say(worker, wire.Goodbye())
    driver.state.abort(Failure(cause=Cause.SCRIPT, detail="the test ends"), 1.0)
    driver.collect()
    assert driver.state.verdict.cause is Cause.SCRIPT
    assert all(driver.last(worker, m.Plan).iteration == 1 for worker in workers)
    assert FROM_COORDINATOR - driver.kinds == {m.Finish, BatchSizes} | OF_TOKENS


# ---- what people are told


def gathered(nodes, **environment):
    """A coordinator whose job has begun, and its workers."""
    driver = Wired(DMLC_NUM_WORKER=str(nodes), DMLC_NUM_SERVER=str(nodes), **environment)
    for k, name in enumerate(NAMES[:nodes]):
        for role in ("server", "worker"):
            if role == "worker" or "NALB_STOCK" not in environment:
                driver.say(f"{role[0]}{k}", wire.Hello(wire.VERSION, role, name, k, PID))
    workers = [f"w{k}" for k in range(nodes)]
    if "NALB_STOCK" not in environment:
        for worker in workers:
            driver.say(worker, m.Register([m.TensorSpec("é" * m.NAME_MOST, 100_000, "float32", 0)]))
        for worker in workers:
            order = driver.last(worker, m.PrepareSlots)
            driver.say(worker, m.SlotsReady(order.iteration, order.layout_version))
    return driver, workers


def missing():
    """One of a thousand nodes does not come."""
    driver = Wired(DMLC_NUM_WORKER=str(NODES), DMLC_NUM_SERVER=str(NODES))
    for k, name in enumerate(NAMES[1:], 1):
        driver.say(f"w{k}", wire.Hello(wire.VERSION, "worker", name, k, PID))
    driver.state.tick(1000.0)
    return driver


def stuck():
    """All report, but nothing is under way any more."""
    driver, workers = gathered(100)
    for driver.now_s in (1.0, 9.0):
        for worker in workers:
            driver.say(worker, wire.Report(driver.now_s, 0, [], 0, computed=0))
        for server in (f"s{k}" for k in range(len(workers))):
            driver.say(server, wire.Report(driver.now_s, -1, [], 0))
    driver.state.tick(9.0)
    return driver


def wrong_sums():
    """No worker gets what was pushed."""
    driver, workers = gathered(100, NALB_VERIFY_SUMS="1")
    for worker in workers:
        slices = len(driver.last(worker, m.Plan).slot_of_slice)
        driver.say(worker, m.Sums(0, [m.SliceSum(1.0, 1.0, 1.0)] * slices, [m.SliceSum(0.0, 0.0, 0.0)] * slices))
    driver.done(0, *workers)
    return driver


def not_joined():
    """All workers but one train without batch sizes."""
    driver, workers = gathered(100, NALB_STOCK="1", NALB_BATCHING="lb-bsp", NALB_SCHEME="stock")
    driver.say(workers[0], JoinBatching(32, None))
    driver.now_s = 1000.0
    for worker in workers:
        driver.say(worker, wire.Report(1000.0, -1, [], 0, calls=int(worker != workers[0])))
    driver.state.tick(1000.0)
    return driver


def failed():
    """A worker's last words are as long as a message."""
    driver, workers = gathered(2)
    driver.say(workers[1], wire.Failed(FAILURE))
    return driver


def foreign():
    """The coordinator's own failure names a file whose name is no text."""
    driver, _ = gathered(2)
    driver.state.abort(Failure(cause=Cause.COORDINATOR, detail="cannot write /data/\udcff"), 1.0)
    return driver


@pytest.mark.jobs
@pytest.mark.parametrize(
    ("happens", "cause"),
    [(missing, Cause.ABSENT), (stuck, Cause.STUCK), (wrong_sums, Cause.WRONG_SUM), (not_joined, Cause.BATCHING),
     (failed, Cause.NO_COORDINATOR), (foreign, Cause.COORDINATOR)],
)  # fmt: skip
def test_every_process_is_told_why_the_job_ends_however_many_nodes_it_has(happens, cause):
    driver = happens()
    driver.collect()
    told = {driver.last(peer, wire.Abort) for peer in driver.sent}
    assert told == {wire.Abort(driver.state.verdict)}
    assert composition.decode_at_client(wire.encode(*told)) == wire.Abort(driver.state.verdict)
    assert driver.state.verdict.cause is cause


def test_the_first_of_many_are_named_and_the_others_counted():
    detail = missing().state.verdict.detail
    assert [name in detail for name in NAMES[:12]] == [False, *[True] * 10, False]
    _, workers = gathered(10)
    assert listed(workers) == "w0, w1, w2, w3, w4, w5, w6, w7, w8, w9"


@pytest.mark.parametrize("name", ["n" * 129, "é" * 65, "n0\n", "n0\udcff"], ids=ascii)
def test_a_node_name_that_no_message_can_carry_is_refused(name):
    with pytest.raises(InputError, match=r"NALB_NODE=.* 1 to 128 bytes"):
        from_environment(ENVIRONMENT | {"NALB_NODE": name}, "host")


@pytest.mark.parametrize("name", [NAMES[0], "é" * 64, "node 1"], ids=ascii)
def test_a_long_node_name_is_taken(name):
    assert from_environment(ENVIRONMENT | {"NALB_NODE": name}, "host").node == name
