"""Traces: what files say, when links change, and that a real link follows."""

import itertools
import socket
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from nalb.cli.main import run
from nalb.errors import InputError
from nalb.events import DelayChange, NetworkChange, NodeChange
from nalb.launch.network import Changes
from nalb.reporting.run_file import read_events
from nalb.units import bytes_per_s_to_mbps
from netem import namespaces, verify, verify_delay
from netem.change_clock import describe
from netem.emulation import Emulation, network_up
from netem.network import Network
from netem.network_file import CARRIED_DIRECTORY, find_network, load_network, parse_network
from netem.schedule import Numbers, timed_changes
from netem.trace_families import FAMILIES, trace_text
from netem.traces import FRAME_BYTES, Trace, TraceStep, parse_trace

SO_SNDBUFFORCE = 32
LIMITS = (0.01, 34_000.0)
PLAIN = "# a comment\n0 40\n1.5, 20\n\n4 10 # the end\n"


def parsed(text: str, is_looped: bool = True) -> Trace:
    return parse_trace(text, "t", LIMITS, 700, is_looped)


def test_a_line_holds_until_the_next_and_the_last_ends_the_round():
    looped, held = parsed(PLAIN), parsed(PLAIN, False)
    at_s = (0, 1.4, 1.5, 3.9, 4, 5.5, 8)
    assert [looped.at(each).mbps for each in at_s] == [40, 40, 20, 20, 40, 20, 40]
    assert [held.at(each).mbps for each in at_s] == [40, 40, 20, 20, 10, 10, 10]
    assert list(itertools.islice(looped.moments_s(), 4)) == [1.5, 4, 5.5, 8]
    assert list(held.moments_s()) == [1.5, 4]


def test_each_moment_finds_the_step_that_begins_there():
    trace = parsed("0 1\n0.1 2\n0.3 3\n0.7 4\n")
    for at_s in itertools.islice(trace.moments_s(), 3000):
        assert trace.at(at_s) != trace.at(at_s - 0.01)


def test_delays_stand_in_a_third_column():
    assert parsed("0 5 20\n1 5 30\n2 5 30\n").steps == (TraceStep(0, 5, 20), TraceStep(1, 5, 30))


def test_mahimahis_deliveries_become_rates():
    """One packet each millisecond for 2 s, then none for 1 s, then two a millisecond for 0.7 s."""
    deliveries = [*range(1, 2001), *(at for at in range(3001, 3701) for _ in range(2))]
    trace = parsed("\n".join(map(str, deliveries)))
    each_ms = FRAME_BYTES * 8 / 1000  # Mbit/s
    assert trace.length_s == 3.7
    assert trace.at(0.3).mbps == pytest.approx(each_ms, rel=0.01)
    assert trace.at(2.7).mbps == LIMITS[0]
    assert trace.at(3.3).mbps == pytest.approx(2 * each_ms, rel=0.01)
    assert trace.at(3.71) == trace.at(0), "it wraps around"
    carried = sum(
        trace.at(at_s).mbps * 0.001 for at_s in (step / 1000 for step in range(3700)) if trace.at(at_s).mbps > 1
    )
    assert carried == pytest.approx(len(deliveries) * FRAME_BYTES * 8 / 1e6, rel=1e-3)


