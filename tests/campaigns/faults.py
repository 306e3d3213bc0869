"""`python tests/campaigns/faults.py --jobs N --seed S --out DIR`: jobs in an emulated network, each with one fault drawn by lot.

Each job sums 8 MB on two nodes, checks every sum itself and by --verify-sums, and must end as the fault lets it: well, where the
fault was short or the job may restart; else everywhere, with one line that names who failed, and when. Nothing may be left.
Needs root. DIR/seed-S.jsonl gets a line per job, and jobs that have one are not run again. Prints a line per job, then a table
of all records in DIR, and how long it took everyone to end; exit code 1 where any job did otherwise.
"""

import argparse
import errno
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nalb.checkpoints import folder as checkpoints  # noqa: E402 - the repository need not be installed
from nalb.errors import InputError  # noqa: E402
from nalb.events import AnyEvent, PlanEvent, ReadyEvent  # noqa: E402
from nalb.failures import Cause, Failure, render  # noqa: E402
from nalb.process.line_file import LineFile  # noqa: E402
from nalb.reporting.run_file import read_events  # noqa: E402
from netem.build import BRIDGE, take_down  # noqa: E402
from netem.namespaces import hub_namespace, standing  # noqa: E402
from netem.network_file import load_network  # noqa: E402
from netem.wires import port_name  # noqa: E402
from tests.failures import all_noted_in  # noqa: E402
from tests.launch.conftest import MARK, Launched, processes_with  # noqa: E402

NETWORK = 'name = "{}"\n[defaults]\nup_mbps = 300\ndown_mbps = 300\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n'
WORKER = [sys.executable, str(ROOT / "tests/launch/phases.py")]
MOMENTS = (0.1, 0.4)  # of the deadline: faults that heal, while the silence that is allowed is not over
LONG = 0.7  # of the deadline, likewise: a launcher that is stopped for longer than anyone else may be
STARTUP_S = 60.0
WAIT_S = 90.0  # for a phase to come, on a busy machine
END_LIMIT_S = 60.0
PHASES = ("start", "init", "plan", "forward", "push", "pull", "checkpoint", "end")
STEP = 5  # in which the phases are looked for: all is measured by then
ANYONE = ("worker", "server", "scheduler", "launcher")
VICTIMS = {
    "kill": ANYONE,
    "pause": ANYONE,
    "stop": ANYONE,
    "link lost a moment": ("node",),
    "link lost": ("node",),
    "reboot": ("node",),
    "disk full": ("worker", "scheduler", "launcher"),
    "memory full": ANYONE,
}
AT_ONCE = ("kill", "stop", "link lost", "reboot")  # what is full is noticed when something is written or asked for


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

    @property
    def heals(self) -> bool:
        """Whether the job must go on."""
        return self.fault in ("pause", "link lost a moment") or (self.fault, self.victim) == ("stop", "launcher")


def draw(rng: random.Random) -> Case:
    """By lot: the fault, then whom and when. Where there is one of a kind, it is on node a."""
    fault = rng.choice(list(VICTIMS))
    victim = rng.choice(VICTIMS[fault])
    node = "a" if victim in ("scheduler", "launcher") else rng.choice("ab")
    phase, restarts = rng.choice(PHASES), victim != "launcher" and rng.random() < 0.25
    return Case(fault, victim, node, phase, restarts, rng.choice(MOMENTS), rng.random() < 0.5)


def await_phase(job: Launched, case: Case) -> None:
    """Until the job is there; in phase start, until the victim's process is."""
    place = job.run_dir / "checkpoints"

    def noted(kind: type[AnyEvent], more_than: int = 0) -> bool:
        return sum(isinstance(event, kind) for event in read_events(job.run_dir)) > more_than

    def is_there() -> bool:
        with suppress(ProcessLookupError):
            return (
                case.victim == "launcher" or job.pid("worker" if case.victim == "node" else case.victim, case.node) > 0
            )
        return False

    def printed(text: str) -> bool:
        return any(line.endswith(text) for line in job.lines)

    came: dict[str, Callable[[], bool]] = {
        "start": is_there,
        "init": lambda: noted(ReadyEvent),
        "plan": lambda: noted(PlanEvent, STEP),
        "checkpoint": lambda: bool(checkpoints.cut_short(place)),  # being written
        "end": lambda: printed("last step"),
    }
    has_come = came.get(case.phase, lambda: printed(f"{case.phase} {STEP}"))
    end_s = time.monotonic() + WAIT_S
    while not has_come():
        assert job.popen.poll() is None, f"it ended before the fault: {job.output[-300:]}"
        assert time.monotonic() < end_s, f"phase {case.phase} never came"
        time.sleep(0.002)


