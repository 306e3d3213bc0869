"""Agents as real processes on loopback, with the real coordinator."""

import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest
import zmq

from nalb.events import IterationEvent
from nalb.failures import Cause
from nalb.plane import orders
from nalb.plane.links import SliceHeader, identity_of
from nalb.reporting.run_file import read_events
from nalb.services.exchange import messages as m
from nalb.services.exchange.calls import announcement
from nalb.transport.keys import key_path, make_keys, write_keys
from tests.plane.halves import rounded_to
from tests.plane.plain_front import LIMIT_S, Ended, PlainFront, meet, on_all

pytestmark = pytest.mark.jobs
ROOT = Path(__file__).parents[2]
MARK = "NALB_TEST_RUN"
NODES = ("n0", "n1")
HEADER = msgspec.msgpack.encode(SliceHeader(0, 0, "float32", 0))


@pytest.fixture
def environment(monkeypatch):
    """Short deadlines, and a mark by which everything that the test starts is found."""
    for name in [one for one in os.environ if one.startswith(("NALB_", "DMLC_"))]:
        monkeypatch.delenv(name)
    token = secrets.token_hex(8)
    monkeypatch.setenv(MARK, token)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("NALB_DEADLINE_S", "4")
    yield monkeypatch
    for pid in marked(token):
        os.kill(pid, signal.SIGKILL)
    while PlainFront.made:
        PlainFront.made.pop().close()


def iterations_in(folder):
    """What the job's coordinator told of its iterations."""
    return [event for event in read_events(folder) if isinstance(event, IterationEvent)]


def marked(token):
    """Living processes of the test, this one left out."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                is_ours = f"{MARK}={token}".encode() in (folder / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            found += [int(folder.name)] if is_ours else []
    return found


def are_gone():
    """Whether all that the test has started ends by itself."""
    end_s = time.monotonic() + LIMIT_S
    while (left := marked(os.environ[MARK])) and time.monotonic() < end_s:
        time.sleep(0.05)
    return not left


def sequential(parts):
    total = parts[0].copy()
    for part in parts[1:]:
        total = total + part
    return total


def exchange(fronts, tensors=None, **begin):
    """Begin the sums of an iteration on all ranks, and wait for them. tensors: so many of its first ones; None: all."""
    for front in fronts:
        front.begin(tensors, **begin)
    for front in fronts:
        front.wait(tensors)


def sum_once(fronts, random, tensors=None, add_up=sequential):
    """One iteration of random numbers; the sums must have the bits of a loop over ranks, or of what `add_up` computes.

    Values of two bytes are added up in float32, and the sum is rounded once.
    """
    routes = [front.route() for front in fronts]
    assert len({(route.first, route.until, route.by_ring) for route in routes}) == 1
    dtypes = fronts[0].dtypes
    parts = [[random.standard_normal(len(one)).astype(one.dtype) for one in front.tensors] for front in fronts]
    for part in parts:
        part[0][:3] = np.nan, np.inf, -0.0
        part[:] = map(rounded_to, dtypes, part)
    for front, part in zip(fronts, parts, strict=True):
        for shared, values in zip(front.tensors, part, strict=True):
            shared[:] = values
    exchange(fronts, tensors)
    for index in range(len(fronts[0].tensors) if tensors is None else tensors):
        expected, arrived = rounded_to(dtypes[index], add_up([part[index] for part in parts])), fronts[0].tensors[index]
        assert rounded_to(dtypes[index], arrived).tobytes() == expected.tobytes(), (
            index
        )  # slices with NaN travel as they are
        assert len({front.tensors[index].tobytes() for front in fronts}) == 1, index
    return routes[0].first


def leave(fronts):
    """All leave, and their agents end well."""
    for front in fronts:
        front.leave()
    assert [front.agent.wait(LIMIT_S) for front in fronts] == [0] * len(fronts)


def own_kilobytes(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0])


@pytest.mark.filterwarnings("ignore:invalid value")
def test_sums_of_three_ranks(environment, tmp_path):
    """Several registrations, a broken-off iteration, calls without a plan, and a good end; digests check every slice too."""
    environment.setenv("NALB_VERIFY_SUMS", "1")
    environment.setenv("NALB_SAMPLES", str(tmp_path / "samples.jsonl"))
    random, size = np.random.default_rng(0), 3
    fronts = [PlainFront(rank, size) for rank in range(size)]
    meet(fronts)
    for number in range(2):  # calls that no plan covers
        call = announcement(number, "sum", ((number, 5000, "float32"),))
        for front in fronts:
            front.calls += 1
            front.send(call)
        assert [front.hear(m.CallAgreed).number for front in fronts] == [number] * size
    for front in fronts:
        front.register([40_000, 1, 300_007, 1024])
    assert [sum_once(fronts, random) for _ in range(3)] == [0, 1, 2]
    assert sum_once(fronts, random, tensors=2) == 3
    for front in fronts:
        front.send(orders.BreakOff())
        front.register([70_000, 2000], "float64")
    assert sum_once(fronts, random) >= 4
    for front in fronts:
        front.route()  # a plan that no iteration follows
        front.send(orders.BreakOff())
        front.register([90_000], "float16")
    sum_once(fronts, random)
    for front in fronts:
        front.route()
        front.send(orders.BreakOff())
        front.register([90_001, 1025, 2000], "bfloat16", "float32", "float16")
    for _ in range(2):
        sum_once(fronts, random)
    leave(fronts)
    assert are_gone()
    ended = [one.iteration for one in read_events(tmp_path) if isinstance(one, IterationEvent)]
    assert set(range(3)) < set(ended)
    assert 3 not in ended, "its times are no iteration's"


OWN_SCHEME = """
from nalb import SCHEMES, Scheme
print("imported", flush=True)
def decide(situation):
    print("decides" + " " * 200_000, flush=True)
    return SCHEMES["average"].decide(situation)
