"""Coordinators that are talked to: by a job a part of whose messages are hostile, and by whatever bytes say."""

import random
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec

from kvstore_patch.keys.plane import PS_LITE
from nalb.errors import PeerError
from nalb.events import StateEvent
from nalb.failures import Cause, Failure, Phase
from nalb.protocol import wire
from nalb.services import composition
from nalb.services.batching.messages import BatchSizes, Computed, JoinBatching
from nalb.services.composition import new_coordinator
from nalb.services.exchange import messages as m
from nalb.services.exchange.calls import announcement
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
from nalb.tokens.policies import PARALLELS
from nalb.tokens.server import Fetch, Part
from tests.fuzz.mutation import mutate_value

FAILURE = Failure(cause=Cause.SCRIPT, detail="no number", role="worker", node="n1", phase=Phase.FORWARD, iteration=3)
JOB = {"DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091"}
IDENTITIES = (b"s0", b"s1", b"w0", b"w1", b"o", b"x")  # who speaks in a conversation, by its number; x is nobody
MOST_ANSWERS = 100  # to one message
KINDS: tuple[dict[str, str], ...] = (  # of jobs, by the first byte of a conversation
    {"NALB_SCHEME": "exact", "NALB_VERIFY_SUMS": "1"},
    {"NALB_SCHEME": "aware", "NALB_HOLD": "1", "NALB_ESTIMATOR": "paper"},
    {"NALB_SCHEME": "elastic", "NALB_BATCHING": "lb-bsp", "NALB_PREDICTOR": "ema"},
    {"NALB_SCHEME": "joint", "NALB_PREDICTOR": "ema"},
    {"NALB_STOCK": "1", "NALB_BATCHING": "ssp"},
    {"NALB_SCHEME": "exact", "NALB_PARALLEL": "fela"},
    {"NALB_SCHEME": "exact", "NALB_PARALLEL": "fela-paper", "NALB_TOKEN_WEIGHTS": "1,1,2", "NALB_TOKEN_SUBSET": "1"},
    {"NALB_SCHEME": "exact", "NALB_PARALLEL": "hp"},
)
RATES = {"n0": 1e7, "n1": 2e7}
ORDERS = (
    (b"o", wire.Observe(wire.VERSION)),
    (b"o", wire.Configured(RATES, RATES, [])),
    (b"o", wire.RunBlock("oracle", 9)),
)
BATCHES = 10  # of a worker in an honest conversation: sizes are decided from the sixth on
STEPS = 7  # of a worker that computes tokens: the second shape is tried from the sixth on
JOIN_TOKENS = JoinTokens("tcp://10.0.0.1:7000", 3, 16, 8)
TENSORS = [m.TensorSpec("w", 60_000, "float32", 0), m.TensorSpec("b", 100, "float64", 0)]
CALLED = announcement(0, "broadcast", (("w", 60_000, "float32"), (1, 100, "float64")))
EXAMPLES: tuple[wire.Message, ...] = (
    wire.Hello(wire.VERSION, "worker", "n0", 0, 100), m.Register(TENSORS, 0), m.SlotsReady(1, 0),
    wire.Report(1.0, 1, [wire.SampleRow(1, 40_000, 10**9, 2 * 10**9), wire.SampleRow(0, 4_000, 10**9, 10**9 + 10**6)], 0, 3),
    m.Done(1, 1.0, 1.5, 0.1, 5.0, 6.0, 5.5), m.Sums(1, [m.SliceSum(1.0, -1.0, 2.0)], [m.SliceSum(1.0, -1.0, 2.0)]),
    JoinBatching(32, 64), Computed(1, 32, 0.1, 0.9, 0.5, 0.2, 0.0),
    JOIN_TOKENS, TokenRequest(0, None), TokenRequest(0, TokenId(0, 2, 1), False, 0.1, 0.01, 40_000),
    wire.Goodbye(), wire.Failed(FAILURE), wire.Still("w0"), CALLED, m.CallAgreed(0),
    wire.Observe(wire.VERSION), wire.RunBlock("aware", 3, alpha_bytes=1e4, inflight_bytes=10**6, probes=False, label="x"),
    wire.Configured({"n0": 1e7, "n1": 2e7}, {"n0": 1e7, "n1": 2e7}, [("n0", "n1", 5e6)]), wire.EndJob(),
    wire.Welcome(wire.VERSION, "job", ["n0", "n1"], 0.25, 10.0, 2), m.Setup(0, 0, 2, 2, 1e3, None, 2, "float32", "abc", 0),
    m.PrepareSlots(1, 0, [m.NewSlots(0, 0, 2, 100, "float32")]), m.Plan(1, 1, 0, "aware", True, [10**6, 5], [0, 1], [0, 0]),
    BatchSizes(0, 0, [32, 32]),
    TokenPeers(["tcp://10.0.0.1:7000"] * 2), TokenShape(0, 4, [1, 1, 2], [[0, 1], [0, 1], [0]]),
    TokenWork(TokenId(0, 3, 1), [1], [TokenId(0, 2, 0)], TokenId(0, 1, 1), [Fetch(TokenId(0, 2, 0), Part.GRADIENT, 1)]),
    SendPart(Fetch(TokenId(0, 2, 0), Part.GRADIENT, 1), 0, TokenId(0, 3, 1), [1]), SumGradients(0, 2, [0], [1.0]),
    NextIteration(0, 0), wire.Abort(FAILURE), wire.Told(StateEvent(at_s=1.0, phase="RUN", nodes=["n0"])),
)  # fmt: skip

