"""`python tests/campaigns/soak.py --iterations N [--framework torch]`: one long job on loopback; memory, files, times stay flat.

Looks at every process after a fifth of the iterations, in the middle and at the end, and at the iterations' times in the run's
own record. PyTorch's job goes by the plane alone. The exit code is 1 where a process grows beyond `most_growth_mb`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nalb.events import IterationEvent  # noqa: E402 - the repository need not be installed
from nalb.live.tail import RunTail  # noqa: E402
from tests.campaigns.venues import role_in_torch  # noqa: E402
from tests.launch.conftest import MARK, STEPS, Launched, processes_with  # noqa: E402

ROLES = ("scheduler", "server", "worker")
TORCH_STEPS = str(ROOT / "tests/launch/torch_steps.py")
LOOK_S = 0.3
BEYOND = 30
SLOPE_BYTES = 1000  # an iteration: 1 GB in a million iterations, which are a day at 12 a second
NOISE_MB = 4.0  # growth without a slope: memory that is touched late, and what the allocator keeps
STARTUP_S, RANK_STARTS_S = 90.0, 8.0  # a busy machine starts many ranks slowly


def look(pid: int) -> tuple[float, int, int]:
    """(resident MB, open files, threads) of a process."""
    process = psutil.Process(pid)
    return process.memory_info().rss / 1e6, process.num_fds(), process.num_threads()


def pss_mb(pid: int) -> float:
    """A process's memory, of shared pages its part; 0 where it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1000
    return 0.0


def look_at_all(job: Launched, nodes: int, is_torch: bool) -> dict[str, tuple[float, int, int]]:
    """By process; the scheduler runs on the first node."""
    if is_torch:
        found = processes_with(f"{MARK}={job.token}")
        roles = {pid: role_in_torch(pid, TORCH_STEPS) for pid in found}
        pids = {f"{roles[pid]} {found[pid]['NALB_NODE']}": pid for pid in found if roles[pid]}
    else:
        places = [(role, f"n{k}") for role in ROLES for k in range(1 if role == "scheduler" else nodes)]
        pids = {f"{role} {node}": job.pid(role, node) for role, node in places}
    return {name: look(pids[name]) for name in sorted(pids)}


def most_growth_mb(iterations: int) -> float:
    """The most that a process may grow over so many iterations."""
    return NOISE_MB + SLOPE_BYTES * iterations / 1e6


def grown(early_mb: dict[str, float], late_mb: dict[str, float], iterations: int) -> list[str]:
    """A line for each process that grew more than that."""
    most_mb = most_growth_mb(iterations)
    growth = {name: late_mb[name] - mb for name, mb in early_mb.items()}
    return [
        f"{name} grew {mb:.1f} MB in {iterations} iterations, more than {most_mb:.1f}"
        for name, mb in growth.items()
        if mb > most_mb
    ]


def main() -> int:
    """Run, look, print."""
    parser = argparse.ArgumentParser(description="one long job")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--framework", choices=("mxnet", "torch"), default="mxnet")
    args = parser.parse_args()
    is_torch = args.framework == "torch"
    steps = str(args.iterations * 21 // 20 + BEYOND)  # some beyond those that are looked at
    command = (
        ["--scheme", "average", "--", sys.executable, TORCH_STEPS, steps]
        if is_torch
        else ["--", *STEPS, "--steps", steps]
    )
    with tempfile.TemporaryDirectory() as folder:
        own = {
            "TORCHINDUCTOR_CACHE_DIR": f"{folder}/inductor",
            "NALB_STARTUP_S": str(STARTUP_S + args.nodes * RANK_STARTS_S),
        }
        job = Launched(["--local", str(args.nodes), *command], Path(folder) / "run", [], own)
        seen, took, slots, all_mb = [], list[float](), list[int](), 0.0
        try:
            while not job.run_dir.is_dir() and job.popen.poll() is None:
                time.sleep(LOOK_S)
            tail = RunTail(job.run_dir)
            for goal in (args.iterations // 5, args.iterations // 2, args.iterations):
                while len(took) < goal and job.popen.poll() is None:
                    time.sleep(LOOK_S)
                    events = [event for event in tail.fresh() if isinstance(event, IterationEvent)]
                    took += [max(one.communication_s.values()) for one in events]
                    slots += [one.slots or 0 for one in events]
                assert job.popen.poll() is None, job.output[-2000:]
                seen.append((look_at_all(job, args.nodes, is_torch), slots[-1]))
            all_mb = sum(map(pss_mb, job.processes()))
            code, _ = job.end(60.0)
            ended = {line.partition("parameters ")[2] for line in job.lines if "parameters " in line}
        finally:
            job.destroy()
    fifth = args.iterations // 5
    print(f"{len(took)} iterations, exit code {code}; {args.nodes} nodes")
    print("| process | MB after a fifth | MB in the middle | MB at the end | files | threads |")
    for name, (_, files, threads) in seen[0][0].items():
        megabytes = " | ".join(f"{processes[name][0]:.1f}" for processes, _ in seen)
        _, late_files, late_threads = seen[-1][0][name]
        print(f"| {name} | {megabytes} | {files} to {late_files} | {threads} to {late_threads} |")
    print(f"all processes together: {all_mb:.0f} MB, with shared pages counted once")
    if is_torch:
        print(f"sums of parameters at the end, over all ranks: {len(ended)} different")
    print(f"slots on all servers: {seen[0][1]} after a fifth, {seen[-1][1]} at the end")
    for name, part in (
        ("second", took[fifth : 2 * fifth]),
        ("third", took[2 * fifth : 3 * fifth]),
        ("last", took[-fifth:]),
    ):
        median_ms, slow_ms = 1000 * statistics.median(part), 1000 * sorted(part)[len(part) * 99 // 100]
        print(f"{name} fifth: median {median_ms:.2f} ms, 99 % {slow_ms:.2f} ms")
    early_mb, late_mb = ({name: mb for name, (mb, _, _) in seen[k][0].items()} for k in (0, -1))
    leaks = grown(early_mb, late_mb, args.iterations - fifth)
    print("\n".join(leaks or ["no process grew beyond noise"]))
    return int(bool(code) or len(ended) > 1 or bool(leaks))


if __name__ == "__main__":
    sys.exit(main())
