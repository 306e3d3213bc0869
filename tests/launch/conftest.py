"""Runs `nalb launch` as a user would, watches what it prints, and finds whatever it leaves behind."""

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from nalb.checkpoints.folder import newest
from nalb.events import AnyEvent
from nalb.failures import Cause, Failure, Phase, render
from nalb.process.guardian import VARIABLE
from nalb.reporting.run_file import read_events
from tests.failures import noted_in, when, who

ROOT = Path(__file__).parents[2]
STEPS = [sys.executable, str(Path(__file__).with_name("steps.py"))]
LAUNCH = [sys.executable, "-P", "-m", "nalb.cli.main", "launch", "--out", "{}"]  # the run directory
START_LIMIT_S = 90.0  # a busy machine imports mxnet slowly
END_LIMIT_S = 15.0  # what nalb promises
MARK = "NALB_TEST_RUN"  # in the environment of everything that a test's launcher starts on this machine


def processes_with(entry: str, whole: bool = True) -> dict[int, dict[str, str]]:
    """The environments of the living processes that have NAME=VALUE in theirs, or the beginning of it."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                words = (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
                if any(word == entry or (not whole and word.startswith(entry)) for word in words):
                    found[int(folder.name)] = dict(word.partition("=")[::2] for word in words if word)
    return found


class Launched:
    """A `nalb launch` under way."""

    def __init__(
        self,
        arguments: list[str],
        run_dir: Path,
        wrap: list[str],
        environment: Mapping[str, str],
        program: Sequence[str] = LAUNCH,
    ):
        self.run_dir, self.token = run_dir, secrets.token_hex(8)
        self._temporary = run_dir.with_name(f"{run_dir.name}-tmp")
        self._temporary.mkdir()
        self.lines: list[str] = []
        self._jobs: set[str] = set()  # the ids in its processes' environment, of each attempt that was looked at
        self._news = threading.Condition()
        self.popen = subprocess.Popen(
            [*wrap, *(word.format(run_dir) for word in program), *arguments],
            env={
                **os.environ,
                MARK: self.token,
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(self._temporary),
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._news:
                self.lines.append(line.rstrip("\n"))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    @property
    def output(self) -> str:
        """All that was printed."""
        return "\n".join(self.lines)

    def wait_for(self, text: str, count: int = 1) -> None:
        """Until so many lines contain the text."""
        self._wait_until(lambda: sum(text in line for line in self.lines) >= count)

    def wait_for_event(self, kind: type[AnyEvent]) -> None:
        """Until the coordinator has noted such an event."""
        self._wait_until(lambda: any(isinstance(event, kind) for event in read_events(self.run_dir)))

    def _wait_until(self, is_there: Callable[[], bool]) -> None:
        """Fails where the launcher ends without it; what it printed last may come to the reader after the end."""
        end_s = time.monotonic() + START_LIMIT_S
        with self._news:
            while not is_there():
                if self.popen.poll() is not None:
                    break
                assert time.monotonic() < end_s, self.output
                self._news.wait(0.05)
            else:
                return
        self._reader.join(END_LIMIT_S)
        assert is_there(), self.output

    def pid(self, role: str, node: str, level: str | None = None) -> int:
        """Of a process of the job; level: of a server of a job by sites.

        It looks for a second: a process that begins another program has no environment for a moment.
        """
        end_s = time.monotonic() + 1
        while True:
            for pid, environment in processes_with(f"{MARK}={self.token}").items():
                there = environment.get("DMLC_ROLE"), environment.get("NALB_NODE"), environment.get("NALB_LEVEL")
                if there == (role, node, level):
                    return pid
            if time.monotonic() > end_s:
                raise ProcessLookupError(f"the job has no {role} of node {node}")
            time.sleep(0.01)

    def signal(self, number: int) -> None:
        """To the launcher."""
        os.kill(self.popen.pid, number)

    def end(self, limit_s: float = END_LIMIT_S) -> tuple[int, float]:
        """(exit code, seconds until it came); fails where it takes longer."""
        start_s = time.monotonic()
        code = self.popen.wait(limit_s)
        took_s = time.monotonic() - start_s
        self._reader.join(limit_s)
        return code, took_s

    def verdict(self) -> str:
        """What nalb itself printed about the end: exactly one line."""
        own = [line for line in self.lines if line.startswith("nalb launch: ")]
        assert len(own) == 1, self.output
        return own[0]

    def failure(self) -> Failure:
        """Why the job failed, as nalb has noted it; exactly once, and said in the verdict."""
        failure = noted_in(self.run_dir)
        assert render(failure) in self.verdict()
        return failure

    def processes(self) -> dict[int, dict[str, str]]:
        """What lives of it: the launcher's processes and ssh clients, and those with its job's mark anywhere on this machine.

        The mark is known from a look while that attempt's guardian lived; without one, processes on hosts are not seen.
        """
        found = processes_with(f"{MARK}={self.token}") | processes_with(f"TMPDIR={self._temporary}")
        for pid in found:
            with suppress(OSError):
                words = (Path("/proc") / str(pid) / "cmdline").read_bytes().decode().split("\0")
                if "nalb.process.guardian" in words:
                    self._jobs.add(words[words.index("nalb.process.guardian") + 1])
        for job in self._jobs:
            found |= processes_with(f"{VARIABLE}={job}:", whole=False)
        return found

    def child(self, slug: str) -> int:
        """The process that carries this mark: 'n0.worker', or 'a.worker.ssh' for an ssh client."""
        return next(pid for pid, one in self.processes().items() if one.get(VARIABLE, "").partition(":")[2] == slug)

    def assert_disk_was_full(self, at: int, kept: int) -> None:
        """It ended where n0 could not write the checkpoint of iteration `at`; that of `kept` is whole, and nothing else is left."""
        failure = self.failure()
        assert (failure.cause, who(failure), when(failure)) == (
            Cause.CHECKPOINT,
            ("worker", "n0"),
            (Phase.CHECKPOINT, at),
        )
        found, skipped = newest(self.run_dir / "checkpoints")
        assert found is not None
        assert (found.checkpoint.progress.iteration, skipped) == (kept, [])
        self.assert_nothing_left()

    def assert_nothing_left(self, within_s: float = END_LIMIT_S) -> None:
        """No process, no temporary file, and in the run directory nothing but what belongs there."""
        end_s = time.monotonic() + within_s
        while left := self.processes():
            assert time.monotonic() < end_s, left
            time.sleep(0.05)
        entries = self.run_dir.iterdir() if self.run_dir.exists() else ()  # a fault may come before it is made
        names = {path.name for path in entries if not path.name.startswith("restart-")}
        assert names <= {"about.json", "logs", "samples.jsonl", "checkpoints"}, names
        assert list(self._temporary.iterdir()) == []

    def destroy(self) -> None:
        """For a test that failed half way."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.popen.wait()
        self._reader.join()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


Launch = Callable[..., Launched]


@pytest.fixture
def launch(tmp_path: Path) -> Iterator[Launch]:
    """Start `nalb launch ARGUMENTS`; whatever it left is killed after the test."""
    launched: list[Launched] = []

    def start(*arguments: str, wrap: list[str] | None = None, **environment: str) -> Launched:
        run_dir = tmp_path / f"run{len(launched)}"
        launched.append(Launched(list(arguments), run_dir, wrap or [], environment))
        return launched[-1]

    yield start
    for one in launched:
        one.destroy()