Received = wire.Message | wire.FromObserver  # by a coordinator
Due = list[tuple[bytes, Received]]


def honest_answers(
    identity: bytes, message: wire.Message, now_s: float, rows: Callable[[], list[wire.SampleRow]]
) -> Due:
    """What a process that this was sent to says, and its node's server."""
    if isinstance(message, BatchSizes):
        size, last = message.sizes[int(identity[1:])], min(message.until, BATCHES)
        return [(identity, Computed(k, size, 0.1, 0.9, 0.5, 0.2, 0.0)) for k in range(message.iteration, last + 1)]
    if isinstance(message, TokenPeers):
        return [(identity, TokenRequest(0))]
    if isinstance(message, TokenWork):
        request = TokenRequest(message.token.iteration, message.token, False, 0.1, 0.01, 40_000)
        sign_of_life = [(b"s" + identity[1:], wire.Report(now_s, -1, [], 0))] if message.token.level == 0 else []
        return [(identity, request), *sign_of_life]
    if isinstance(message, NextIteration) and message.iteration + 1 < STEPS:
        return [(identity, TokenRequest(message.iteration + 1, drains=message.iteration + 2 == STEPS))]
    if isinstance(message, wire.Welcome) and identity[:1] == b"w":
        return [(identity, CALLED)]
    if isinstance(message, m.CallAgreed):
        return [(identity, m.Register(TENSORS, 0))]
    if isinstance(message, m.PrepareSlots):
        return [(identity, m.SlotsReady(message.iteration, message.layout_version))]
    if isinstance(message, m.Collect):
        return [(identity, m.Collected(message.iteration))]
    if not isinstance(message, m.Plan):
        return []
    sums = [m.SliceSum(0.0, 0.0, 0.0)] * len(message.server_of_slice)
    return [
        (identity, wire.Report(now_s, message.iteration, rows(), 0, 1)),
        (b"s" + identity[1:], wire.Report(now_s, -1, rows(), 0)),
        (identity, m.Sums(message.iteration, sums, sums)),
        (identity, m.Done(message.iteration, 1.0, 1.5, 0.1, now_s, now_s + 1.0)),
    ]


def hellos(nodes: int) -> Due:
    """Of all processes of a job."""
    return [
        (f"{role[0]}{rank}".encode(), wire.Hello(wire.VERSION, role, f"n{rank}", rank, 1))
        for rank in range(nodes)
        for role in ("server", "worker")
    ]


class Listener:
    """A coordinator of two nodes that takes frames, one after the other; it checks that its answers are few and can be sent."""

    def __init__(self, kind: int) -> None:
        settings = {"DMLC_NUM_WORKER": "2", "DMLC_NUM_SERVER": "2", **KINDS[kind % len(KINDS)]}
        settings["NALB_ALPHA_BYTES"] = "1e9"  # few slices: short messages
        self._state, self.now_s = new_coordinator(from_environment(JOB | settings, "host"), 0.0, plane=PS_LITE), 0.0

    def hear(self, identity: bytes, frame: bytes) -> list[tuple[bytes, wire.Message]]:
        """Its answers."""
        self.now_s += 0.05
        with suppress(PeerError):
            self._state.receive(identity, composition.decode_at_coordinator(frame, "x"), self.now_s)
        self._state.tick(self.now_s)
        answers = list(self._state.outbox)
        assert len(answers) < MOST_ANSWERS, "an input makes too many answers"
        for _, answer in answers:
            wire.encode(answer)
        self._state.outbox.clear()
        self._state.events.clear()
        return answers


def converse(data: bytes) -> None:
    """A conversation as bytes: the kind of job, then per message who speaks, the length in two bytes, the frame."""
    listener, data = Listener(data[0] if data else 0), data[1:]
    while len(data) > 2:
        end = 3 + int.from_bytes(data[1:3], "little")
        listener.hear(IDENTITIES[data[0] % len(IDENTITIES)], data[3:end])
        data = data[end:]


