"""Starts a job's processes, passes their output on, names the first process that failed, and always ends all of them.

A process that ends because of another one exits with PeerError's code and repeats the coordinator's verdict as data
(last_words.py), often before the culprit itself has ended. So the supervisor waits a moment after the first failure. A process
that was killed or failed by itself is the culprit; the coordinator's verdict counts only where there is no such process.
"""

import os
import secrets
import shutil
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, NoReturn

from msgspec.structs import replace

from nalb.errors import InputError, MachineError, PeerError, is_full, listed
from nalb.events import AnyEvent, EndedEvent, FailureEvent, StartedEvent
from nalb.extras import remedy_of
from nalb.failures import NOT_LEFT, Cause, Failure, JobFailed, Moment, Phase, carried
from nalb.launch.agent import TERM_GRACE_S
from nalb.launch.lost_variables import LostVariables
from nalb.launch.output import STATE_S, Kind, Piece, pieces_of
from nalb.launch.processes import LocalProcess, start_here
from nalb.launch.roles import WORKER, ProcessSpec
from nalb.launch.signals import held_back
from nalb.process.exhaustion import explained, raise_file_limit
from nalb.process.guardian import Descent, JobGuardian, kill_marked, living_on
from nalb.process.last_words import FOR_THE_LAUNCHER, line_of
from nalb.process.proc import Stop
from nalb.process.streams import discard_output
from nalb.settings import silence_of

KILL_GRACE_S = 3.0  # the time that killed processes get to end
AFTER_WORKERS_S = 7.0  # the limit for servers and scheduler, which end milliseconds after the workers by themselves
SETTLE_S = 0.3  # the wait after a failure for other processes that the same cause ends
CULPRIT_S = 2.0  # the longest wait for the culprit while only its peers have ended and others still run
STOPPED_GRACE_S = 2.0  # added to the silence limit, so that the coordinator's verdict, which says more, comes first
JOINED_S = 1.0  # the wait for the coordinator to tell that all have met, after a worker has ended well

CLEAR = "\x1b[K"  # erases the terminal's line from the cursor on

Wrap = Callable[[ProcessSpec], list[str]]