PRINTS = Scheme("PRINTS", decide)
"""


def test_what_a_users_scheme_prints_is_neither_the_port_nor_fills_a_pipe(environment, tmp_path, capfd):
    (tmp_path / "prints.py").write_text(OWN_SCHEME)
    environment.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    environment.setenv("NALB_SCHEME", "prints:PRINTS")
    fronts = [PlainFront(rank, 2) for rank in range(2)]
    meet(fronts)
    for front in fronts:
        front.register([9_000])
    for _ in range(3):
        sum_once(fronts, np.random.default_rng(0))
    leave(fronts)
    assert are_gone()
    told = capfd.readouterr().err
    assert told.startswith("imported\n")
    assert told.count("decides") >= 2


def rounded_sums(fronts, random, rounds):
    """Rounds of random numbers: all ranks get the same bits, and in all the sum arrives; returns how far it is off, in parts."""
    sizes = [len(one) for one in fronts[0].tensors]
    given, arrived, worst = ([np.zeros(size) for size in sizes] for _ in range(3))
    for _ in range(rounds):
        assert not any(front.route().by_ring for front in fronts)
        for front in fronts:
            for index, shared in enumerate(front.tensors):
                shared[:] = random.standard_normal(sizes[index])
                given[index] += shared
        exchange(fronts)
        for index in range(len(sizes)):
            assert len({front.tensors[index].tobytes() for front in fronts}) == 1, index
            arrived[index] += fronts[0].tensors[index]
            worst[index] = np.maximum(worst[index], np.abs(fronts[0].tensors[index]))
    return [np.abs(g - a).max() / w.max() for g, a, w in zip(given, arrived, worst, strict=True)]


STEPS = {
    "bfloat16": 2.0**-8,
    "float16": 2.0**-11,
    "int8": 1 / 250,
    "int4": 1 / 13,
}  # of the largest value, half of them


@pytest.mark.parametrize("precision", STEPS)
def test_sums_of_fewer_bytes(environment, precision):
    """Replicas do not drift, and what rounding takes arrives later, on one level; digests check every slice.

    What two levels and other tensors do to it: test_fewer_bytes_by_sites.
    """
    environment.setenv("NALB_PRECISION", precision)
    environment.setenv("NALB_VERIFY_SUMS", "1")
    fronts = [PlainFront(rank, 3) for rank in range(3)]
    meet(fronts)
    for front in fronts:
        front.register([20_000, 1, 6_007, 255])
    off = rounded_sums(fronts, np.random.default_rng(0), 200)
    assert max(off) <= 4 * STEPS[precision]  # at most one rounding of each rank's, not one of each round's
    leave(fronts)


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:overflow")
@pytest.mark.parametrize("precision", ["float16", "int8", "int4"])
def test_slices_beyond_a_precision(environment, tmp_path, precision):
    """They travel as they are: all ranks get the same bits, with infinities and NaN where a loop over ranks has them."""
    environment.setenv("NALB_PRECISION", precision)
    environment.setenv("NALB_VERIFY_SUMS", "1")
    fronts, random = [PlainFront(rank, 3) for rank in range(3)], np.random.default_rng(0)
    meet(fronts)
    special = (
        (np.nan, 1, 1),
        (1, np.inf, -np.inf),
        (1, -np.inf, 1),
        (1e38, 1, -1e38),
        (2e38, 2e38, 1),
        (5e37, 5e37, 5e37),
    )
    sizes = [20_000, *[1500] * len(special)]
    for front in fronts:
        front.register(sizes)
    for number in range(4):
        parts = [[random.standard_normal(size).astype(np.float32) for size in sizes] for _ in fronts]
        if number == 1:
            for tensor, values in enumerate(special, 1):
                for part, value in zip(parts, values, strict=True):
                    part[tensor][5] = value
        for front, part in zip(fronts, parts, strict=True):
            front.route()
            for shared, values in zip(front.tensors, part, strict=True):
                shared[:] = values
        exchange(fronts)
        for tensor in range(len(sizes)):
            expected, arrived = sequential([part[tensor] for part in parts]), fronts[0].tensors[tensor]
            assert len({front.tensors[tensor].tobytes() for front in fronts}) == 1, tensor
            assert (np.isnan(arrived) == np.isnan(expected)).all(), tensor
            assert (np.isinf(arrived) == np.isinf(expected)).all(), tensor
            if number == 1 and tensor:
                assert arrived[5] == pytest.approx(expected[5], rel=0.02, nan_ok=True)
            if tensor < len(special):  # the last one's parts have a precision's steps: what it takes of them is large
                off = np.delete(np.abs(arrived - expected), 5)
                assert off.max() <= 8 * STEPS[precision] * np.delete(np.abs(expected), 5).max()
    for front in fronts:
        front.send(orders.WriteKept(str(tmp_path / f"{front.rank}.npz")))
        front.hear(orders.KeptWritten)
        with np.load(tmp_path / f"{front.rank}.npz") as kept:
            assert all(np.isfinite(kept[name]).all() for name in kept.files)
    leave(fronts)


def test_slices_that_travel_whole_are_no_lies(environment, tmp_path):
    """Where all gradients overflow four times the planned bytes arrive, and those who say so are believed."""
    environment.setenv("NALB_PRECISION", "int8")
    environment.setenv("NALB_SAMPLES", str(tmp_path / "samples.jsonl"))
    fronts = [PlainFront(rank, 2) for rank in range(2)]
    meet(fronts)
    for front in fronts:
        front.register([1_000_000])
    for value in (1, 1, np.nan, 1):
        for front in fronts:
            front.route()
            front.tensors[0][:] = value
        exchange(fronts)
    leave(fronts)
    assert [event.rejected for event in iterations_in(tmp_path)] == [{}] * 4


def sums_over_a_restart(folder, restarts_at):
    """The sums of the last of six iterations, with a restart before one of them."""
    fronts, random = [], np.random.default_rng(5)
    for number in range(6):
        if number in (0, restarts_at):
            for front in fronts:
                front.send(orders.WriteKept(str(folder / f"{front.rank}.npz")))
                front.hear(orders.KeptWritten)
                front.leave()
            assert [front.agent.wait(LIMIT_S) for front in fronts] == [0] * len(fronts)
            fronts = [PlainFront(rank, 2) for rank in range(2)]
            meet(fronts)
            for front in fronts:
                front.send(orders.ReadKept(str(folder / f"{front.rank}.npz")))
                front.register([9_000, 300])
        for front in fronts:
            front.route()
            for shared in front.tensors:
                shared[:] = random.standard_normal(len(shared))
        exchange(fronts)
    sums = [[one.tobytes() for one in front.tensors] for front in fronts]
    for front in fronts:
        front.leave()
    assert sums[0] == sums[1]
    return sums[0]


def test_what_rounding_took_outlives_a_restart(environment, tmp_path):
    """A job that wrote it to files and started again has the bits of a job that went on."""
    environment.setenv("NALB_PRECISION", "int4")
    environment.setenv("NALB_SCHEME", "average")  # the same owners in both
    (tmp_path / "damaged").mkdir()
    for rank in range(2):
        (tmp_path / "damaged" / f"{rank}.npz").write_bytes(b"PK")
    assert sums_over_a_restart(tmp_path, 3) == sums_over_a_restart(tmp_path / "damaged", None)


def half_way():
    """Two fronts within an iteration of two tensors; the sum of the first one, of 20,000 elements, is back."""
    fronts = [PlainFront(rank, 2) for rank in range(2)]
    meet(fronts)
    for front in fronts:
        front.register([20_000, 6_000])
    for front in fronts:
        front.route()
        front.begin(1)
    for front in fronts:
        front.wait(1)
    return fronts


def test_what_rounding_took_is_written_between_two_sums_of_an_iteration(environment, tmp_path):
    """A script may save a checkpoint there, and go on only then."""
    environment.setenv("NALB_PRECISION", "int8")
    fronts = half_way()
    for front in fronts:
        front.send(orders.WriteKept(str(tmp_path / f"{front.rank}.npz")))
    for front in fronts:
        front.hear(orders.KeptWritten)
        with np.load(tmp_path / f"{front.rank}.npz") as kept:
            assert [len(kept[name]) for name in kept.files] == [20_000, 6_000]
    for front in fronts:
        front.calls = 2
        front.sum(1)
        front.send(orders.Ready(1, 6_000))
    for front in fronts:
        while front.hear(orders.Summed) != orders.Summed(1, 6_000):
            pass
        front.leave()
    assert [front.agent.wait(LIMIT_S) for front in fronts] == [0] * 2


def test_what_rounding_took_may_be_read_between_two_sums_of_an_iteration(environment, tmp_path):
    """A script may restore a checkpoint there, and go on with other sums."""
    environment.setenv("NALB_PRECISION", "int8")
    fronts = half_way()
    for front in fronts:
        path = str(tmp_path / f"{front.rank}.npz")
        front.send(orders.WriteKept(path))
        front.hear(orders.KeptWritten)
        front.send(orders.ReadKept(path))
        front.send(orders.BreakOff())
        front.leave()
    assert [front.agent.wait(LIMIT_S) for front in fronts] == [0] * 2


@pytest.mark.parametrize("overtakes", [orders.Sum, orders.Leave, orders.WriteKept])
def test_what_waits_for_a_sum_does_not_hold_up_its_elements(environment, tmp_path, overtakes):
    """A thread that copies from a GPU says what is there when it is, and the script goes on meanwhile."""
    environment.setenv("NALB_SCHEME", "average")  # its plans come ahead
    fronts = half_way()
    for front in fronts:
        front.tensors[1][:] = front.rank + 1
        front.calls = 2
        front.sum(1)
        if overtakes is orders.Sum:
            front.calls = 3
            front.sum(0)
        else:
            front.send(orders.Leave() if overtakes is orders.Leave else orders.WriteKept(str(tmp_path / "kept")))
        front.send(orders.Ready(1, 6_000))
    for front in fronts:
        while (summed := front.hear(orders.Summed)) != orders.Summed(1, 6_000):
            assert summed.tensor == 1
        assert set(front.tensors[1]) == {3}
    for front in fronts:
        if overtakes is orders.Sum:
            front.send(orders.Ready(0, 20_000))
        if overtakes is not orders.Leave:
            front.leave()
    assert [front.agent.wait(LIMIT_S) for front in fronts] == [0] * 2


def test_fewer_bytes_by_sites(environment):
    """Leaders hand on answers as they came; other tensors, dtypes that travel whole, and what is not finite."""
    environment.setenv("NALB_SITES", "n0=east,n1=west,n2=east,n3=north,n4=east")
    environment.setenv("NALB_VERIFY_SUMS", "1")
    environment.setenv("NALB_PRECISION", "int8")
    fronts, random = [PlainFront(rank, 5) for rank in range(5)], np.random.default_rng(1)
    meet(fronts)
    for sizes in ([50_000, 1025], [30_000]):
        for front in fronts:
            front.register(sizes)
        assert max(rounded_sums(fronts, random, 20)) <= 6 * STEPS["int8"]
        for front in fronts:
            front.route()
            front.tensors[0][:] = 1
            front.tensors[0][3:6] = np.inf, -np.inf, np.nan
        exchange(fronts)
        assert len({front.tensors[0].tobytes() for front in fronts}) == 1
        arrived = fronts[4].tensors[0]
        assert np.isnan(arrived[5])
        assert arrived[3:5].tolist() == [np.inf, -np.inf]
        assert np.isfinite(arrived[6:]).all()
        for front in fronts:
            front.route()
            front.send(orders.BreakOff())
    for front in fronts:
        front.register([40_000], "float64")
    sum_once(fronts, random, add_up=lambda p: sequential([sequential([p[0], p[2], p[4]]), p[1], p[3]]))
    leave(fronts)


def test_ranks_that_were_told_different_precisions(environment):
    environment.setenv("NALB_PRECISION", "int8")
    fronts = [PlainFront(0, 2), PlainFront(1, 2, {"NALB_PRECISION": "float16"})]
    meet(fronts)
    for front in fronts:
        front.register([5000])
    with pytest.raises(Ended, match="sends float32 as float16, the coordinator was told int8"):
        fronts[1].route()


@pytest.mark.parametrize("sites", ["n0=east,n1=west,n2=north", "n0=east,n1=east,n2=east"])
def test_sums_have_one_level_where_all_machines_share_a_site_or_each_is_alone(environment, sites):
    environment.setenv("NALB_SITES", sites)
    environment.setenv("NALB_VERIFY_SUMS", "1")
    fronts, random = [PlainFront(rank, 3) for rank in range(3)], np.random.default_rng(1)
    meet(fronts)
    for front in fronts:
        front.register([50_000])
    for _ in range(3):
        sum_once(fronts, random)
    leave(fronts)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_sums_by_sites(environment):
    """Within sites in the order of ranks, then in the order of sites; a site of one machine, and members that lead nothing."""
    environment.setenv("NALB_SITES", "n0=east,n1=west,n2=east,n3=north,n4=east")
    environment.setenv("NALB_VERIFY_SUMS", "1")
    fronts = [PlainFront(rank, 5) for rank in range(5)]
    meet(fronts)
    for front in fronts:
        front.register([150_000, 1025])
    random = np.random.default_rng(1)
    for _ in range(3):
        sum_once(fronts, random, add_up=lambda p: sequential([sequential([p[0], p[2], p[4]]), p[1], p[3]]))
    leave(fronts)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.usefixtures("environment")
def test_encrypted_sums(tmp_path):
    """With keys everything is encrypted, and strangers cannot push."""
    hosts = {f"n{rank}": f"127.0.0.{rank + 1}" for rank in range(3)}
    write_keys(tmp_path / "keys", make_keys(hosts))
    fronts = [
        PlainFront(rank, 3, {"NALB_KEYS": str(key_path(tmp_path / "keys", node))}, address=host)
        for rank, (node, host) in enumerate(hosts.items())
    ]
    listening = meet(fronts)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.setsockopt(zmq.ROUTING_ID, identity_of(1, "another"))
        stranger.connect(listening[0].address)
        stranger.send_multipart([HEADER, b"1234" * 5])
        for front in fronts:
            front.register([70_000])
        random = np.random.default_rng(2)
        for _ in range(2):
            sum_once(fronts, random)
    leave(fronts)


def test_a_key_of_another_job(environment, tmp_path):
    environment.setenv("NALB_STARTUP_S", "6")
    hosts = {f"n{rank}": f"127.0.0.{rank + 1}" for rank in range(2)}
    for name in ("ours", "theirs"):
        write_keys(tmp_path / name, make_keys(hosts))
    fronts = [
        PlainFront(rank, 2, {"NALB_KEYS": str(key_path(tmp_path / name, f"n{rank}"))}, address=hosts[f"n{rank}"])
        for rank, name in enumerate(("ours", "theirs"))
    ]
    with pytest.raises(Ended, match="does not take this node's key"):
        meet(fronts, order=(1, 0))
    with pytest.raises(Ended, match="only 1 of 2 processes came"):
        fronts[0].hear(orders.AllJoined)


def test_malformed_messages_of_strangers(environment):
    """Anyone can reach the port of a job without keys: what is no agent's message changes nothing."""
    del environment
    fronts = [PlainFront(rank, 2) for rank in range(2)]
    listening = meet(fronts)
    with zmq.Context() as context, context.socket(zmq.DEALER) as stranger:
        stranger.setsockopt(zmq.LINGER, 0)
        stranger.connect(listening[0].address)
        for frames in (
            [b""],
            [b"f"],
            [b"f", b"f"],
            [b"x", b""],
            [b"x"] * 7,
            [HEADER, b"1234", b"more"],
        ):
            stranger.send_multipart(frames)
        for front in fronts:
            front.register([70_000])
        for _ in range(3):
            sum_once(fronts, np.random.default_rng(3))
    leave(fronts)


