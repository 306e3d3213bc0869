"""What reads input that others made, each as a function of one input. Whatever it raises that is not its own error is a defect."""

import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from nalb.control import messages as m
from nalb.control.keys import load_keys, make_keys
from nalb.control.settings import from_environment
from nalb.control.state import Coordinator
from nalb.errors import InputError, PeerError
from nalb.launch.hosts import load_hosts
from nalb.reporting.record import read_record
from netem.network_file import carried_networks, parse_network
from tests.fuzz.mutation import mutate_bytes, mutate_value
from tests.reporting.runs import write_fake_run

Target = Callable[[bytes], None]
TENSORS = [m.TensorSpec("w", 60_000, "float32", 0), m.TensorSpec("b", 100, "float64", 0)]
EXAMPLES: tuple[m.Message, ...] = (
    m.Hello(m.VERSION, "worker", "n0", 9, 100), m.Register(TENSORS, 0), m.SlotsReady(1, 0),
    m.Report(1.0, 1, [m.SampleRow(9, 40_000, 10**9, 2 * 10**9), m.SampleRow(8, 4_000, 10**9, 10**9 + 10**6)], 0, 3),
    m.Done(1, 1.0, 1.5, 0.1, 5.0, 6.0, 5.5), m.Sums(1, [m.SliceSum(1.0, -1.0, 2.0)], [m.SliceSum(1.0, -1.0, 2.0)]),
    m.JoinBatching(32, 64), m.Computed(1, 32, 0.1, 0.9, 0.5, 0.2, 0.0), m.Goodbye(), m.Failed("the loss is not a number"),
    m.Observe(m.VERSION), m.RunBlock("aware", 3, alpha_bytes=1e4, window_bytes=10**6, probes=False, label="x"),
    m.Configured({"n0": 1e7, "n1": 2e7}, {"n0": 1e7, "n1": 2e7}, [("n0", "n1", 5e6)]), m.EndJob(),
    m.Welcome(m.VERSION, ["n0", "n1"], 0.25, 10.0, 2), m.Setup(0, 0, 2, 2, 1e3, None, 2, "abc"),
    m.PrepareSlots(1, 0, [m.NewSlots(0, 0, 2, 100, "float32")]), m.Plan(1, 0, "aware", True, 10**6, [0, 1], [0, 0]),
    m.BatchSizes(0, 0, [32, 32]), m.Abort("worker n1 is dead"), m.Event("state", 1.0, {"phase": "RUN", "nodes": ["n0"]}),
)  # fmt: skip


def decode_control(data: bytes) -> None:
    """A frame at either end; what is accepted can be sent again."""
    for decode in (lambda frame: m.decode_at_coordinator(frame, "n9"), m.decode_at_client):
        with suppress(PeerError):
            m.encode(decode(data))


def parse_network_text(data: bytes) -> None:
    """A network file; what is accepted has rates at any time."""
    with suppress(InputError, UnicodeDecodeError):
        parse_network(data.decode("utf-8"), "network.toml")


