"""`python tests/campaigns/faults.py --jobs N --seed S --out DIR`: jobs of all kinds, each with one fault drawn by lot.

Each job checks its sums itself and by --verify-sums, and must end as the fault lets it: well, where the fault was short, where nalb
mends it, or where the job may restart; else everywhere within the deadline, with one line that names who failed, and when. Nothing
may be left. Needs root. DIR/seed-S.jsonl gets a line per job, and jobs that have one are not run again. Prints a line per job, then
a table of all records in DIR, and how long it took everyone to end; exit code 1 where any job did otherwise.
"""

import argparse
import errno
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nalb.checkpoints import folder as checkpoints  # noqa: E402 - the repository need not be installed
from nalb.errors import InputError, MachineError  # noqa: E402
from nalb.events import AnyEvent, PlanEvent, ReadyEvent  # noqa: E402
from nalb.failures import Cause, Failure, render  # noqa: E402
from nalb.process.line_file import LineFile  # noqa: E402
from nalb.reporting.run_file import read_events  # noqa: E402
from nalb.settings import SILENCE  # noqa: E402
from tests.campaigns import resets  # noqa: E402
from tests.campaigns.venues import MXNETS, VENUES, Staged, Venue, require  # noqa: E402
from tests.failures import all_noted_in  # noqa: E402

MOMENTS = (0.1, 0.4)  # of the deadline: faults that heal, while the silence that is allowed is not over
LONG = 0.7  # of the deadline, likewise: a launcher that is stopped for longer than anyone else may be
TOLD_S = 4.0  # beyond the silence: the next look, the launcher's own, and the processes' ends (docs/faults.md)
WAIT_S = 120.0  # for a phase to come, on a busy machine
END_LIMIT_S = 90.0
TRIES = 3  # for a fault that came too late
STEP = 5  # in which the phases are looked for: all is measured by then
ANYONE = ("worker", "server", "scheduler", "launcher")
PROCESSES = ANYONE[:-1]
RESET = " reset"
VICTIMS = {
    "kill": ANYONE,
    "pause": ANYONE,
    "stop": ANYONE,
    "link lost a moment": ("node",),
    "link lost": ("node",),
    "reboot": ("node",),
    "disk full": ("worker", "scheduler", "launcher"),
    "memory full": ANYONE,
    "control reset": PROCESSES,
    "data reset": PROCESSES,
    "courier reset": ("worker",),
    "gloo reset": ("worker",),
    "ssh reset": PROCESSES,
    "knocks reset": ("node",),
}
OF_LINKS = ("link lost a moment", "link lost", "reboot")
MENDED = ("control reset", "courier reset", "knocks reset")  # what these carry is said or sent again
AT_ONCE = ("kill", "stop", "link lost", "reboot", "data reset", "gloo reset", "ssh reset")
DELAY_MOST_S = 0.4  # from the phase's beginning to a reset: as long as a step
KNOCKED_S = 1.5
NALBS = re.compile(
    r"^.*?(nalb: |JobFailed: )"
)  # the words before a failure, in a line of a rank that no launcher reads
FOUND_S = 10.0  # for a connection of the kind to be there
BUSY_S = 0.7  # for one to carry something


@dataclass(frozen=True)
class Case:
    """One job's fault."""

    fault: str
    victim: str
    node: str
    phase: str
    restarts: bool  # whether the job may be started again, once
    moment: float = MOMENTS[0]  # of the deadline, where it heals
    is_far: bool = False  # a link that is lost beyond a switch: the node's own port still has its carrier
    venue: str = "network"
    more: tuple[str, ...] = ()  # the venue's flags of this job
    is_all: bool = False  # all connections of the kind that the process has are reset, not one
    delay_s: float = 0.0  # from the phase's beginning to the reset
    lot: float = 0.0  # which connection: from 0, the first, to 1
    is_busy: bool = False  # one that carries something just then, if any does within BUSY_S

    @property
    def heals(self) -> bool:
        """Whether the job must go on."""
        heals = ("pause", "link lost a moment", *MENDED)
        return self.fault in heals or (self.fault, self.victim) == ("stop", "launcher")

    @property
    def may_go_on(self) -> bool:
        """Whether it may also go on: what is needed no more is not missed; a fault of the last moment may come too late."""
        return self.phase == "end" or self.fault in ("memory full", "disk full", "data reset", "gloo reset")

    @property
    def is_in_time(self) -> bool:
        """Whether an end must come within the deadline. While a process loads what it needs, it does not look at its link."""
        is_early = self.phase == "start" and (self.fault in ("link lost", "gloo reset") or VENUES[self.venue].is_alone)
        return self.fault in AT_ONCE and not is_early