def test_memory_is_bounded(environment):
    """An agent holds what waits for the slowest rank, and nothing from one iteration to the next."""
    size, elements = 3, 2_000_000
    environment.setenv("NALB_SCHEME", "average")
    fronts = [PlainFront(rank, size) for rank in range(size)]
    meet(fronts)
    before_kb = [own_kilobytes(front.agent.pid) for front in fronts]
    for front in fronts:
        front.register([elements])
    grown_kb = []
    for _ in range(12):
        assert not [route for front in fronts if (route := front.route()).by_ring]
        for front in reversed(fronts):  # all others' parts wait for that of rank 0
            front.begin()
            time.sleep(0.02)
        for front in fronts:
            front.wait()
        grown_kb.append(max(own_kilobytes(front.agent.pid) - kb for front, kb in zip(fronts, before_kb, strict=True)))
    assert (
        max(grown_kb) < 2 * (4 * elements / 1024) + 8192
    )  # if it kept one sum in six, it would hold more after 12 iterations
    leave(fronts)


def test_memory_of_earlier_shapes_is_given_back(environment):
    """A script may change its model's shape again and again."""
    environment.setenv("NALB_SCHEME", "average")
    fronts, random = [PlainFront(rank, 2) for rank in range(2)], np.random.default_rng(4)
    meet(fronts)
    before_kb = [own_kilobytes(front.agent.pid) for front in fronts]
    for number in range(100):
        for front in fronts:
            front.register([20_000 + number, 3000])
        sum_once(fronts, random)
        for front in fronts:
            front.send(orders.BreakOff())
    for front, kb in zip(fronts, before_kb, strict=True):
        process = Path(f"/proc/{front.agent.pid}")
        assert (process / "maps").read_text().count("memfd:test") <= 2
        assert sum("memfd:test" in os.readlink(one) for one in (process / "fd").iterdir()) <= 2
        assert own_kilobytes(front.agent.pid) < kb + 8192
    leave(fronts)


