"""Whatever the venue and the kind of the job, one observer tells of it, and nothing is left of it.

Most jobs here have toy processes with PyTorch's variables and without MXNet: a venue knows nothing of a job's processes. On hosts a
script stands in for ssh and runs the agent on this machine; tests/launch/test_ssh.py has the real ssh.
"""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from msgspec.structs import replace

from nalb.events import (
    AnyEvent,
    BlockEvent,
    EndedEvent,
    FailureEvent,
    IterationEvent,
    LayoutEvent,
    ReadyEvent,
    SamplesEvent,
    StartedEvent,
    StateEvent,
)
from nalb.failures import Cause, JobFailed, Phase
from nalb.launch.hosts import load_hosts
from nalb.launch.roles import Place, ProcessSpec, Program, mxnet_program
from nalb.launch.venue import Hosts, JobOrder, Loopback, RunningJob, Venue
from nalb.options import JobOptions, variables_of
from nalb.process.guardian import marked
from nalb.protocol import wire
from nalb.reporting.run_file import read_events
from nalb.transport.observer import Observer
from tests.failures import when, who
from tests.launch.conftest import ROOT, STEPS
from tests.launch.toy_coordinator import DIES, TENSORS

pytestmark = pytest.mark.jobs

STAND_IN = '#!/bin/sh\nfor command; do :; done\nexec sh -c "$command"\n'
HOSTS = f"[[hosts]]\nname = 'a'\naddress = '127.0.0.1'\npython = '{sys.executable}'\ndirectory = '{ROOT}'\n"
LIMIT_S = 30.0

NewVenue = Callable[[], Venue]