def in_time_s(deadline_s: float) -> float:
    """When everyone must have ended: 10 s by default. Only the silence is shorter where the deadline is."""
    return max(deadline_s, SILENCE * deadline_s + TOLD_S)


def possible(venue: Venue, faults: Sequence[str]) -> list[str]:
    """The faults that there can be."""
    lacks = {
        "courier reset": "--parallel" not in str(venue.more),
        "gloo reset": not venue.is_of_torch,
        "ssh reset": not venue.has_hosts,
        **dict.fromkeys(OF_LINKS, venue.network is None),
    }
    return [fault for fault in faults if not lacks.get(fault, False)]


def draw(rng: random.Random, name: str = "network", faults: Sequence[str] = tuple(VICTIMS)) -> Case:
    """By lot: the fault, then whom and when. Where there is one of a kind, it is on the first node."""
    venue = VENUES[name]
    fault = rng.choice(possible(venue, faults))
    victim = rng.choice([one for one in VICTIMS[fault] if one != "launcher" or not venue.is_alone])
    node = venue.nodes[0] if victim in ("scheduler", "launcher") else rng.choice(venue.nodes)
    phase, restarts = rng.choice(venue.phases), victim != "launcher" and rng.random() < 0.25
    restarts &= not venue.is_alone
    moment, is_far = rng.choice(MOMENTS), rng.random() < 0.5
    more, is_all = rng.choice(venue.more), rng.random() < 0.3
    delay_s, lot = rng.uniform(0, DELAY_MOST_S), rng.random()
    is_busy = rng.random() < 0.7 and fault in ("data reset", "gloo reset", "courier reset")
    if victim == "server" and venue.is_by_sites:
        victim = "site server" if node in venue.site and rng.random() < 0.5 else "global server"
    if venue.is_of_torch:
        victim = _in_torch(fault, victim)
    if venue.has_hosts and victim == "node":  # a lost host does not come back, and two are needed
        restarts = False
    if fault.endswith(RESET):
        moment, is_far = MOMENTS[0], False
    else:
        is_all, delay_s, lot = False, 0.0, 0.0
    of_reset = is_all, round(delay_s, 3), round(lot, 3), is_busy
    return Case(fault, victim, node, phase, restarts, moment, is_far, name, more, *of_reset)


def _in_torch(fault: str, victim: str) -> str:
    """An agent takes a server's place, and has all data's connections; a script has gloo's and ssh's alone."""
    if fault == "ssh reset":
        return "worker" if victim == "server" else victim
    is_agents = fault == "data reset" or (fault == "control reset" and victim == "worker")
    return "agent" if is_agents or victim == "server" else victim


class Interrupted(BaseException):
    """The campaign was told to end."""


STOP = threading.Event()


def pause(seconds: float) -> None:
    """Wait; Interrupted where the campaign is told to end."""
    if STOP.wait(seconds):
        raise Interrupted