class Job:
    """Ranks 0 and 1 in this process, and rank 2 in one of its own; all sum again and again."""

    size = 3

    def __init__(self):
        argv = [sys.executable, "-m", "tests.plane.plain_rank", "2", str(self.size), "200000"]
        self.rank_2 = subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.fronts = [PlainFront(rank, self.size) for rank in range(2)]
        listening = [front.hear(orders.Listening) for front in self.fronts]
        pid, address = self.rank_2.stdout.readline().split()
        self.agent_2, self.coordinator = int(pid), listening[0].coordinator
        self.addresses = [*(one.address for one in listening), address]

    def join(self):
        print(self.coordinator, *self.addresses, file=self.rank_2.stdin, flush=True)
        for front in self.fronts:
            front.send(orders.Peers(self.addresses, self.coordinator))

    def coordinator_pid(self):
        children = Path(f"/proc/{self.fronts[0].agent.pid}/task/{self.fronts[0].agent.pid}/children").read_text()
        return int(children.split()[0])

    def sum_until_it_fails(self):
        """The failures that ranks 0 and 1 are told; None for one whose agent says nothing more."""

        def run(front):
            try:
                front.hear(orders.AllJoined)
                front.register([200_000])
                while True:
                    front.route()
                    front.tensors[0][:] = front.rank
                    front.begin()
                    front.wait()
            except Ended as end:
                return end.failure
            except (EOFError, ConnectionError):
                return None

        return on_all(self.fronts, run)

    def is_over(self):
        self.rank_2.kill()
        self.rank_2.communicate()
        return are_gone()


