"""`python tests/campaigns/soak.py --iterations N`: one long job on this machine's loopback; memory, files and times must not grow.

Looks at every process after a fifth of the iterations and at the end, and at the iterations' times in the run's own record.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from nalb.reporting.run_file import read_events  # noqa: E402 - the repository need not be installed
from tests.launch.conftest import STEPS, Launched  # noqa: E402

ROLES = ("scheduler", "server", "worker")


def look(pid: int) -> tuple[float, int, int]:
    """(resident MB, open files, threads) of a process."""
    process = psutil.Process(pid)
    return process.memory_info().rss / 1e6, process.num_fds(), process.num_threads()


def look_at_all(job: Launched, nodes: int) -> dict[str, tuple[float, int, int]]:
    """By process; the scheduler runs on the first node."""
    places = [(role, f"n{k}") for role in ROLES for k in range(1 if role == "scheduler" else nodes)]
    return {f"{role} {node}": look(job.pid(role, node)) for role, node in places}


def iterations(job: Launched) -> list[dict]:
    """The run's iterations so far."""
    return [event for event in read_events(job.run_dir) if event["event"] == "iteration"]


def main() -> int:
    """Run, look, print."""
    parser = argparse.ArgumentParser(description="one long job")
    parser.add_argument("--iterations", type=int, default=2000)
    parser.add_argument("--nodes", type=int, default=2)
    args = parser.parse_args()
    steps = args.iterations * 21 // 20  # some beyond those that are looked at
    with tempfile.TemporaryDirectory() as folder:
        job = Launched(["--local", str(args.nodes), "--", *STEPS, "--steps", str(steps)], Path(folder) / "run", [], {})
        seen, slots = [], []
        try:
            job.wait_for_event("iteration")
            for goal in (args.iterations // 5, args.iterations):
                while len(iterations(job)) < goal and job.popen.poll() is None:
                    time.sleep(0.3)
                seen.append(look_at_all(job, args.nodes))
                slots.append(iterations(job)[-1]["slots"])
            code, _ = job.end(60.0)
            took = [max(one["communication_s"].values()) for one in iterations(job)]
        finally:
            job.destroy()
    fifth = args.iterations // 5
    print(f"{len(took)} iterations, exit code {code}; {args.nodes} nodes")
    print("| process | MB after a fifth | MB at the end | files | threads |")
    for name, (early_mb, early_files, early_threads) in seen[0].items():
        late_mb, late_files, late_threads = seen[1][name]
        print(
            f"| {name} | {early_mb:.1f} | {late_mb:.1f} | {early_files} to {late_files} | {early_threads} to {late_threads} |"
        )
    print(f"slots on all servers: {slots[0]} after a fifth, {slots[1]} at the end")
    for name, part in (("second", took[fifth : 2 * fifth]), ("last", took[-fifth:])):
        median_ms, slow_ms = 1000 * statistics.median(part), 1000 * sorted(part)[len(part) * 99 // 100]
        print(f"{name} fifth: median {median_ms:.2f} ms, 99 % {slow_ms:.2f} ms")
    return code


if __name__ == "__main__":
    sys.exit(main())