def await_phase(staged: Staged, case: Case) -> None:
    """Until the job is there; in phase start, until the victim's process is."""
    job = staged.job

    def noted(kind: type[AnyEvent], more_than: int = 0) -> bool:
        return sum(isinstance(event, kind) for event in read_events(job.run_dir)) > more_than

    def is_there() -> bool:
        victim = "worker" if case.victim == "node" else case.victim
        if VENUES[case.venue].is_alone and victim == "worker":  # until then the ranks meet by torch's means
            victim = "agent"
        with suppress(ProcessLookupError):
            return staged.pid(victim, case.node) > 0
        return False

    def printed(text: str) -> bool:
        return any(line.endswith(text) for line in job.lines)

    came: dict[str, Callable[[], bool]] = {
        "start": is_there,
        "init": lambda: noted(ReadyEvent) or printed("joined"),
        "first": lambda: printed("push 0"),
        "cycle": lambda: printed("push 2"),
        "plan": lambda: noted(PlanEvent, STEP),
        "checkpoint": lambda: bool(checkpoints.cut_short(staged.checkpoints)),  # being written
        "end": lambda: printed("last step"),
    }
    has_come = came.get(case.phase, lambda: printed(f"{case.phase} {STEP}"))
    end_s = time.monotonic() + WAIT_S
    while not has_come():
        assert job.popen.poll() is None, f"it ended before the fault: {job.output[-300:]}"
        assert time.monotonic() < end_s, f"phase {case.phase} never came"
        pause(0.002 if case.phase == "checkpoint" else 0.03)


def strike(staged: Staged, case: Case, deadline_s: float) -> float:
    """Let the fault happen; when it did. ProcessLookupError where there is nothing that it could happen to any more."""
    if case.fault.endswith(RESET):
        return reset(staged, case)
    struck_s, short_s = time.monotonic(), case.moment * deadline_s
    if case.victim == "node":
        staged.cut(case.node, case.is_far)
        if case.fault == "reboot":
            staged.kill_node(case.node)
        if case.heals:
            pause(short_s)
            staged.heal(case.node, case.is_far)
        return struck_s
    pid = staged.pid(case.victim, case.node)
    if case.fault == "kill":
        os.kill(pid, signal.SIGKILL)
    elif case.fault == "disk full":
        subprocess.run(["prlimit", "--pid", str(pid), "--fsize=1"], check=True)
    elif case.fault == "memory full":
        size_bytes = psutil.Process(pid).memory_info().vms
        subprocess.run(["prlimit", "--pid", str(pid), f"--as={size_bytes + 100_000}"], check=True)
    else:
        os.kill(pid, signal.SIGSTOP)
        if case.fault == "pause" or case.victim == "launcher":
            pause(short_s if case.fault == "pause" else LONG * deadline_s)
            os.kill(pid, signal.SIGCONT)
    return struck_s


def reset(staged: Staged, case: Case) -> float:
    """Reset one or all of a process's connections of a kind; when that was."""
    kind = case.fault.removesuffix(RESET)
    if kind == "knocks":
        worker = staged.pid("worker", case.node)
        struck_s = time.monotonic()
        resets.reset_all_to(staged.control_port(worker), staged.namespace(case.node), KNOCKED_S)
        return struck_s
    if kind == "ssh":
        pid, namespaces, roles, port = staged.ssh_pid(case.victim, case.node), [staged.hub()], dict[int, str](), 0
    else:
        pid, namespaces, roles = staged.pid(case.victim, case.node), staged.namespaces(), staged.processes()
        port = staged.control_port(pid)
    end_s, busy_by_s, is_late = time.monotonic() + FOUND_S, 0.0, False
    while time.monotonic() < end_s or case.phase == "start":
        if case.phase == "start" and kind != "ssh":
            roles = staged.processes()  # more may have come
        found = resets.of_kind(kind, resets.established(namespaces), pid, roles, port)
        if found and is_late:
            struck_s = time.monotonic()
            busy = [one for one in found if one.queued_bytes]
            if case.is_busy and not busy and struck_s < busy_by_s and staged.job.popen.poll() is None:
                continue
            among = busy if case.is_busy and busy else found
            chosen = found if case.is_all else [among[int(case.lot * len(among))]]
            if sum(map(resets.reset, chosen)):
                return struck_s
        elif found:
            pause(case.delay_s)
            is_late, busy_by_s = True, time.monotonic() + BUSY_S
        else:
            if staged.job.popen.poll() is not None:
                raise ProcessLookupError("the job has ended")
            pause(0.01)
    raise ProcessLookupError(f"{case.victim} {case.node} has no such connection")


