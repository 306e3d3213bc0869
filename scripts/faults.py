"""`python scripts/faults.py --jobs N --seed S`: jobs in an emulated network, each with one fault drawn by lot.

Each job sums small arrays on two nodes, checks every sum itself and by --verify-sums, and must end as the fault lets it: well,
where it was short; else everywhere, with one line that names who failed. Nothing may be left. Needs root. Prints a line per job
and a table; exit code 1 where any job did otherwise.
"""

import argparse
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from netem.build import port_name, take_down  # noqa: E402 - the repository need not be installed
from netem.namespaces import hub_namespace, standing  # noqa: E402
from netem.network_file import load_network  # noqa: E402
from tests.launch.conftest import STEPS, Launched  # noqa: E402

NETWORK = 'name = "{}"\n[defaults]\nup_mbps = 300\ndown_mbps = 300\n[[nodes]]\nname = "a"\n[[nodes]]\nname = "b"\n'
DEADLINE_S = 3.0  # a third of the default: the campaign is shorter, and what is found holds for longer ones
SHORT_S, LONG_S = 1.0, 6.0
STARTUP_S = 25.0
END_LIMIT_S = 60.0
PHASES = ("start", "ready", "plan", "push", "end")
ANYONE = ("worker", "server", "scheduler", "launcher")
VICTIMS = {
    "kill": ANYONE,
    "pause": ANYONE,
    "stop": ANYONE,
    "link lost a moment": ("node",),
    "link lost": ("node",),
    "disk full": ("scheduler", "launcher"),
    "memory full": ("worker", "server", "scheduler"),
}


@dataclass(frozen=True)
class Case:
    """One job's fault."""

    fault: str
    victim: str
    phase: str
    node: str

    @property
    def heals(self) -> bool:
        """Whether the job must go on."""
        return self.fault in ("pause", "link lost a moment") or (self.fault, self.victim) == ("stop", "launcher")

    @property
    def name(self) -> str:
        """As messages have it."""
        return f"{self.victim} {self.node}"


def draw(rng: random.Random) -> Case:
    """By lot: the fault, then whom and when. Where there is one of a kind, it is on node a."""
    fault = rng.choice(list(VICTIMS))
    victim = rng.choice(VICTIMS[fault])
    phases = PHASES if victim != "node" else PHASES[1:-1]  # links stand before the job and after it
    node = "a" if victim in ("scheduler", "launcher") else rng.choice("ab")
    return Case(fault, victim, rng.choice(phases), node)


def await_phase(job: Launched, case: Case, rng: random.Random) -> None:
    """Until the job is there; then a moment by lot, so that the fault falls anywhere in it."""
    if case.phase == "start":
        end_s = time.monotonic() + 30
        while case.victim != "launcher" and time.monotonic() < end_s:
            with suppress(StopIteration):
                job.pid(case.victim, case.node)
                break
    elif case.phase in ("ready", "plan"):
        job.wait_for_event(case.phase)
    else:
        job.wait_for("step 3" if case.phase == "push" else "last step")
    time.sleep(rng.uniform(0, 0.3) if case.phase in ("start", "push") else 0)


