"""The launcher's relay of a coordinator on another machine, whose clock began at another moment."""

import time
from pathlib import Path

import pytest

from nalb.errors import JobError
from nalb.events import AnyEvent, FailureEvent, IterationEvent, PlanEvent, ReadyEvent, SamplesEvent, StateEvent
from nalb.failures import Cause, Failure, JobFailed
from nalb.launch.restarts import Attempt, RestartPolicy, see_through
from nalb.launch.roles import Place
from nalb.live.following import Follower
from nalb.protocol import wire
from nalb.reporting.run_file import read_events
from nalb.transport.observer import Observer
from nalb.transport.observer_relay import Relay

UPTIME_S = 1e6  # how much longer the coordinator's machine has been up than the launcher's


def told(now_s: float) -> list[AnyEvent]:
    """What a coordinator tells whose clock shows `now_s` when its observer comes."""
    times = {"started_s": {"a": now_s + 0.01}, "computed_s": {"a": now_s + 0.02}, "finished_s": {"a": now_s + 0.03}}
    return [
        StateEvent(at_s=now_s, phase="GATHER", nodes=[]),
        ReadyEvent(at_s=now_s, nodes=["a"], servers=["a"]),
        PlanEvent(at_s=now_s, iteration=0, scheme="exact", reason="equal shares"),
        SamplesEvent(at_s=now_s + 0.01, iteration=0, rows=[(0, 0, 1, 8, 0, 5)]),
        IterationEvent(at_s=now_s + 0.04, iteration=0, scheme="exact", communication_s={"a": 0.02}, **times),
    ]


def pass_on(run_dir: Path, ahead_s: float, late_s: float = 0.0) -> list[AnyEvent]:
    """Relay what a coordinator tells whose clock is ahead of this machine's; return the events that the launcher sees.

    late_s: how much later the launcher looks for them.
    """
    with Relay(f"ipc://{run_dir}/observers", run_dir / "samples.jsonl", 1) as relay:
        for event in told(time.monotonic() + ahead_s):
            relay.relay(wire.encode(wire.Told(event)))
        time.sleep(late_s)
        return list(relay.last_events())


@pytest.mark.parametrize("ahead_s", [UPTIME_S, -UPTIME_S])
def test_the_coordinators_moments_are_put_on_the_launchers_clock(tmp_path: Path, ahead_s: float) -> None:
    before_s = time.monotonic()
    seen = pass_on(tmp_path, ahead_s, late_s=1.0)
    assert before_s <= seen[0].at_s <= time.monotonic() - 1.0, "when it came, not when the launcher looked"
    of_launcher = told(seen[0].at_s)
    for event, expected in zip(seen, of_launcher, strict=True):
        assert event.at_s == pytest.approx(expected.at_s, abs=1e-6)
        for name in ("started_s", "computed_s", "finished_s"):
            assert getattr(event, name, {}) == pytest.approx(getattr(expected, name, {}), abs=1e-6)
    assert read_events(tmp_path) == seen[1:]


def test_observers_see_the_moments_of_the_file(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/observers"
    with Relay(address, tmp_path / "samples.jsonl", 1) as relay, Observer(address) as observer:
        seen: list[AnyEvent] = []
        while not seen:  # the relay greets the observer
            list(relay.events(0.05))
            seen += observer.events(0.0)
        ready = ReadyEvent(at_s=time.monotonic() + UPTIME_S, nodes=["a"])
        relay.relay(wire.encode(wire.Told(ready)))
        [filed] = relay.last_events()
        end_s = time.monotonic() + 20
        while len(seen) < 2 and time.monotonic() < end_s:
            seen += observer.events(0.05)
    assert seen[1:] == [filed] == read_events(tmp_path)
    assert filed.at_s == pytest.approx(time.monotonic(), abs=10.0)


def test_a_job_is_dated_right_whose_coordinators_ran_on_machines_of_other_uptimes(tmp_path: Path) -> None:
    """The first attempt's coordinator is on a machine that is up longer than the launcher's; the second one's is up less long."""
    lost = Failure(cause=Cause.PROCESS, detail="was killed", role="worker", node="a")
    started_s = time.monotonic()

    def run(attempt: Attempt) -> None:
        pass_on(attempt.run_dir, -UPTIME_S if attempt.number else UPTIME_S)
        raise JobFailed(lost, 1)

    places = [Place("a", "127.0.0.1"), Place("b", "127.0.0.2")]
    with pytest.raises(JobError):
        see_through(run, tmp_path, places, RestartPolicy(1, None, None), set, lambda _: None, lambda _: None)
    follower = Follower(tmp_path)
    follower.look()
    words = [one.words for one in follower.state.news]
    assert len(words) == 4, words
    assert words[2] == "started again (1)"
    for one in follower.state.news:
        assert started_s <= one.at_s <= time.monotonic()
    for folder in (tmp_path, tmp_path / "restart-1"):
        *_, last, failure = read_events(folder)
        assert isinstance(failure, FailureEvent)
        assert failure.at_s == pytest.approx(last.at_s, abs=10.0)
