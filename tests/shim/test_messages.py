"""The shim between a caller and a real libzmq: forecasts, samples, hostile frames, many sockets, many threads."""

from collections import Counter

import pytest

from tests.shim.conftest import Build

pytestmark = pytest.mark.jobs

EXCHANGE_BYTES = 40 + 2 * 100_000  # meta and two data frames
RING_CELLS = 65_536  # ring.h


def test_exchange_is_announced_timed_and_unchanged(build: Build) -> None:
    seen = build.run("exchange")
    control = [line for line in seen.lines if line.count(":") == 2]
    data = [line for line in seen.lines if line.count(":") == 4]
    assert Counter(line.split()[1] for line in data) == {"3:ps9": 5, "4:ps11": 5, "4:ps13": 5}
    assert all([frame.split(":")[0] for frame in line.split()[2:]] == ["40", "100000", "100000"] for line in data)
    assert len(control) == 15
    assert len(control) + len(data) == len(seen.lines)
    assert not any("NALB" in line for line in seen.lines)

    received = seen.samples
    assert Counter(s.peer for s in received) == {9: 5, 11: 5, 13: 5}
    assert all(s.size_bytes == EXCHANGE_BYTES and 0 < s.start_ns <= s.end_ns for s in received)
    assert seen.self_id == 13  # the last identity set
    assert "libzmq" in seen.transport
    assert seen.counters == {
        "forecasts_sent": 15,
        "forecasts_swallowed": 15,
        "forecast_failures": 0,
        "messages_sent": 15,
        "messages_received": 15,
        "bytes_sent": 15 * EXCHANGE_BYTES,
        "bytes_received": 15 * EXCHANGE_BYTES,
        "hostile_frames": 0,
        "foreign_messages": 0,
        "untracked_sockets": 0,
        "handshakes_allowed": 0,
        "handshakes_refused": 0,
        "drops": 0,
    }


def test_without_forecasts_messages_are_counted_but_not_timed(build: Build) -> None:
    seen = build.run("silent")
    assert seen.counters["forecasts_sent"] == seen.counters["forecasts_swallowed"] == 0
    assert seen.counters["messages_sent"] == seen.counters["messages_received"] == 15
    assert not seen.samples


def test_many_peers(build: Build) -> None:
    seen = build.run("many_peers")
    received = {s.peer: s for s in seen.samples}
    assert {peer: s.size_bytes for peer, s in received.items()} == {8 + i: 1040 + i for i in range(200)}
    assert all(0 < s.start_ns <= s.end_ns for s in received.values())


def test_a_full_ring_drops_and_counts(build: Build) -> None:
    seen = build.run("overflow")
    assert len(seen.samples) == RING_CELLS
    assert seen.counters["drops"] == 70_000 - RING_CELLS
    assert seen.counters["messages_received"] == 70_000


def test_hostile_frames_are_counted_and_harm_nothing(build: Build) -> None:
    seen = build.run("hostile")
    assert seen.lines[:7] == [
        "message 3:ps9 4:NALB",
        "message 3:ps9 7:NALBFC0",
        "message 3:ps9 0:",
        "message 3:ps9 8:NALBFC01 5:extra",
        "message 3:ps9 0: 0:",
        "message 3:ps9 40:............",
        "message 3:ps9 40:............ 10:..........",
    ]
    strangers = seen.lines[7:]
    names = ["3:pz9", "2:ps", "22:ps9999999999", "6:ps4096", "4:ps-1", "255:pppppppppppp"]
    assert [line.split()[1] for line in strangers] == names
    assert all(line.split()[2].startswith("40:") for line in strangers)
    assert not seen.samples  # no known peer announced one with data
    assert seen.counters["forecasts_swallowed"] == 1 + 6
    assert seen.counters["hostile_frames"] == 7 + 2 * 6  # per stranger: the forecast's identity and the message's


def test_threads_sending_at_once(build: Build) -> None:
    seen = build.run("threads")
    assert seen.counters["forecasts_sent"] == seen.counters["forecasts_swallowed"] == 4000
    received = seen.samples
    assert Counter(s.peer for s in received) == dict.fromkeys(range(9, 17), 500)
    assert all(s.size_bytes == 104 and s.start_ns for s in received)


def test_sockets_of_one_thread_do_not_mix(build: Build) -> None:
    seen = build.run("interleaved")
    received = Counter((s.peer, s.size_bytes) for s in seen.samples)
    assert received == {(9, 150): 3, (11, 180): 3}
    assert seen.counters["forecasts_sent"] == seen.counters["forecasts_swallowed"] == 6


def test_more_sockets_in_turn_than_the_table_holds(build: Build) -> None:
    seen = build.run("churn")
    assert seen.counters["untracked_sockets"] == 0
    assert seen.counters["messages_sent"] == 20
    assert seen.counters["messages_received"] == 0  # each receiver was closed before the body


def test_the_end_of_a_context_reaches_the_caller(build: Build) -> None:
    seen = build.run("ends")
    assert seen.lines == ["receive -1 ETERM", "send -1 ETERM"]
    assert seen.counters["forecast_failures"] == 1
    assert seen.counters["messages_sent"] == 0


def test_idle_connections_are_kept_alive_at_both_ends(build: Build) -> None:
    """On after 60 s, six times every 10 s."""
    assert build.run("kept_alive").lines == ["alive 1 60 10 6"] * 2


def test_freed_memory_is_kept_for_the_next_message_unless_the_user_decides(plain: Build) -> None:
    assert plain.run("kept_memory").lines == ["brought few"]
    assert plain.run("kept_memory", MALLOC_TRIM_THRESHOLD_="131072").lines == ["brought many"]