def deliveries(packets: int, in_ms: int, rounds: int) -> str:
    """So many packets in so many milliseconds, evenly, and again."""
    return "\n".join(str(-(-packet * in_ms // packets)) for packet in range(1, packets * rounds + 1))


@pytest.mark.parametrize("is_looped", [True, False])
@pytest.mark.parametrize(
    ("packets", "in_ms", "rounds"),
    [(1, 1, 1), (1, 1, 749), (1, 1, 900), (5, 6, 500), (7, 3, 1000), (1, 40, 77), (1, 900, 2)],
)
def test_deliveries_at_a_constant_rate_change_nothing(packets: int, in_ms: int, rounds: int, is_looped: bool):
    """However short the round is, and wherever pieces have their borders."""
    trace = parsed(deliveries(packets, in_ms, rounds), is_looped)
    assert list(itertools.islice(trace.moments_s(), 3)) == []
    assert trace.at(99).mbps == pytest.approx(max(packets / in_ms * FRAME_BYTES * 8 / 1000, LIMITS[0]), rel=1e-6)


@pytest.mark.parametrize("length_ms", [1, 100, 749])
def test_a_round_shorter_than_what_is_counted_is_one_rate(length_ms: int):
    """Whatever it does within: ten packets at once, then none."""
    trace = parsed("1\n" * 10 + f"{length_ms}\n")
    assert trace.is_constant
    assert trace.at(5.0).mbps == pytest.approx(11 * FRAME_BYTES * 8 / 1000 / length_ms)


@pytest.mark.parametrize("length_ms", range(750, 2600, 50))
def test_deliveries_change_a_link_four_times_a_second_at_most(length_ms: int):
    trace = parsed("\n".join(str(at) for at in range(1, length_ms + 1) for _ in range(1 + at // 250 % 3)))
    moments_s = list(itertools.islice(trace.moments_s(), 40))
    assert min(after - before for before, after in itertools.pairwise([0.0, *moments_s])) >= 0.25 - 1e-9
    carried = sum(trace.at(step / 1000).mbps * 0.001 for step in range(length_ms))
    assert carried == pytest.approx(
        sum(1 + at // 250 % 3 for at in range(1, length_ms + 1)) * FRAME_BYTES * 8 / 1e6, rel=1e-3
    )


@pytest.mark.parametrize(
    ("text", "moments_s"),
    [
        ("0 40\n1 40\n", []),
        ("0 40\n1 20\n", []),  # the last line ends the round
        ("0 40\n1 20\n2 40\n3 9\n", [1, 2, 4, 5, 7, 8]),  # a round ends as the next begins
        ("0 40 10\n1 40 20\n2 9 9\n", [1, 2, 3, 4, 5, 6]),
    ],
)
def test_a_change_changes_something(text: str, moments_s: list[float]):
    assert list(itertools.islice(parsed(text).moments_s(), 6)) == moments_s


def test_byte_order_marks_are_no_part_of_a_network_or_trace(tmp_path: Path):
    (tmp_path / "a.trace").write_text("\ufeff" + PLAIN)
    (tmp_path / "net.toml").write_text("\ufeff" + BODY.format(name="marked", more=""))
    network = load_network(tmp_path / "net.toml")
    assert network.name == "marked"
    assert network.nodes[0].up_trace == parsed(PLAIN)


def test_a_network_whose_traces_are_constant_is_static(tmp_path: Path):
    network = a_network(tmp_path, "1\n")
    assert network.is_static
    assert list(itertools.islice(timed_changes(network), 3)) == []
    assert Numbers.at(network, 7).rates["a"] == (pytest.approx(12.112), 100)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "t: is empty"),
        ("0 1 2 3\n", "line 1 has 4 columns"),
        ("0 1\n1\n", "line 2 has 1 columns"),
        ("0 1\n1 x\n", "line 2 is '1 x': give numbers"),
        (f"0 1\n1 {'9' * 5000}\n", r"line 2 is '1 9{,20}\.\.\.9{,20}': give numbers"),
        ("0 1\n1 nan\n", "line 2 is '1 nan': give numbers"),
        ("1 1\n2 1\n", "line 1 is of 1 s: begin with 0"),
        ("0 1\n0 2\n", "line 2 is of 0 s: begin with 0 and give times that rise"),
        ("0 1\n1 0\n", "line 2 says 0 Mbit/s: give 0.01 to 34000"),
        ("0 1 701\n1 1 5\n", "line 1 says a delay of 701 ms: give 0.1 to 700"),
        ("0 1\n", "line 1 is the only one"),
        ("5\n4\n", "line 2 is 4: give whole milliseconds"),
        ("1.5\n", "line 1 is 1.5: give whole milliseconds"),
        ("0\n0\n", "line 2 is 0: the last packet's"),
        ("1\n1e300\n", r"line 2 is 1e\+300: give milliseconds from 0 to 1e\+09"),
        ("1700000000000\n1700000000001\n", r"line 1 is 1.7e\+12: give milliseconds from 0"),
        ("0 1\n1700000000 1\n", r"line 2 is of 1.7e\+09 s: give seconds from 0 to 1e\+06"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(text: str, message: str):
    with pytest.raises(InputError, match=message):
        parsed(text)


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_seeds_draw_equal_traces(family: str, capsys: pytest.CaptureFixture[str]):
    text = trace_text(family, 5, 40, 10, 100)
    assert text != trace_text(family, 6, 40, 10, 100)
    trace = parsed(text)
    assert trace.length_s == 40
    assert all(10 <= step.mbps <= 100 for step in trace.steps)
    assert max(step.mbps for step in trace.steps) > 1.5 * min(step.mbps for step in trace.steps)
    command = text.splitlines()[0].removeprefix("# nalb ").split()
    assert run(command) == 0
    assert capsys.readouterr().out == text


@pytest.mark.parametrize("seconds", [10.005, 10.01, 12345.505])
def test_a_drawn_trace_may_have_any_length(seconds: float):
    assert parsed(trace_text("mobile", 1, seconds, 10, 100)).length_s == float(f"{seconds:g}")


def test_carried_traces_are_those_of_their_commands():
    paths = sorted(CARRIED_DIRECTORY.glob("*.trace"))
    assert len(paths) == 2
    for path in paths:
        words = path.read_text().splitlines()[0].split()
        given = dict(zip(words[4::2], words[5::2], strict=True))
        numbers = (int(given["--seed"]), *(float(given[f"--{name}"]) for name in ("seconds", "low", "high")))
        assert path.read_text() == trace_text(given["--family"], *numbers)
    network = load_network(find_network("wan4-traces"))
    assert [len([one for one in access.traces if one]) for access in network.traced] == [2, 2]


LINK_OF_A = '[[links]]\nsrc = "a"\ndst = "b"\nmbps = 5\ndelay_ms = 2\n'
SITE_OF_A = 'site = "s"\n[[sites]]\nname = "s"\nup_mbps = 9\ndown_mbps = 9\ndelay_ms = 695\n'
BODY = """
name = "{name}"
[defaults]
up_mbps = 100
down_mbps = 100
[[nodes]]
name = "a"
up_trace = "a.trace"
delay_ms = 3
{more}
[[nodes]]
name = "b"
"""


def a_network(folder: Path, trace: str, more: str = "", name: str = "traced") -> Network:
    (folder / "a.trace").write_text(trace)
    return parse_network(BODY.format(name=name, more=more), str(folder / "network.toml"))


def test_a_network_follows_its_traces(tmp_path: Path):
    network = a_network(tmp_path, "0 40 10\n2 20 15\n3 1 1\n")
    assert network.links_change
    now = [Numbers.at(network, at_s) for at_s in (0, 2.5, 3)]
    assert [each.rates["a"] for each in now] == [(40, 100), (20, 100), (40, 100)]
    assert [each.delays["a"] for each in now] == [(10, 3), (15, 3), (10, 3)]
    changes = list(itertools.islice(timed_changes(network), 3))
    assert [(change.at_s, change.node_rates, change.delays) for change in changes] == [
        (2, {"a": (20, 100)}, {"a": (15, 3)}),
        (3, {"a": (40, 100)}, {"a": (10, 3)}),
        (5, {"a": (20, 100)}, {"a": (15, 3)}),
    ]
    held = a_network(tmp_path, "0 40\n2 20\n3 1\n", 'trace_end = "hold"')
    assert [change.at_s for change in timed_changes(held)] == [2, 3]


def test_changes_say_the_delays_of_traces(tmp_path: Path):
    network = a_network(tmp_path, "0 40 10\n2 20 15\n3 1 1\n")
    told = describe(next(timed_changes(network)))
    Changes(network, tmp_path).note_changed(2.0, told)
    (event,) = read_events(tmp_path)
    assert event.change == NetworkChange(
        at_s=2, nodes={"a": NodeChange(20, 100)}, links=[], delays={"a": DelayChange(15, 3)}
    )


def test_defaults_may_name_traces_that_nodes_read_for_themselves(tmp_path: Path):
    text = 'name = "n"\n[defaults]\nup_trace = "a.trace"\ndown_mbps = 9\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n'
    (tmp_path / "a.trace").write_text(PLAIN)
    source = str(tmp_path / "network.toml")
    first, second = parse_network(text + 'trace_end = "hold"\n', source).nodes
    assert (first.up_trace, second.up_trace) == (parsed(PLAIN), parsed(PLAIN, False))
    assert (first.up_mbps, first.down_mbps) == (None, 9)
    with pytest.raises(InputError, match=r"defaults.up_trace is 5: give the path of a trace file"):
        parse_network(text.replace('"a.trace"', "5"), source)
    with pytest.raises(InputError, match=r"network.toml: nodes.0..up_trace: .*b.trace: cannot be read \(No such file"):
        parse_network(text.replace("a.trace", "b.trace"), source)


def test_verify_knows_the_delays_of_traces(tmp_path: Path):
    """So it measures these links by datagrams."""
    network = a_network(tmp_path, "0 40 10\n2 20 1\n3 1 1\n", LINK_OF_A)
    flows = {flow.label: flow for batch in verify.flows_of(Emulation(network)) for flow in batch}
    delays_ms = {label: flow.impairment and flow.impairment.delay_ms for label, flow in flows.items()}
    assert delays_ms == {"a up": 10, "b up": None, "a down": 3, "b down": None, "a -> b": 12}


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("up_mbps = 5", r"nodes\[0\].up_mbps is given beside up_trace"),
        ('down_trace = "none.trace"', "none.trace: cannot be read"),
        ('down_trace = "/dev/zero"', "/dev/zero: is no regular file: give a trace file"),
        ('down_trace = "\\u0000"', r"cannot be read \(embedded null byte\): give a trace file"),
        ("down_trace = 5", r"nodes\[0\].down_trace is 5: give the path"),
        (SITE_OF_A, r"nodes\[0\].delay_ms, or that of a trace, .* those of site 's': give at most 700 ms together"),
        ('trace_end = "stop"', r"nodes\[0\].trace_end is 'stop': give 'loop' or 'hold'"),
        ("jitter_ms = 2", r"jitter_ms is 2 beside a trace's delays of 1 to 10 ms"),
        ("[[changes]]\nat_s = 1\nnode='a'\nup_mbps = 5", r"changes\[0\].up_mbps changes a rate that follows a trace"),
        ("[random]\nseed=1\nevery_s=1\nlow_mbps=1\nhigh_mbps=2", "although .random. draws it"),
    ],
)
def test_a_rate_is_given_once(tmp_path: Path, more: str, message: str):
    with pytest.raises(InputError, match=message):
        a_network(tmp_path, "0 40 10\n2 20 1\n3 1 1\n", more)


@pytest.mark.root
def test_a_link_follows_its_trace(tmp_path: Path, name: str):
    """Over each second within 5 %. The link's queue is long and always full, and the kernel says when packets come."""
    rates_mbps, seconds = (8, 3, 12), 6.0
    trace = "0 8 10\n2 3 30\n4 12 20\n6 12 20\n"
    network = a_network(tmp_path, trace, 'trace_end = "hold"\nqueue_ms = 3000', name)
    with network_up(network) as emulation:
        for _ in range(3):  # a busy machine is no wrong link
            changed_s: list[float] = []

            def on_change(at_s: float, _: object, changed_s: list[float] = changed_s) -> None:
                changed_s.append(at_s)

            with arriving(emulation, seconds) as stamps_s, emulation.start_changes(on_change):
                begin_s = time.time()
                time.sleep(seconds + 0.5)
            measured = []
            for at_s, mbps in zip([0.0, *changed_s], rates_mbps, strict=False):
                come = sum(0.8 <= stamp_s - begin_s - at_s < 1.8 for stamp_s in stamps_s)
                measured.append(bytes_per_s_to_mbps(come * FRAME_BYTES) / mbps)
            if len(measured) == 3 and all(0.95 <= part <= 1.05 for part in measured):
                break
            emulation.reset_rates()
        else:
            pytest.fail(f"of its rates the link carried {measured}")
        emulation.set_rates(delays={"a": (30, 3)})
        trip = verify_delay.round_trip(verify_delay.ends_of(emulation)[0])
        assert trip.configured == 33
        assert trip.passed, trip


@contextmanager
def arriving(emulation: Emulation, seconds: float) -> Iterator[list[float]]:
    """Full packets from a to b, as many as pass; at the end when each has come."""
    stamps_s: list[float] = []
    with (
        namespaces.inside(emulation.namespace("b"), lambda: socket.socket(type=socket.SOCK_DGRAM)) as receiver,
        namespaces.inside(emulation.namespace("a"), lambda: socket.socket(type=socket.SOCK_DGRAM)) as sender,
    ):
        receiver.bind((emulation.address("b"), 0))
        receiver.setsockopt(socket.SOL_SOCKET, verify_delay.SO_RCVBUFFORCE, 1 << 26)
        receiver.setsockopt(socket.SOL_SOCKET, verify_delay.SO_TIMESTAMPNS, 1)
        sender.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 1 << 20)  # what waits in the link's queue: 0.4 s and more
        sender.connect(receiver.getsockname())
        end_s = time.monotonic() + seconds + 1

        def send() -> None:
            while time.monotonic() < end_s:
                sender.send(bytes(FRAME_BYTES - 42))

        sending = threading.Thread(target=send)
        sending.start()
        yield stamps_s
        sending.join()
        receiver.settimeout(2)
        with suppress(TimeoutError):
            while True:
                _, ((_, _, stamp),), _, _ = receiver.recvmsg(2000, 100)
                stamp_s, rest_ns = struct.unpack("qq", stamp)
                stamps_s.append(stamp_s + rest_ns / 1e9)