class InFolder:
    """Files that are read by name: written where the next one overwrites them."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.chmod(0o700)  # key files are refused elsewhere

    def hosts(self, data: bytes) -> None:
        """A hosts file; no name is looked up."""
        path = self.folder / "hosts.toml"
        path.write_bytes(data)
        with suppress(InputError):
            load_hosts(path)

    def run(self, data: bytes) -> None:
        """run.json and samples.jsonl in one, at the first zero byte."""
        run, _, samples = data.partition(b"\0")
        (self.folder / "run.json").write_bytes(run)
        (self.folder / "samples.jsonl").write_bytes(samples)
        with suppress(InputError):
            read_record(self.folder)

    def keys(self, data: bytes) -> None:
        """A key file."""
        path = self.folder / "n0.keys"
        path.write_bytes(data)
        path.chmod(0o600)
        with suppress(InputError):
            load_keys(path)


def corpus(target: str) -> list[bytes]:
    """A few good inputs."""
    if target == "control":
        return [m.encode(message) for message in EXAMPLES]
    if target == "network":
        return [path.read_bytes() for path in carried_networks().values()]
    if target == "keys":
        return [make_keys({"n0": "127.0.0.1", "n1": "127.0.0.2"})["n0"].text().encode()]
    if target == "hosts":
        host = '[[hosts]]\nname = "n{0}"\naddress = "192.0.2.{0}"\nworker = true\nserver = {1}\nport = 22\nuser = "u"\n'
        defaults = (
            '[defaults]\nroot_port = 9091\npython = "python3"\nssh_options = ["A=b"]\n[defaults.environment]\nA = "b"\n'
        )
        return [(defaults + host.format(1, "true") + host.format(2, "false")).encode(), host.format(1, "true").encode()]
    with tempfile.TemporaryDirectory() as folder:
        write_fake_run(Path(folder), nodes=2, iterations=1, schemes=("stock", "aware"), changes=True)
        return [b"\0".join((Path(folder) / name).read_bytes() for name in ("run.json", "samples.jsonl"))]


def byte_targets(folder: Path) -> dict[str, Target]:
    """By name, those that take bytes."""
    files = InFolder(folder)
    return {
        "control": decode_control,
        "network": parse_network_text,
        "hosts": files.hosts,
        "run": files.run,
        "keys": files.keys,
    }


def is_offline(data: bytes) -> bool:
    """Whether a hosts file names addresses only: a mutated name would be looked up."""
    words = [
        line.split(b"=", 1)[1] for line in data.splitlines() if line.lstrip().startswith(b"address") and b"=" in line
    ]
    return all(not word.strip(b" \"'\r").strip(b"0123456789.") for word in words)


def inputs(target: str, seed: int) -> Iterator[bytes]:
    """Without end."""
    rng, seeds = random.Random(seed), corpus(target)
    while True:
        data = mutate_bytes(rng, seeds)
        if target != "hosts" or is_offline(data):
            yield data


class CoordinatorUnderAttack:
    """A job of two nodes whose processes mostly say what is due, and else what a broken or hostile one might.

    Decodable messages only: `control` is for the others. Each `step` is one message. The job is begun anew when it is over.
    """

    def __init__(self, seed: int):
        self._rng = random.Random(seed)
        self.jobs = self.iterations = 0
        self._begin()

    def _begin(self) -> None:
        rng = self._rng
        environment = {
            "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091",
            "DMLC_NUM_WORKER": "3",
            "DMLC_NUM_SERVER": "3", "NALB_SCHEME": rng.choice(("aware", "exact", "elastic", "oracle", "average")),
            "NALB_HOLD": rng.choice("001"), "NALB_VERIFY_SUMS": rng.choice("0001"),
            "NALB_ESTIMATOR": rng.choice(("capacity", "paper")),
        }  # fmt: skip
        if rng.random() < 0.2:
            environment["NALB_BATCHING"] = rng.choice(("lb-bsp", "lbb", "ssp"))
        self._now_s = 0.0
        self._state = Coordinator(from_environment(environment, "host"), 0.0)
        self._due: list[tuple[bytes, m.Message]] = []
        for rank in range(3):
            self._due.append((b"s%d" % rank, m.Hello(m.VERSION, "server", f"n{rank}", 8 + 2 * rank, 1)))
            self._due.append((b"w%d" % rank, m.Hello(m.VERSION, "worker", f"n{rank}", 9 + 2 * rank, 1)))
        rng.shuffle(self._due)
        if environment["NALB_HOLD"] == "1":
            self._due.append((b"o", m.RunBlock(rng.choice(("aware", "exact", "stock")), 5)))
        self.jobs += 1

    def step(self) -> None:
        """One message, and now and then a tick."""
        rng = self._rng
        self._now_s += rng.choice((0.0, 0.001, 0.2, 2.0))
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

    def _hostile(self) -> m.Message | None:
        value = mutate_value(self._rng, msgspec.to_builtins(self._rng.choice(EXAMPLES)), self._rng.choice((0.05, 0.3)))
        try:
            return m.decode_at_coordinator(msgspec.msgpack.encode(value), "x")
        except (PeerError, OverflowError, UnicodeEncodeError):
            return None

    def _answer(self, identity: bytes, message: m.Message) -> None:
        """What an honest process says to it."""
        m.encode(message)
        if isinstance(message, m.Welcome) and identity[:1] == b"w":
            self._due.append((identity, m.Register(TENSORS, 0)))
        elif isinstance(message, m.PrepareSlots):
            self._due.append((identity, m.SlotsReady(message.iteration, message.epoch)))
        elif isinstance(message, m.Plan):
            self.iterations += 1
            sums = [m.SliceSum(0.0, 0.0, 0.0)] * len(message.server_of_slice)
            self._due += [
                (identity, m.Report(self._now_s, message.iteration, self._rows(identity), 0, 1)),
                (b"s" + identity[1:], m.Report(self._now_s, -1, self._rows(b"s" + identity[1:]), 0)),
                (identity, m.Sums(message.iteration, sums, sums)),
                (identity, m.Done(message.iteration, 1.0, 1.5, 0.1, self._now_s, self._now_s + 1.0)),
            ]

    def _rows(self, identity: bytes) -> list[m.SampleRow]:
        """Measurements; a third of the time absurd ones."""
        rng, rows = self._rng, []
        is_absurd = rng.random() < 0.3
        for _ in range(rng.choice((0, 5, 40))):
            start_ns = int((self._now_s + 1) * 1e9) + rng.randrange(10**9)
            took_ns = rng.choice((1, 10**3, 10**6, 10**9, 3 * 10**12)) if is_absurd else rng.randrange(10**6, 10**8)
            size_bytes = rng.choice((0, 1, 10**3, 10**9, 2**40)) if is_absurd else rng.randrange(1000, 100_000)
            rows.append(
                m.SampleRow(rng.choice((8, 9, 10, 11, 12, 13, -1, 99)), size_bytes, start_ns, start_ns + took_ns)
            )
        del identity
        return rows


def steps(target: str, seed: int, folder: Path) -> Callable[[], Any]:
    """One more input of the target with each call; files are written into the folder."""
    if target == "coordinator":
        return CoordinatorUnderAttack(seed).step
    run, source = byte_targets(folder)[target], inputs(target, seed)

    def step() -> None:
        data = next(source)
        try:
            run(data)
        except Exception as error:
            error.add_note(f"input: {data!r}")
            raise

    return step


TARGETS = ("control", "coordinator", "network", "hosts", "run", "keys")
