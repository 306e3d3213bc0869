"""The clock that applies timed changes, with fakes for the network."""

import threading

import pytest

from netem.change_clock import ChangeClock
from tests.netem.conftest import SITE_OF_B, TWO_NODES, network_of

DEADLINE_S = 10
NETWORK = network_of(
    "net",
    TWO_NODES
    + '[[changes]]\nat_s = 0.01\nnode = "a"\nup_mbps = 1\n'
    + '[[changes]]\nat_s = 0.02\nnode = "a"\nup_mbps = 2\n',
)


def wait(event: threading.Event) -> None:
    assert event.wait(DEADLINE_S)


def changes_at(*times_s: float) -> tuple[list, list]:
    """What a clock calls and tells of NETWORK's changes when time stands still at one of these moments after the other."""
    calls, seen, made, now_s = [], [], threading.Semaphore(0), [0.0]

    def on_change(elapsed_s, description):
        seen.append((elapsed_s, description))
        made.release()

    def set_rates(rates, caps, _delays):
        calls.append((rates, caps))

    with ChangeClock(NETWORK, set_rates, on_change, now_s=lambda: now_s[0]):
        for at_s in times_s:
            now_s[0] = at_s
            assert made.acquire(timeout=DEADLINE_S)
    return calls, seen


def test_changes_come_in_order_after_their_time():
    calls, seen = changes_at(0.01, 0.02)
    assert calls == [({"a": (1, 80)}, {}), ({"a": (2, 80)}, {})]
    assert [description["at_s"] for _, description in seen] == [0.01, 0.02]
    assert all(elapsed_s >= description["at_s"] for elapsed_s, description in seen)
    assert seen[0][1]["nodes"] == {"a": {"up_mbps": 1, "down_mbps": 80}}


def test_changes_that_are_overdue_together_are_made_as_one(caplog: pytest.LogCaptureFixture):
    calls, seen = changes_at(0.3)
    assert calls == [({"a": (2, 80)}, {})]
    assert [description["at_s"] for _, description in seen] == [0.02]
    assert not caplog.messages
    changes_at(3)
    assert caplog.messages == [
        "network net: a change came 3.0 s late: the machine is busy, and makes changes together that are due"
    ]


def test_changes_of_sites_are_applied_and_described():
    body = TWO_NODES + SITE_OF_B + '[[changes]]\nat_s = 0.01\nsite = "s"\nup_mbps = 1\n'
    calls, seen, made = [], [], threading.Event()

    def on_change(_elapsed_s, description):
        seen.append(description)
        made.set()

    with ChangeClock(network_of("net", body), lambda rates, caps, _: calls.append((rates, caps)), on_change):
        wait(made)
    assert calls == [({"s": (1, 30)}, {})]
    assert seen == [{"at_s": 0.01, "nodes": {}, "links": [], "sites": {"s": {"up_mbps": 1, "down_mbps": 30}}}]


def test_cpu_changes_keep_the_same_clock_and_are_described():
    body = '[[cpu_changes]]\nat_s = 0.01\nnode = "a"\ncpu_quota = 0.3\n'
    rates, quotas, seen, made = [], [], [], threading.Event()

    def on_change(_elapsed_s, description):
        seen.append(description)
        made.set()

    network = network_of("net", TWO_NODES + body)
    with ChangeClock(network, lambda *change: rates.append(change), on_change, set_quotas=quotas.append):
        wait(made)
    assert quotas == [{"a": 0.3}]
    assert rates == [], "a change of the CPU leaves the links alone"
    assert [description["cpu_quotas"] for description in seen] == [{"a": 0.3}]


def test_an_error_in_the_thread_is_raised_at_the_end():
    tried = threading.Event()

    def refuse(_rates, _caps, _delays):
        tried.set()
        raise OSError("no such qdisc")

    def run():
        with ChangeClock(NETWORK, refuse, lambda *_: None):
            wait(tried)

    with pytest.raises(OSError, match="no such qdisc"):
        run()


def test_stop_ends_a_clock_that_waits():
    late = network_of("net", TWO_NODES + '[[changes]]\nat_s = 1e7\nnode = "a"\nup_mbps = 1\n')
    clock = ChangeClock(late, lambda *_: None, lambda *_: None)
    clock.stop()
    clock.stop()
    assert "change clock" not in {thread.name for thread in threading.enumerate()}


def test_a_network_without_changes_needs_no_waiting():
    with ChangeClock(network_of("net", TWO_NODES), lambda *_: None, lambda *_: None) as clock:
        for thread in threading.enumerate():
            if thread.name == "change clock":
                thread.join(DEADLINE_S)
        clock.check()