@pytest.fixture(params=["loopback", "hosts"])
def new_venue(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> NewVenue:
    """Makes a venue of one node; what it leaves in the folder for temporary files is seen."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    (tmp_path / "bin" / "ssh").write_text(STAND_IN)
    (tmp_path / "bin" / "ssh").chmod(0o755)
    (tmp_path / "hosts.toml").write_text(HOSTS)
    if request.param == "loopback":
        return lambda: Loopback([Place("a", "127.0.0.1")])
    hosts = load_hosts(tmp_path / "hosts.toml")
    return lambda: Hosts(hosts, hosts.places())


def toy(has_coordinator: bool = False, **codes: str) -> Program:
    """A process of node a for each role and its line of Python; the worker may be the coordinator."""

    def specs(places: Sequence[Place], options: JobOptions, *_: object) -> list[ProcessSpec]:
        told = variables_of(options, coordinators=True) | {"MASTER_ADDR": places[0].address}
        return [
            ProcessSpec("a", role, (sys.executable, "-c", code), told | {"RANK": str(rank)}, has_coordinator)
            for rank, (role, code) in enumerate(codes.items())
        ]

    return Program(specs, lambda: None, lambda _: has_coordinator)


def assert_nothing_left(job: RunningJob, folder: Path) -> None:
    """No process, no socket, no temporary file."""
    assert marked(job.processes.id) == []
    assert list((folder / "tmp").iterdir()) == []
    assert {path.name for path in (folder / "run").iterdir()} <= {"logs", "samples.jsonl"}


def until_block(events: Iterator[AnyEvent]) -> list[AnyEvent]:
    """The events up to the end of a block."""
    found = []
    for event in events:
        found.append(event)
        if isinstance(event, BlockEvent):
            return found
    raise AssertionError(found)


def test_a_job_is_observed_and_steered_in_one_way(new_venue: NewVenue, tmp_path: Path) -> None:
    """By the launcher, and by others at the socket in the run directory, until its coordinator is killed."""
    program = toy(has_coordinator=True, worker="from tests.launch.toy_coordinator import main; main()")
    shown: list[str] = []
    with new_venue() as venue:
        job = venue.start(JobOrder(program, JobOptions(), tmp_path / "run", show=shown.append))
        seen = list(job.block(wire.RunBlock("exact", 3)))
        kinds = [type(event) for event in seen if not isinstance(event, StateEvent)]
        assert kinds == [ReadyEvent, LayoutEvent, *[IterationEvent] * 3, BlockEvent]
        assert len(next(event for event in seen if isinstance(event, LayoutEvent)).tensors or []) == TENSORS
        assert not job.processes.is_gathering()
        with Observer(f"ipc://{tmp_path / 'run' / 'observers'}") as other:
            other.send(wire.RunBlock("average", 2))
            both = until_block(job.watch.events(LIMIT_S))
            assert [event.scheme for event in both if isinstance(event, IterationEvent)] == ["average"] * 2
            assert until_block(other.events(LIMIT_S))[-3:] == both[-3:]
            assert job.watch.moment() == (Phase.PLAN, 5)
            job.watch.send(wire.RunBlock(DIES, 1))
            with pytest.raises(JobFailed) as caught:
                job.processes.wait()
    failure = caught.value.failure
    assert (failure.cause, who(failure), when(failure)) == (Cause.ENDED, ("worker", "a"), (Phase.PLAN, 5))
    assert [line for line in shown if "took" not in line] == []
    assert [line.rpartition(" ")[2] for line in shown].count("RunBlock") >= 2
    if isinstance(venue, Hosts):  # else the coordinator would write the file
        filed = [event for event in seen + both if not isinstance(event, StateEvent)]
        assert read_events(tmp_path / "run") == filed
    assert_nothing_left(job, tmp_path)


def test_a_job_that_fails_before_all_have_joined_is_at_its_start(new_venue: NewVenue, tmp_path: Path) -> None:
    """The worker's own last words are the detail: on hosts nothing is said of variables, which ssh's client need not have."""
    code = "import time; time.sleep(0.7); print('no data', flush=True); raise SystemExit(3)"
    with new_venue() as venue:
        job = venue.start(JobOrder(toy(has_coordinator=True, worker=code), JobOptions(), tmp_path / "run"))
        assert job.processes.is_gathering()
        with pytest.raises(JobFailed) as caught:
            job.processes.wait()
    failure = caught.value.failure
    assert (failure.cause, who(failure), when(failure)) == (Cause.ENDED, ("worker", "a"), (Phase.START, None))
    assert failure.detail.endswith("exited with 3: no data")
    assert_nothing_left(job, tmp_path)


def test_a_held_job_ends_well(new_venue: NewVenue, tmp_path: Path) -> None:
    program = toy(has_coordinator=True, worker="from tests.launch.toy_coordinator import main; main()")
    with new_venue() as venue:
        job = venue.start(JobOrder(program, JobOptions(), tmp_path / "run"))
        assert until_block(job.block(wire.RunBlock("exact", 1)))
        job.end()
    assert_nothing_left(job, tmp_path)


@pytest.mark.parametrize("code", [0, 3])
def test_where_no_coordinator_runs_the_launcher_tells_what_it_sees(
    new_venue: NewVenue, tmp_path: Path, code: int
) -> None:
    go = tmp_path / "go"
    waits = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nraise SystemExit({code})"
    seen: list[AnyEvent] = []
    greeted: list[AnyEvent] = []
    with Observer(f"ipc://{tmp_path / 'run' / 'observers'}") as other:
        with new_venue() as venue, pytest.raises(JobFailed) if code else nullcontext() as caught:
            job = venue.start(JobOrder(toy(server="pass", worker=waits), JobOptions(), tmp_path / "run"))
            while not greeted:
                seen += job.watch.events(0.05)
                greeted += other.events(0.0)
            assert not job.processes.is_gathering()  # nobody knows
            go.touch()
            seen.extend(job.follow(None))
        if caught is not None:
            failed = caught.value
            assert (failed.exit_code, when(failed.failure), who(failed.failure)) == (3, (None, None), ("worker", "a"))
        told = [*greeted, *other.last_events()]
    assert isinstance(told[0], StateEvent)
    assert [event.role for event in seen if isinstance(event, StartedEvent)] == ["server", "worker"]
    assert EndedEvent(at_s=told[-1].at_s, role="worker", node="a", exit_code=code) in (
        replace(event, at_s=told[-1].at_s) for event in told if isinstance(event, EndedEvent)
    )
    assert isinstance(told[-1], FailureEvent) == (code != 0)
    filed = read_events(tmp_path / "run")
    assert {event.role: event.exit_code for event in filed if isinstance(event, EndedEvent)} == {
        "server": 0,
        "worker": code,
    }
    assert filed[: len(seen)] == seen
    assert_nothing_left(job, tmp_path)


@pytest.mark.mxnet
@pytest.mark.skipif(importlib.util.find_spec("mxnet") is None, reason="mxnet is not installed")
def test_a_job_of_mxnet_is_told_as_its_file_tells_it(tmp_path: Path) -> None:
    """But for the rows of messages, which observers do not get."""
    order = JobOrder(mxnet_program([*STEPS, "--steps", "8"]), JobOptions(), tmp_path, may_miss=True)
    with Loopback([Place("n0", "127.0.0.1"), Place("n1", "127.0.0.1")]) as venue:
        seen = list(venue.start(order).follow())
    filed = [event for event in read_events(tmp_path) if not isinstance(event, SamplesEvent)]
    assert [event for event in seen if not isinstance(event, StateEvent)] == filed
    assert sum(isinstance(event, IterationEvent) for event in filed) >= 7
    assert {path.name for path in tmp_path.iterdir()} == {"logs", "samples.jsonl"}