def strike(job: Launched, case: Case, network: Path, deadline_s: float) -> None:
    """Let the fault happen."""
    short_s = case.moment * deadline_s
    if case.victim == "node":
        loaded = load_network(network)
        link = ["ip", "-n", hub_namespace(loaded.name), "link", "set", port_name(loaded, case.node)]
        lose, heal = (["nomaster"], ["master", BRIDGE]) if case.is_far else (["down"], ["up"])
        subprocess.run([*link, *lose], check=True)
        if case.fault == "reboot":
            for pid, environment in processes_with(f"{MARK}={job.token}").items():
                if environment.get("NALB_NODE") == case.node:
                    os.kill(pid, signal.SIGKILL)
        if case.heals:
            time.sleep(short_s)
            subprocess.run([*link, *heal], check=True)
        return
    pid = job.popen.pid if case.victim == "launcher" else job.pid(case.victim, case.node)
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
            time.sleep(short_s if case.fault == "pause" else LONG * deadline_s)
            os.kill(pid, signal.SIGCONT)


def judge(case: Case, code: int, output: str, failures: list[Failure]) -> tuple[str, bool]:
    """(what became of it, whether that is right). failures: as the launcher has noted them, of all attempts."""
    own = [line.removeprefix("nalb launch: ") for line in output.splitlines() if line.startswith("nalb launch: ")]
    if "AssertionError" in output or any(failure.cause is Cause.WRONG_SUM for failure in failures):
        return "a wrong sum", False
    if code == 0 and not failures:
        # what is needed no more is not missed; a fault of the last moment may come too late
        return "went on, ended well", case.heals or case.phase == "end" or case.fault in ("memory full", "disk full")
    if (case.fault, case.victim) == ("kill", "launcher"):
        return "everyone ended", code == -signal.SIGKILL and not own
    said = [line for line in own if render(failures[0]) in line] if failures else own
    what = render(failures[0]) if failures else said[0] if said else f"ended with {code}, without a word"
    if case.fault == "disk full":
        is_named = os.strerror(errno.EFBIG) in what
    elif case.victim == "node":  # from the other side of a link, it is the other node that is lost
        is_named = bool(failures)
    else:
        of_coordinator = (Cause.COORDINATOR, Cause.NO_COORDINATOR) if case.victim == "scheduler" else ()
        is_named = any(one.is_of(case.victim, case.node) or one.cause in of_coordinator for one in failures)
    when = case.victim == "launcher" or all(failure.has_moment for failure in failures)
    is_well = not case.restarts or case.victim == "launcher" or (code == 0 and len(failures) == 1)
    what += ", restarted, ended well" if case.restarts and code == 0 else ""
    return what[:240], len(said) == 1 and is_named and when and is_well and not case.heals