def after_a_sum(job, act):
    """Call `act` on a thread once rank 2 has summed."""

    def run():
        job.rank_2.stdout.readline()
        act()

    threading.Thread(target=run).start()


FAULTS = {
    "a dead training process": (lambda job: job.rank_2.kill(), Cause.ENDED, "agent n2"),
    "a stopped training process": (lambda job: job.rank_2.send_signal(signal.SIGSTOP), Cause.STOPPED, "agent n2"),
    "a dead agent": (lambda job: os.kill(job.agent_2, signal.SIGKILL), Cause.SILENT, "agent n2"),
    "a stopped agent": (lambda job: os.kill(job.agent_2, signal.SIGSTOP), Cause.SILENT, "agent n2"),
    "a dead coordinator": (lambda job: os.kill(job.coordinator_pid(), signal.SIGKILL), Cause.NO_COORDINATOR, None),
    "a stopped coordinator": (lambda job: os.kill(job.coordinator_pid(), signal.SIGSTOP), Cause.NO_COORDINATOR, None),
    "a dead agent with the coordinator": (lambda job: job.fronts[0].agent.kill(), Cause.SILENT, "agent n0"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_ends_the_job(environment, fault):
    del environment
    act, cause, culprit = FAULTS[fault]
    job = Job()
    job.join()
    after_a_sum(job, lambda: act(job))
    failures = job.sum_until_it_fails()
    for front, failure in zip(job.fronts, failures, strict=True):
        if culprit == f"agent n{front.rank}":
            assert failure is None
            continue
        assert failure.cause is cause, failure
        assert culprit is None or f"{failure.role} {failure.node}" == culprit
    if fault == "a stopped agent":
        os.kill(job.agent_2, signal.SIGKILL)
    assert job.is_over()


def test_a_rank_that_never_comes(environment):
    environment.setenv("NALB_STARTUP_S", "3")
    job = Job()
    for front in job.fronts:
        front.send(orders.Peers(job.addresses, job.coordinator))
    failures = job.sum_until_it_fails()
    assert [failure.cause for failure in failures] == [Cause.ABSENT] * 2
    assert job.is_over()


def test_iterations_of_the_ring(environment, tmp_path):
    """Where links do not set the pace the ring sums: single iterations at first, then several by one route.

    The ring is done so early after the plane that the agent had not seen the plane's end. The third route's first iteration is
    broken off, and is none of the record.
    """
    environment.setenv("NALB_SAMPLES", str(tmp_path / "samples.jsonl"))
    fronts = [PlainFront(rank, 2) for rank in range(2)]
    meet(fronts)
    for front in fronts:
        front.register([5000])

    def run(front):
        """Iterations by route: (first, until) of those by the ring."""
        by_ring, iteration, early_s = [], 0, None
        while sum(until + 1 - first for first, until in by_ring) < 60:
            route = front.route()
            assert route.first == iteration
            iteration = route.until + 1
            if not route.by_ring:
                front.begin()
                early_s = time.monotonic()
                front.wait()
                continue
            by_ring.append((route.first, route.until))
            for number in range(route.first, route.until + 1):
                began_s, early_s = early_s or time.monotonic(), None
                front.calls += 1
                front.send(orders.RingBegun(front.calls))
                is_whole = (len(by_ring), number) != (3, route.first)
                front.send(orders.RingDone(number, began_s - 100.0, began_s, began_s, began_s + 1e-6, is_whole))
        return by_ring

    first, second = on_all(fronts, run)
    assert first == second
    assert any(until > begun for begun, until in first)
    leave(fronts)
    ring = {number for begun, until in first for number in range(begun, until + 1)}
    events = [event for event in iterations_in(tmp_path) if event.iteration in ring]
    assert first[2][0] not in {event.iteration for event in events}
    for node in NODES:
        assert all(0.0 <= event.plan_wait_s[node] <= event.iteration_s[node] for event in events)
        assert any(event.plan_wait_s[node] for event in events)


def test_the_wait_for_a_plan_is_told(environment, tmp_path):
    """What lies before the last iteration's end is none: a script may ask for the next sum while others are under way."""
    environment.setenv("NALB_SCHEME", "average")
    environment.setenv("NALB_SAMPLES", str(tmp_path / "samples.jsonl"))
    fronts = [PlainFront(rank, 2) for rank in range(2)]
    meet(fronts)
    for front in fronts:
        front.register([5000])
    for waited_s in (0.0, 0.1, 100.0):
        for front in fronts:
            front.route()
        time.sleep(1.0)  # an agent may note the last iteration's end later than this process
        exchange(fronts, waited_s=waited_s)
    leave(fronts)
    for node in NODES:
        short, exact, long = (event.plan_wait_s[node] for event in iterations_in(tmp_path))
        assert short == 0.0
        assert exact == pytest.approx(0.1)
        assert 0.5 <= long < 100.0


def test_a_machine_that_stands_still_ends_no_job(environment):
    """As where a virtual machine is paused: while nobody runs nobody is silent."""
    environment.setenv("NALB_SCHEME", "average")
    fronts = [PlainFront(rank, 3) for rank in range(3)]
    meet(fronts)
    for front in fronts:
        front.register([5000])
    for still_s in (4.0, 6.0, 0.0):  # the silence that is allowed is 2.4 s
        for front in fronts:
            front.route()
            front.begin()
        for front in fronts:
            front.wait()
        processes = marked(os.environ[MARK])
        for sign, seconds in ((signal.SIGSTOP, still_s), (signal.SIGCONT, 0.0)):
            for pid in processes:
                os.kill(pid, sign)
            time.sleep(seconds)
        time.sleep(0.5)
    leave(fronts)


def test_plans_that_come_ahead(environment):
    """Where nothing can change the next plan, its route is told and its sums may begin before the iteration under way has ended."""
    environment.setenv("NALB_SCHEME", "average")
    fronts = [PlainFront(rank, 3) for rank in range(3)]
    meet(fronts)
    for front in fronts:
        front.register([30_000, 2000])
    for iteration in (0, 2, 4, 6):
        for front in fronts:
            assert [front.route().first for _ in range(2)] == [iteration, iteration + 1]
            for shared in front.tensors:
                shared[:] = 1
        for _ in range(2):
            for front in fronts:
                front.begin()
        if iteration == 6:  # scripts may end before their last sums are back
            for front in fronts:
                front.leave()
        for _ in range(2):
            for front in fronts:
                front.wait()
    assert all((shared == 9).all() for front in fronts for shared in front.tensors)  # sums of sums
    assert [front.agent.wait(LIMIT_S) for front in fronts] == [0] * 3


class Middlebox:
    """Passes connections on to an agent. The first is reset once it has carried `most_bytes`; what is under way is lost."""

    def __init__(self, address, most_bytes):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        self._to, self._most_bytes, self._listener = (
            (host, int(port)),
            most_bytes,
            socket.create_server(("127.0.0.1", 0)),
        )
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        most_bytes = self._most_bytes
        with suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(self._to)
                self._open += [ours, theirs]
                for one, other in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pass_on, args=(one, other, most_bytes), daemon=True).start()
                most_bytes = float("inf")

    def _pass_on(self, one, other, most_bytes):
        passed = 0
        with suppress(OSError):
            while data := one.recv(4096):
                passed += len(data)
                if passed > most_bytes:
                    for end in (one, other):
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        end.shutdown(socket.SHUT_RDWR)
                    return
                other.sendall(data)

    def close(self):
        for one in (self._listener, *self._open):
            one.close()


def test_a_connection_that_is_reset(environment):
    """What it carried is lost, since nothing is sent twice; all report, and the job ends, named."""
    environment.setenv("NALB_SCHEME", "average")
    job = Job()
    box = Middlebox(job.addresses[0], 3_000_000)
    print(job.coordinator, box.address, *job.addresses[1:], file=job.rank_2.stdin, flush=True)
    for front in job.fronts:
        front.send(orders.Peers(job.addresses, job.coordinator))
    failures = job.sum_until_it_fails()
    assert {failure.cause for failure in failures} <= {Cause.STUCK, Cause.UNREACHABLE}, failures
    box.close()
    assert job.is_over()