class Job:
    """A context within which the job's processes live. `wait` returns once the job has succeeded and raises JobFailed if it fails.

    Entering the context raises MachineError or InputError where processes cannot be started.
    """

    lag_s = 0.0  # how much later than a process's end an event from before it may arrive
    term_grace_s = TERM_GRACE_S  # the time between asking processes to end and killing them

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        wrap: Wrap,
        inherited: Mapping[str, str],
        log_dir: Path,
        show: Callable[[str], None] | None = None,
        has_joined: Callable[[], bool] | None = None,  # whether all processes have met; None: that cannot be known
        check: Callable[[], None] = lambda: None,  # raises the errors of the processes' network
        show_unfinished: Callable[[str], None] | None = None,  # shows unfinished lines, such as progress bars
        moment: Callable[[], Moment] = lambda: (None, None),  # the job's phase and iteration
        tell: Callable[[AnyEvent], None] = lambda _: None,  # takes events of the processes' starts and ends
        joining: str = "",  # what the command must do on every worker to join the job
        is_whole: bool = True,  # whether these are all processes of the job
        with_it: Sequence[Path] = (),  # files and folders that go with the job, even if this process is killed
        are_paced: bool = False,  # whether netem's duty cycle stops and wakes the processes
    ):
        self._specs, self._wrap, self._inherited, self._log_dir = specs, wrap, inherited, log_dir
        self._show, self._has_joined, self._check = show, has_joined, check
        self._show_unfinished, self._moment, self._tell, self._joining = show_unfinished, moment, tell, joining
        self._is_whole, self._with_it, self._are_paced = is_whole, with_it, are_paced
        self._tells_joining = has_joined is not None  # then workers that never join are noticed when one ends
        self._print_lock = threading.Lock()
        self._reading_error: Exception | None = None
        self._workers_ended_s: float | None = None
        self._stops: defaultdict[str, Stop] = defaultdict(Stop)  # by slug
        self._stack = ExitStack()
        self.id = secrets.token_hex(8)  # each process has it in its environment
        self.children: list[LocalProcess] = []
        self._readers: list[threading.Thread] = []
        self._failed: list[LocalProcess] = []  # in the order in which the failures were noticed
        self._ended: list[LocalProcess] = []  # of which an EndedEvent tells
        self.printed: str | None = None  # the last line that a worker's command printed, empty lines left out
        self._lost = LostVariables()

    def __enter__(self) -> "Job":
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MachineError(f"{self._log_dir}: {error.strerror}: choose another --out") from None
        raise_file_limit()
        self._guardian = self._stack.enter_context(JobGuardian(self.id, self._with_it))
        self._descent = self._stack.enter_context(Descent())
        try:
            for spec in self._specs:
                child = self.start(spec)
                self._tell(StartedEvent(at_s=time.monotonic(), role=spec.role, node=spec.node))
                reader = threading.Thread(target=self._read, args=(child,), name=f"log-{spec.slug}", daemon=True)
                self._readers.append(reader)
                with explained(f"the thread that reads the output of {spec.name}"):
                    reader.start()
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()

    def start(self, spec: ProcessSpec) -> LocalProcess:
        """Start one process of the job on this machine, and have it among the children before a signal ends the job."""
        with held_back():
            child = start_here(spec, self._wrap(spec), self._inherited, self.id, self._are_paced)
            self.children.append(child)
        return child

    def wait(self, check: Callable[[], None] = lambda: None) -> None:
        """Wait until every process has ended well. Raises JobFailed, which names the first process that failed.

        `check` is called repeatedly; an error that it raises also ends the job.
        """
        while not self.finished():
            check()
            time.sleep(0.05)

    def finished(self) -> bool:
        """Whether every process has ended well. Raises JobFailed as soon as a process has failed or can never end.

        A failure that does not say when it came gets the job's moment. A long one is cut to what run files can hold.
        """
        if self._reading_error is not None:
            raise self._reading_error
        self._guardian.check()
        self._check()
        self._descent.reap([child.popen.pid for child in self.children])
        self.check_failed()
        try:
            is_over = self._are_over()
        except JobFailed as error:
            self._fail(error)
        self._tell_ended()
        return is_over

    def check_failed(self) -> None:
        """Raise JobFailed if one of the processes that were started has failed."""
        if self._note_failed():
            with held_back():  # a signal in this time, such as Ctrl-C at the sight of an error, would hide who failed
                self._wait_for_culprit()
                self._fail(self._failure())

    def _fail(self, error: JobFailed) -> NoReturn:
        """Tell of the failure and raise it."""
        failure = carried(error.failure)
        if not failure.has_moment:
            phase, iteration = self._moment()
            failure = replace(failure, phase=phase, iteration=iteration)
        self._tell_ended()
        self._tell(FailureEvent(at_s=time.monotonic(), failure=failure))
        code = error.exit_code
        if failure.is_wrong_input and code == PeerError.exit_code:  # of a process that the coordinator has told of it
            code = InputError.exit_code
        raise JobFailed(failure, code, error.where) from None

    def _are_over(self) -> bool:
        self._check_stopped()
        workers = [child for child in self.children if child.spec.role == "worker"]
        if self.is_gathering():
            self._lost.look([worker for worker in workers if worker.is_here])
        ended = [child for child in workers if _ended_well(child)]
        if ended:
            self._check_joined(ended[0])
        if len(ended) < len(workers):
            return False
        now_s = time.monotonic()
        self._workers_ended_s = self._workers_ended_s or now_s
        waiting = [child for child in self.children if not _ended_well(child)]  # a failed one is noticed later
        if waiting and self._is_whole and now_s - self._workers_ended_s > AFTER_WORKERS_S + self.lag_s:
            raise self._never_over(waiting, now_s - self._workers_ended_s)
        return not waiting

    def _never_over(self, waiting: list[LocalProcess], waited_s: float) -> JobFailed:
        """The failure of a job whose workers have ended well, while others still run."""
        for child in waiting:
            if child.stopped_at() is not None:
                failure = child.spec.failure(Cause.STOPPED, _stopped_for(self.stopped_s(child)), Phase.END)
                return JobFailed(failure, PeerError.exit_code, self._log_of(child))
        cause, why = Cause.LINGERING, "the training itself is complete"
        if not self._tells_joining:
            cause, why = Cause.NO_STORE, f"the command must {self._joining} on every worker"
        detail = (
            f"all workers ended well, but {waiting[0].spec.name} still waits for them {waited_s:.1f} s later: {why}"
        )
        return JobFailed(Failure(cause=cause, detail=detail, phase=Phase.END), where=f"logs: {self._log_dir}")

    def _tell_ended(self) -> None:
        for child in self.children:
            if child not in self._ended and (ending := child.poll()) is not None:
                self._ended.append(child)
                role, node, code = child.spec.role, child.spec.node, ending.exit_code
                self._tell(EndedEvent(at_s=time.monotonic(), role=role, node=node, exit_code=code))

    # ---- failures

    def _check_stopped(self) -> None:
        """Raise JobFailed for a process that a signal has stopped for too long, unless the coordinator ends the job for it.

        No coordinator notices a stopped process before all have met, after the farewell, and where MXNet runs alone.
        """
        for child in self.children:
            silent_s = self.stopped_s(child)
            limit_s = self._silence_s(child)
            if silent_s > limit_s:
                is_before = self.is_gathering()
                if is_before or silent_s > limit_s + STOPPED_GRACE_S:
                    phase = Phase.START if is_before else Phase.END if self._workers_ended_s else None
                    failure = child.spec.failure(Cause.STOPPED, _stopped_for(silent_s), phase)
                    raise JobFailed(failure, PeerError.exit_code, self._log_of(child))

    def is_gathering(self) -> bool:
        """Whether the launcher knows that not all processes have met yet."""
        return self._has_joined is not None and not self._has_joined()

    def stopped_s(self, child: LocalProcess) -> float:
        """The time for which a signal has stopped the process, as far as the launcher has seen it; 0 while it runs."""
        return self._stops[child.spec.slug].seen(child.stopped_at(), time.monotonic())

    def _silence_s(self, child: LocalProcess) -> float:
        return silence_of({**self._inherited, **child.spec.environment})

    def _note_failed(self) -> bool:
        for child in self.children:
            ending = child.poll()
            if ending is not None and not ending.is_good and child not in self._failed:
                self._failed.append(child)
        return bool(self._failed)

    def _wait_for_culprit(self) -> None:
        start_s = time.monotonic()
        while (elapsed_s := time.monotonic() - start_s) < CULPRIT_S:
            runs = any(child.poll() is None and child.stopped_at() is None for child in self.children)
            self._note_failed()  # now: who has ended before that look may be the culprit
            if elapsed_s > SETTLE_S and (_culprits(self._failed) or not runs):
                return
            time.sleep(0.02)

    def _failure(self) -> JobFailed:
        culprits = _culprits(self._failed)
        telling = [child for child in self._failed if child.failure is not None]
        telling.sort(key=_hears_nothing)  # who does knows less than the coordinator, whose verdict the others repeat
        child = (culprits or telling or self._failed)[0]
        ending = child.poll()
        assert ending is not None
        self._readers[self.children.index(child)].join(timeout=1.0)  # its last words
        told = child.failure if ending.is_explained else None
        if not culprits and told is not None:  # the coordinator's verdict, which every process repeats
            others = [one for one in self.children if not told.is_of(one.spec.role, one.spec.node)]
            if told.cause in (Cause.SILENT, Cause.ENDED):
                # an agent, which is no child, tells that its worker has ended, never that it has itself
                role = WORKER if (told.cause, told.role) == (Cause.ENDED, "agent") else told.role
                named = [one for one in self.children if (one.spec.role, one.spec.node) == (role, told.node)]
                if any(map(_ended_well, named)):
                    told = replace(told, cause=Cause.ENDED, role=role, detail=NOT_LEFT)
            if told.cause is Cause.ABSENT:
                told = replace(told, detail=told.detail + next(filter(None, map(self._lost.of, self.children)), ""))
            if told.cause is Cause.LINGERING:
                told = self._awaited(told)
            elif stopped := [one.spec.name for one in others if one.stopped_at() is not None]:
                told = replace(told, detail=f"{told.detail} ({listed(stopped)} stopped by a signal)")
            return JobFailed(told, ending.exit_code, f"logs: {self._log_dir}")
        # of one that a signal has killed, its agent knows only that it is gone
        knows = told is not None and (told.role == child.spec.role or ending.exit_code <= 128)
        why = told.detail if told and knows else child.last_line() if ending.is_explained else ""
        detail = f"{ending.what}: {why}{remedy_of(why)}" if why else ending.what
        if self.is_gathering():
            detail += self._lost.of(child)
        failure = child.spec.failure(Cause.ENDED, detail)
        if told is not None:
            failure = replace(failure, cause=told.cause, phase=told.phase, iteration=told.iteration)
        return JobFailed(failure, ending.exit_code, self._log_of(child))

    def _awaited(self, lingering: Failure) -> Failure:
        """The failure of the process that was stopped when the others left, since all wait for it; otherwise `lingering` itself."""
        for child in self.children:
            stopped_s = self.stopped_s(child)
            if stopped_s > self._silence_s(child) / 2:  # of the silence that has passed since then
                detail = f"{_stopped_for(stopped_s)} ({lingering.detail})"
                return child.spec.failure(Cause.STOPPED, detail, lingering.phase)
        return lingering

    def _log_of(self, child: LocalProcess) -> str:
        return f"its log: {self._log_dir / (child.spec.slug + '.log')}"

    def _check_joined(self, ended: LocalProcess) -> None:
        if self._has_joined is None:
            return
        end_s = time.monotonic() + JOINED_S + self.lag_s
        while not self._has_joined():
            if time.monotonic() > end_s:
                detail = (
                    f"ended well before the job had begun: the command must {self._joining} on every worker"
                    + self._lost.of(ended)
                )
                raise JobFailed(ended.spec.failure(Cause.NO_STORE, detail, Phase.START), where=self._log_of(ended))
            time.sleep(0.05)
        self._has_joined = None

    # ---- output

    def _read(self, child: LocalProcess) -> None:
        assert child.popen.stdout is not None
        path = self._log_dir / f"{child.spec.slug}.log"
        try:
            with open(path, "ab") as log:  # buffered: else a full disk may take a part without error
                for piece in pieces_of(child.popen.stdout.fileno()):
                    self._take(child, piece, log)
                    log.flush()
        except OSError as error:
            self._reading_error = MachineError(f"{path}: {error.strerror}: make room or choose another --out")
        except ValueError:
            return  # _end_all has closed the pipe
        except (
            Exception
        ) as error:  # such as MemoryError; the process would wait for ever for somebody who reads its output
            self._reading_error = error
        finally:
            child.is_read = True

    def _take(self, child: LocalProcess, piece: Piece, log: BinaryIO) -> None:
        """Log a piece of a process's output and show it; a failure reported to the launcher is logged as a line for people."""
        if piece.kind is not Kind.LINE:
            log.write(piece.raw if piece.kind is Kind.STATE else b"")
            self._show_state(child, piece.text)
            return
        told, line = child.failure, child.take_line(piece.text)
        if child.failure is not None and child.failure != told:  # the launcher shows it later, once for all
            log.write(f"{line_of(child.failure)}\n".encode())
        if line is not None:
            log.write(piece.raw if line == piece.text else line.encode() + b"\n")
            if child.spec.role == WORKER and line.strip():
                self.printed = line.strip()
            self._show_line(_from(child, line))

    def _show_state(self, child: LocalProcess, state: str) -> None:
        """Show an unfinished line, at most one in STATE_S and without the part that is for the launcher alone."""
        now_s, text = time.monotonic(), state.partition(FOR_THE_LAUNCHER)[0]
        if self._show_unfinished is not None and text and now_s - child.state_shown_s >= STATE_S:
            child.state_shown_s = now_s
            with self._print_lock:
                self._show_unfinished(_from(child, text))

    def _show_line(self, line: str) -> None:
        if self._show is not None:
            with self._print_lock:
                self._show(line)

    # ---- the end

    @held_back()  # a signal would leave processes of the job and hide who failed
    def _end_all(self) -> None:
        """End every process of the job and all that those started, within little more than term_grace_s + KILL_GRACE_S."""
        for child in (unread := self.children[len(self._readers) :]):  # a signal came before the thread that reads it
            child.is_read = True
        for child in self.children:
            child.ask_to_end()
        self._await(self.term_grace_s)
        for child in self.children:
            child.kill()
        self._await(KILL_GRACE_S)
        if stay := self._descent.end([child.popen.pid for child in self.children]):
            self._show_line(f"nalb: {living_on(stay)}")
        kill_marked(self.id)  # processes of a "host" that is this machine descend from sshd, not from the launcher
        self._stack.close()
        for child, reader in zip(self.children, self._readers, strict=False):
            if reader.ident is not None:  # a thread without an ident could not be started
                reader.join(timeout=1.0)
            if not reader.is_alive() and child.popen.stdout is not None:
                child.popen.stdout.close()
        for child in unread:
            if child.popen.stdout is not None:
                child.popen.stdout.close()

    def _await(self, limit_s: float) -> None:
        end_s = time.monotonic() + limit_s
        while any(child.poll() is None for child in self.children) and time.monotonic() < end_s:
            time.sleep(0.02)