def run(case: Case, folder: Path, number: int, deadline_s: float) -> tuple[str, bool, float]:
    """One job: what became of it, whether that is right, and seconds from the fault to the end of everyone."""
    name = f"trust{os.getpid() % 10_000}x{number}"
    network = folder / f"{name}.toml"
    network.write_text(NETWORK.format(name))
    flags = ["--network", str(network), "--deadline-s", str(deadline_s), "--verify-sums"]
    flags += ["--max-restarts", "1"] * case.restarts
    job = Launched([*flags, "--", *WORKER], folder / name, [], {"NALB_STARTUP_S": str(STARTUP_S)})
    struck_s = took_s = 0.0
    try:
        await_phase(job, case)
        struck_s = time.monotonic()
        try:
            strike(job, case, network, deadline_s)
        except (ProcessLookupError, FileNotFoundError, subprocess.CalledProcessError):
            assert case.phase == "end", "the victim was gone before the fault"
        while job.popen.poll() is None and not (job.run_dir / "restart-1").exists():
            assert time.monotonic() - struck_s < END_LIMIT_S, "no end"
            time.sleep(0.01)
        while job.popen.poll() is not None and job.processes():  # of a launcher that was killed
            assert time.monotonic() - struck_s < END_LIMIT_S, "processes were left"
            time.sleep(0.01)
        took_s = time.monotonic() - struck_s
        code, _ = job.end(END_LIMIT_S)
        failures = [one for path in (job.run_dir, job.run_dir / "restart-1") for one in all_noted_in(path)]
        outcome, right = judge(case, code, job.output, failures)
        job.assert_nothing_left()
        end_s = time.monotonic() + 15  # after a killed launcher the network's guardian takes it down
        while standing(name):
            assert time.monotonic() < end_s, "the network was left"
            time.sleep(0.05)
        return outcome, right, took_s
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return f"HUNG, or left something: {error!r:.300}", False, took_s
    finally:
        job.destroy()
        take_down(name)


def campaign(jobs: int, seed: int, path: Path, deadline_s: float) -> None:
    """Run what the record lacks."""
    with LineFile(path) as record, tempfile.TemporaryDirectory() as folder:
        done = {row["number"] for row in rows_of(path)}
        for number in sorted(set(range(jobs)) - done):
            case = draw(random.Random(f"{seed} {number}"))
            outcome, right, took_s = run(case, Path(folder), number, deadline_s)
            row = {"number": number, "deadline_s": deadline_s, **asdict(case)}
            row |= {"right": right, "took_s": round(took_s, 2), "outcome": outcome}
            record.append(json.dumps(row).encode() + b"\n")
            mark = "ok" if right else "FAILED"
            print(f"{number} {mark} | {case} | {took_s:.1f} s | {outcome}", flush=True)


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


def table(rows: list[dict[str, Any]]) -> str:
    """By fault and victim, for people."""
    lines = [
        "| fault | of | jobs | went on | restarted | ended | median s | worst s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for fault, victim in sorted({(row["fault"], row["victim"]) for row in rows}):
        group = [row for row in rows if (row["fault"], row["victim"]) == (fault, victim)]
        well = sum(row["outcome"].startswith("went on") for row in group)
        again = sum(", restarted" in row["outcome"] for row in group)
        took = [row["took_s"] for row in group if not row["outcome"].startswith("went on")]
        times = f"{statistics.median(took):.1f} | {max(took):.1f}" if took else "- | -"
        lines.append(f"| {fault} | {victim} | {len(group)} | {well} | {again} | {len(took) - again} | {times} |")
    wrong = sum(not row["right"] for row in rows)
    ends = [row["took_s"] for row in rows if row["fault"] in AT_ONCE and not row["outcome"].startswith("went on")]
    if ends:
        lines.append(
            f"{len(ends)} ended by {', '.join(AT_ONCE)}: median {statistics.median(ends):.1f} s, worst {max(ends):.1f} s"
        )
    return "\n".join([*lines, f"{len(rows)} jobs, {wrong} not as they should be"])


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description="random faults in running jobs")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--deadline-s", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("runs/faults"), help="the record's folder")
    args = parser.parse_args()
    for number in (
        signal.SIGTERM,
        signal.SIGINT,
    ):  # an interrupted campaign ends the job under way, and can go on later
        signal.signal(number, signal.default_int_handler)
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        recorded(args.out, args.deadline_s)
        campaign(args.jobs, args.seed, args.out / f"seed-{args.seed}.jsonl", args.deadline_s)
        rows = recorded(args.out, args.deadline_s)
    except InputError as error:
        parser.exit(error.exit_code, f"faults: {error}\n")
    print(table(rows))
    return int(not all(row["right"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