def judge(case: Case, code: int, output: str, failures: list[Failure]) -> tuple[str, bool]:
    """(what became of it, whether that is right). failures: as the launcher has noted them, of all attempts."""
    own = [line.removeprefix("nalb launch: ") for line in output.splitlines() if line.startswith("nalb launch: ")]
    if "AssertionError" in output or any(failure.cause is Cause.WRONG_SUM for failure in failures):
        return "a wrong sum", False
    if code == 0 and not failures:
        return "went on, ended well", case.heals or case.may_go_on
    if (case.fault, case.victim) == ("kill", "launcher"):
        return "everyone ended", code == -signal.SIGKILL and not own
    said = [line for line in own if render(failures[0]) in line] if failures else own
    what = render(failures[0]) if failures else said[0] if said else f"ended with {code}, without a word"
    if case.fault == "disk full":
        is_named = os.strerror(errno.EFBIG) in what
    elif (case.fault, case.victim) == ("memory full", "launcher"):  # its own words: no process of the job has failed
        is_named = "memory" in what
    elif case.victim == "node" or case.fault in (
        "data reset",
        "gloo reset",
    ):  # it is the other end that may be named, or both
        is_named = bool(failures)
    elif VENUES[case.venue].is_of_torch and case.victim in ("worker", "agent"):  # each tells of the other's end
        is_named = any(one.node == case.node and one.role in ("worker", "agent") for one in failures)
    else:
        of_coordinator = (Cause.COORDINATOR, Cause.NO_COORDINATOR) if case.victim == "scheduler" else ()
        is_named = any(one.is_of(case.victim, case.node) or one.cause in of_coordinator for one in failures)
        if (case.fault, case.victim) == ("stop", "scheduler"):  # who hears nothing from it has not failed
            is_named &= not any("exited with" in one.detail for one in failures)
    when = case.victim == "launcher" or all(failure.has_moment for failure in failures)
    is_well = not case.restarts or case.victim == "launcher" or (code == 0 and len(failures) == 1)
    what += ", restarted, ended well" if case.restarts and code == 0 else ""
    return what[:240], len(said) == 1 and is_named and when and is_well and not case.heals


def judge_alone(case: Case, code: int, lines: Sequence[str]) -> tuple[str, bool]:
    """The same of a job that nobody supervises: every rank that lives must say in its own output who failed."""
    if any("AssertionError" in line for line in lines):
        return "a wrong sum", False
    if code == 0:
        return "went on, ended well", case.heals or case.may_go_on
    is_killed = case.fault == "reboot" or (case.fault, case.victim) == ("kill", "worker")
    # a script that lacks memory or room raises an error of its own, and need not be told
    lacks = case.victim == "worker" and case.fault in ("memory full", "disk full")
    raises = lacks and any(line.startswith(f"[{case.node}]") and "Error: " in line for line in lines)
    places = [node for node in VENUES[case.venue].nodes if node != case.node or not (is_killed or raises)]
    others = [line for line in lines if not line.startswith(f"[{case.node}]")]
    has_left = is_killed and f"[{case.node}] last step" in lines
    if case.phase == "end" and (has_left or raises) and not any(map(is_of_error, others)):
        return "failed once all was summed, and the others ended well", True
    said = [[line for line in lines if line.startswith(f"[{node}]") and NALBS.search(line)] for node in places]
    names = [f"{role} {case.node}" for role in ("worker", "agent")]
    if case.victim == "scheduler":
        names.append("coordinator")
    is_free = case.victim == "node" or case.fault in ("data reset", "gloo reset")
    every = any if case.fault == "gloo reset" else all  # at both ends gloo raises an error of its own
    is_named = every(any(is_free or any(name in line for name in names) for line in own) for own in said)
    what = next((NALBS.sub("", line) for own in said for line in own), f"ended with {code}, without a word")
    return what[:240], is_named and not case.heals


def is_of_error(line: str) -> bool:
    """Whether a rank's line is of an error."""
    return bool(NALBS.search(line)) or "Traceback" in line


class TooLate(Exception):
    """The job had ended well before the fault could happen, as on a machine that is busy with other work."""