def _from(child: LocalProcess, line: str) -> str:
    return f"[{child.spec.node} {child.spec.role}] {line}"


def _stopped_for(seconds: float) -> str:
    return f"has been stopped by a signal for {seconds:.1f} s: only SIGCONT wakes it"


def _ended_well(child: LocalProcess) -> bool:
    ending = child.poll()
    return ending is not None and ending.is_good


def _culprits(failed: list[LocalProcess]) -> list[LocalProcess]:
    """The failed processes that did not end because of another one; those killed by a signal come first.

    A worker whose stderr goes to a file tells the launcher nothing. So where others repeat a verdict, and nothing on the node that
    it names has failed by itself, those that ended by themselves without a word have ended because of that node.
    """
    codes = {child.spec.slug: ending.exit_code for child in failed if (ending := child.poll()) is not None}
    own = [child for child in failed if codes[child.spec.slug] != PeerError.exit_code and not _blames_another(child)]
    others = [child for child in failed if child not in own and not _hears_nothing(child)]
    named = {child.failure.node for child in others if child.failure is not None}
    if named and not any(child.spec.node in named for child in own):
        own = [child for child in own if child.failure is not None or codes[child.spec.slug] > 128]
    return sorted(own, key=lambda child: codes[child.spec.slug] <= 128)