def strike(job: Launched, case: Case, network: Path) -> None:
    """Let the fault happen."""
    if case.victim == "node":
        loaded = load_network(network)
        link = ["ip", "-n", hub_namespace(loaded.name), "link", "set", port_name(loaded, case.node)]
        subprocess.run([*link, "down"], check=True)
        if case.heals:
            time.sleep(SHORT_S)
            subprocess.run([*link, "up"], check=True)
        return
    pid = job.popen.pid if case.victim == "launcher" else job.pid(case.victim, case.node)
    if case.fault == "kill":
        os.kill(pid, signal.SIGKILL)
    elif case.fault == "disk full":
        subprocess.run(["prlimit", "--pid", str(pid), "--fsize=1"], check=True)
    elif case.fault == "memory full":
        size_kb = int(re.search(r"VmSize:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1])
        subprocess.run(["prlimit", "--pid", str(pid), f"--as={size_kb * 1024 + 100_000}"], check=True)
    else:
        os.kill(pid, signal.SIGSTOP)
        if case.fault == "pause" or case.victim == "launcher":
            time.sleep(SHORT_S if case.fault == "pause" else LONG_S)
            os.kill(pid, signal.SIGCONT)


def judge(job: Launched, case: Case, code: int) -> tuple[str, bool]:
    """(what became of it, whether that is right)."""
    own = [line for line in job.lines if line.startswith("nalb launch: ") and "all processes ended well" not in line]
    if "AssertionError" in job.output or "wrong sum" in job.output:
        return "a wrong sum", False
    if code == 0:
        # memory that nobody asks for is not missed; a fault of the last moment may come too late
        return "went on and ended well", case.heals or case.phase == "end" or case.fault in ("memory full", "disk full")
    if (case.fault, case.victim) == ("kill", "launcher"):
        return "everyone ended", code == -signal.SIGKILL
    said = own[0].removeprefix("nalb launch: ") if own else "nothing"
    names = [case.name, "coordinator"] if case.victim == "scheduler" else [case.name]
    if case.victim == "node":
        names = ["worker b", "server b", "coordinator"]  # the scheduler is on a: from there, b is lost either way
    if case.fault == "disk full":
        names = ["File too large"]
    right = not case.heals and len(own) == 1 and any(name in said for name in names)
    return f"ended, {code}: {said.split('; ')[0][:150]}", right


def run(case: Case, folder: Path, number: int, rng: random.Random) -> tuple[str, bool, float]:
    """One job: what became of it, whether that is right, and seconds from the fault to its end."""
    name = f"trust{os.getpid() % 10_000}x{number}"
    network = folder / f"{name}.toml"
    network.write_text(NETWORK.format(name))
    arguments = [
        "--network",
        str(network),
        "--deadline-s",
        str(DEADLINE_S),
        "--verify-sums",
        "--",
        *STEPS,
        "--steps",
        "250",
    ]
    job = Launched(arguments, folder / name, [], {"NALB_STARTUP_S": str(STARTUP_S)})
    try:
        await_phase(job, case, rng)
        try:
            strike(job, case, network)
        except (StopIteration, ProcessLookupError, FileNotFoundError, subprocess.CalledProcessError):
            if case.phase != "end":
                raise  # at the end it may be gone already
        struck_s = time.monotonic()
        code, _ = job.end(END_LIMIT_S)
        took_s = time.monotonic() - struck_s
        outcome, right = judge(job, case, code)
        job.assert_nothing_left()
        end_s = time.monotonic() + 15  # after a killed launcher the network's guardian takes it down
        while standing(name) and time.monotonic() < end_s:
            time.sleep(0.05)
        return (outcome, right, took_s) if not standing(name) else ("the network was left", False, took_s)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        return f"HUNG or left something: {error!r:.150}", False, END_LIMIT_S
    finally:
        job.destroy()
        take_down(name)


def main() -> int:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(description="random faults in running jobs")
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="begin with this job of the seed")
    args = parser.parse_args()
    rows: dict[tuple[str, str], list[float]] = {}
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(args.first, args.first + args.jobs):
            rng = random.Random(f"{args.seed} {number}")
            case = draw(rng)
            outcome, right, took_s = run(case, Path(folder), number, rng)
            failed += not right
            rows.setdefault((case.fault, case.victim), []).append(took_s)
            mark = "ok" if right else "FAILED"
            print(
                f"{number} {mark} | {case.fault} | {case.name} | {case.phase} | {took_s:.1f} s | {outcome}", flush=True
            )
    print("| fault | of | jobs | median s to the end | worst s |")
    for (fault, victim), took in sorted(rows.items()):
        print(f"| {fault} | {victim} | {len(took)} | {statistics.median(took):.1f} | {max(took):.1f} |")
    print(f"{args.jobs} jobs, {failed} not as they should be")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