def run(case: Case, folder: Path, number: int, deadline_s: float, evidence: Path) -> tuple[str, bool, float]:
    """One job: what became of it, whether that is right, and seconds from the fault to the end of everyone.

    A job that is not right leaves `evidence`, a file: what it said, and the processes that were left.
    """
    for attempt in range(TRIES):
        with suppress(TooLate):
            return _run(case, folder, f"trust{os.getpid() % 10_000}x{number}t{attempt}", deadline_s, evidence)
    return f"the fault came too late {TRIES} times", False, 0.0


def _run(case: Case, folder: Path, name: str, deadline_s: float, evidence: Path) -> tuple[str, bool, float]:
    venue = VENUES[case.venue]
    flags = ["--deadline-s", str(deadline_s), "--verify-sums", *case.more]
    flags += ["--max-restarts", "1"] * case.restarts
    if venue.is_alone:
        flags = [f"NALB_DEADLINE_S={deadline_s:g}", "NALB_VERIFY_SUMS=1", *case.more]
    staged = Staged(venue, folder, name, flags)
    job, took_s = staged.job, 0.0
    try:
        await_phase(staged, case)
        struck_s, gone = time.monotonic(), ""
        try:
            struck_s = strike(staged, case, deadline_s)
        except (ProcessLookupError, FileNotFoundError, subprocess.CalledProcessError) as error:
            gone = str(error)
        if gone and case.phase != "end":
            assert job.end(END_LIMIT_S)[0] == 0, f"the victim was gone before the fault: {gone}"
            raise TooLate
        stays = {staged.pid("worker", case.node)} if is_to_wake(case) else set[int]()
        while job.popen.poll() is None and not (job.run_dir / "restart-1").exists():
            assert time.monotonic() - struck_s < END_LIMIT_S, "no end"
            pause(0.01)
            if stays and stays >= set(staged.processes()):
                break
        while job.popen.poll() is not None and job.processes():  # of a launcher that was killed
            assert time.monotonic() - struck_s < END_LIMIT_S, "processes were left"
            pause(0.01)
        took_s = time.monotonic() - struck_s
        for pid in stays:
            os.kill(pid, signal.SIGCONT)
        code, _ = job.end(END_LIMIT_S)
        failures = [one for path in (job.run_dir, job.run_dir / "restart-1") for one in all_noted_in(path)]
        outcome, right = (
            judge_alone(case, code, job.lines) if venue.is_alone else judge(case, code, job.output, failures)
        )
        if not right:
            evidence.write_text("\n".join([outcome, *job.lines]))
        staged.assert_nothing_left()
        return outcome, right, took_s
    except (AssertionError, subprocess.TimeoutExpired) as error:
        left = [f"{pid} {_command(pid)}" for pid in job.processes()]
        evidence.write_text("\n".join([*traceback.format_exception(error), *left, *job.lines]))
        return f"HUNG, or left something: {error!r:.300}", False, took_s
    finally:
        staged.destroy()


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").replace("\0", " ")
    return "(ended)"


def is_to_wake(case: Case) -> bool:
    """Whether nobody ends the process that was stopped: the others end, and it does so once it wakes."""
    return VENUES[case.venue].is_alone and (case.fault, case.victim) == ("stop", "worker")


def campaign(
    jobs: int,
    seed: int,
    path: Path,
    deadline_s: float,
    venues: Sequence[str] = MXNETS,
    faults: Sequence[str] = tuple(VICTIMS),
    side_by_side: int = 1,
) -> None:
    """Run what the record lacks."""
    with LineFile(path) as record, tempfile.TemporaryDirectory() as folder:
        done = {row["number"] for row in rows_of(path)}
        lock = threading.Lock()

        def one(number: int) -> None:
            if STOP.is_set():
                return
            name = random.Random(f"{seed} {number} venue").choice(venues)
            case = draw(random.Random(f"{seed} {number}"), name, faults)
            with suppress(Interrupted):
                evidence = path.with_name(f"{path.stem}-{number}.log")
                outcome, right, took_s = run(case, Path(folder), number, deadline_s, evidence)
                row = {"number": number, "deadline_s": deadline_s, **asdict(case)}
                is_late = case.is_in_time and not outcome.startswith("went on") and took_s > in_time_s(deadline_s)
                row |= {"right": right, "late": is_late, "took_s": round(took_s, 2), "outcome": outcome}
                with lock:
                    record.append(json.dumps(row).encode() + b"\n")
                    mark = "FAILED" if not right else "LATE" if is_late else "ok"
                    print(f"{number} {mark} | {case} | {took_s:.1f} s | {outcome}", flush=True)

        with ThreadPoolExecutor(side_by_side) as pool:
            waiting = [pool.submit(one, number) for number in sorted(set(range(jobs)) - done)]
            try:
                for future in waiting:
                    future.result()
            except BaseException:
                STOP.set()
                raise


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The jobs of a record; one whose line is torn runs again."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        with suppress(json.JSONDecodeError):
            rows.append(json.loads(line))
    return rows