def _hears_nothing(child: LocalProcess) -> bool:
    """Whether it ends because it hears nothing from the coordinator."""
    return child.failure is not None and child.failure.cause is Cause.NO_COORDINATOR


def _blames_another(child: LocalProcess) -> bool:
    """Whether it ended by itself and repeats the coordinator's verdict, as scripts do that PyTorch ends by an exception.

    A failure of no node is a verdict too, unless its cause is PROCESS or INPUT: then it is this process's own. Who hears nothing
    from the coordinator names itself, and is at no fault.
    """
    ending, told = child.poll(), child.failure
    if ending is None or not ending.is_explained or told is None:
        return False
    if _hears_nothing(child):
        return True
    return told.cause not in {Cause.PROCESS, Cause.INPUT} if told.node is None else told.node != child.spec.node


def print_line(line: str) -> None:
    """Print a line of a job's output. Printing never ends the job: characters that stdout cannot encode become ?, and where
    nobody reads stdout any more, only the logs go on."""
    _print(f"{CLEAR}{line}\n" if _is_terminal() else f"{line}\n")


def print_unfinished(line: str) -> None:
    """Print an unfinished line of a job's output, as print_line does; on a terminal the next line takes its place."""
    width = shutil.get_terminal_size().columns - 1
    _print(f"{CLEAR}{line[:width]}\r" if _is_terminal() else f"{line}\n")


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def _print(text: str) -> None:
    encoding = sys.stdout.encoding or "utf-8"  # None: rich draws a bar, and prints lines above it
    try:
        print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
    except OSError as error:
        discard_output()
        if is_full(error):
            with suppress(OSError):
                print(f"nalb: standard output: {error.strerror}: only the logs go on", file=sys.stderr, flush=True)