def honest_conversation(iterations: int, kind: int = 0) -> bytes:
    """As bytes, of a job of this kind that ends after so many."""
    job, listener, said = KINDS[kind], Listener(kind), bytes([kind])
    due = [one for one in hellos(2) if "NALB_STOCK" not in job or one[0][:1] == b"w"]
    due += ORDERS if "NALB_HOLD" in job else ()
    if "NALB_BATCHING" in job or job["NALB_SCHEME"] == "joint":
        due += [(worker, JoinBatching(32, 64)) for worker in (b"w0", b"w1")]
    if "NALB_PARALLEL" in job:
        due += [(worker, JOIN_TOKENS) for worker in (b"w0", b"w1")]
    last_words: Due = [(worker, wire.Goodbye()) for worker in (b"w0", b"w1")]
    while due or last_words:
        identity, message = (due or last_words).pop(0)
        if isinstance(message, m.Register) and "NALB_STOCK" in job:
            continue
        if isinstance(message, m.Done) and message.iteration == iterations:
            continue
        frame = wire.encode(message)
        said += bytes([IDENTITIES.index(identity)]) + len(frame).to_bytes(2, "little") + frame
        for whom, answer in listener.hear(identity, frame):
            end_ns = int(listener.now_s * 1e9)
            row = wire.SampleRow(0 if whom == b"w1" else 2, 40_000, end_ns - 10**7, end_ns)
            due += honest_answers(whom, answer, listener.now_s, partial(list, [row]))
    return said


class CoordinatorUnderAttack:
    """A job of two nodes whose processes mostly say what is due, and else what a broken or hostile one might.

    Decodable messages only: `control` is for the others. Each `step` is one message. The job is begun anew when it is over.
    """

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self.jobs = self.iterations = self.tokens = 0
        self._begin()

    def _begin(self) -> None:
        rng = self._rng
        environment = {
            **JOB, "DMLC_NUM_WORKER": "3", "DMLC_NUM_SERVER": "3",
            "NALB_SCHEME": rng.choice(("aware", "exact", "elastic", "oracle", "average")),
            "NALB_HOLD": rng.choice("001"), "NALB_VERIFY_SUMS": rng.choice("0001"),
            "NALB_ESTIMATOR": rng.choice(("capacity", "paper")),
        }  # fmt: skip
        if rng.random() < 0.2:
            environment["NALB_BATCHING"] = rng.choice(("lb-bsp", "lbb", "ssp"))
        deals_tokens = "NALB_BATCHING" not in environment and rng.random() < 0.4
        if deals_tokens:
            environment["NALB_PARALLEL"] = rng.choice(PARALLELS)
        if deals_tokens and rng.random() < 0.3:
            environment |= {
                "NALB_TOKEN_WEIGHTS": rng.choice(("1,1,1", "1,1,2", "1,2")),
                "NALB_TOKEN_SUBSET": rng.choice("123"),
            }
        self._now_s = 0.0
        self._state = new_coordinator(from_environment(environment, "host"), 0.0, plane=PS_LITE)
        self._due: Due = hellos(3)
        rng.shuffle(self._due)
        if deals_tokens:
            self._due += [(worker, JOIN_TOKENS) for worker in (b"w0", b"w1", b"w2")]
        if environment["NALB_HOLD"] == "1":
            self._due.append((b"o", wire.RunBlock(rng.choice(("aware", "exact", "stock")), 5)))
        self.jobs += 1

    def step(self) -> None:
        """One message, and now and then a tick."""
        rng = self._rng
        self._now_s += rng.choice((0.0, 0.001, 0.2, 2.0))
        message: Received | None
        if self._due and rng.random() < 0.9:
            identity, message = self._due.pop(0)
        else:
            identity, message = rng.choice((b"s0", b"s1", b"w0", b"w1", b"w2", b"o", b"x")), self._hostile()
        if message is not None:
            self._state.receive(identity, message, self._now_s)
        if rng.random() < 0.05:
            self._state.tick(self._now_s)
        assert len(self._state.outbox) < 100, "an input makes too many answers"
        while self._state.outbox:
            self._answer(*self._state.outbox.popleft())
        self._state.events.clear()
        if self._state.phase == "OVER" or rng.random() < 0.0005:
            self._begin()

    def _hostile(self) -> Received | None:
        value = mutate_value(self._rng, msgspec.to_builtins(self._rng.choice(EXAMPLES)), self._rng.choice((0.05, 0.3)))
        try:
            return composition.decode_at_coordinator(msgspec.msgpack.encode(value), "x")
        except (PeerError, OverflowError, UnicodeEncodeError):
            return None

    def _answer(self, identity: bytes, message: wire.Message) -> None:
        """What an honest process says to it."""
        wire.encode(message)
        self.iterations += isinstance(message, m.Plan)
        self.tokens += isinstance(message, TokenWork)
        self._due += honest_answers(identity, message, self._now_s, self._rows)

    def _rows(self) -> list[wire.SampleRow]:
        """Measurements; a third of the time absurd ones."""
        rng, rows = self._rng, []
        is_absurd = rng.random() < 0.3
        for _ in range(rng.choice((0, 5, 40))):
            start_ns = int((self._now_s + 1) * 1e9) + rng.randrange(10**9)
            took_ns = rng.choice((1, 10**3, 10**6, 10**9, 3 * 10**12)) if is_absurd else rng.randrange(10**6, 10**8)
            size_bytes = rng.choice((0, 1, 10**3, 10**9, 2**40)) if is_absurd else rng.randrange(1000, 100_000)
            rows.append(
                wire.SampleRow(rng.choice((0, 1, 2, 3, 4, 5, -1, 91)), size_bytes, start_ns, start_ns + took_ns)
            )
        return rows