def recorded(out: Path, deadline_s: float) -> list[dict[str, Any]]:
    """All records in the folder; InputError where one is of jobs with another deadline: one table cannot have both."""
    rows = []
    for path in sorted(out.glob("seed-*.jsonl")):
        rows += rows_of(path)
        if any(row.get("deadline_s") != deadline_s for row in rows):
            raise InputError(f"{path} has jobs with another --deadline-s than {deadline_s:g}: choose another --out")
    return rows


def table(rows: list[dict[str, Any]], by: Sequence[str] = ("venue", "fault", "victim")) -> str:
    """For people: a line for each of what the rows differ by."""
    lines = [
        f"| {' | '.join(by)} | jobs | went on | restarted | ended | median s | worst s |",
        f"|{'---|' * (len(by) + 6)}",
    ]
    for names in sorted({tuple(row[field] for field in by) for row in rows}):
        group = [row for row in rows if tuple(row[field] for field in by) == names]
        well = sum(row["outcome"].startswith("went on") for row in group)
        again = sum(", restarted" in row["outcome"] for row in group)
        took = [row["took_s"] for row in group if not row["outcome"].startswith("went on")]
        times = f"{statistics.median(took):.1f} | {max(took):.1f}" if took else "- | -"
        lines.append(f"| {' | '.join(names)} | {len(group)} | {well} | {again} | {len(took) - again} | {times} |")
    wrong, late = sum(not row["right"] for row in rows), sum(row["late"] for row in rows)
    ends = [row["took_s"] for row in rows if row["fault"] in AT_ONCE and not row["outcome"].startswith("went on")]
    if ends:
        lines.append(
            f"{len(ends)} ended by {', '.join(AT_ONCE)}: median {statistics.median(ends):.1f} s, worst {max(ends):.1f} s"
        )
    return "\n".join([*lines, f"{len(rows)} jobs, {wrong} not as they should be, {late} late"])


def _among(known: Sequence[str]) -> Callable[[str], list[str]]:
    """Parses names with semicolons between them."""

    def parse(words: str) -> list[str]:
        names = [word.strip() for word in words.split(";")]
        if unknown := [name for name in names if name not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]!r} is unknown: choose of {'; '.join(known)}")
        return names

    return parse


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description="random faults in running jobs")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadline-s", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("runs/faults"), help="the record's folder")
    parser.add_argument("--venues", type=_among(tuple(VENUES)), default=MXNETS, metavar="A;B", help="; between them")
    parser.add_argument(
        "--faults", type=_among(tuple(VICTIMS)), default=tuple(VICTIMS), metavar="A;B", help="; between them"
    )
    parser.add_argument("--parallel-jobs", type=int, default=1, metavar="N", help="jobs at a time")
    parser.add_argument("--by", default="venue,fault,victim", metavar="FIELDS", help="what the table's lines are")
    args = parser.parse_args()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # an interrupted campaign ends the jobs under way, and can go on later
        signal.signal(number, signal.default_int_handler)
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / f"seed-{args.seed}.jsonl"
    try:
        recorded(args.out, args.deadline_s)
        resets.require_resets()
        require(args.venues)
        campaign(args.jobs, args.seed, path, args.deadline_s, args.venues, args.faults, args.parallel_jobs)
        rows = recorded(args.out, args.deadline_s)
    except (InputError, MachineError) as error:
        parser.exit(error.exit_code, f"faults: {error}\n")
    print(table(rows, args.by.split(",")))
    return int(not all(row["right"] and not row["late"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
