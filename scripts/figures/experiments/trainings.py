"""Real trainings for figures on batch sizes and tokens, made once: what has a finished run directory is read, not run again."""

import os
import subprocess
import sys
from pathlib import Path

from experiments.runs import another_run, clear
from nalb.errors import JobError
from nalb.events import BatchEvent
from nalb.launch.processes import die_with_parent
from nalb.launch.supervisor import print_line
from nalb.reporting.batching_file import BatchingFile, read_batchings
from nalb.reporting.parallel_file import ParallelFile, read_parallels
from nalb.reporting.run_file import read_events
from netem.network_file import find_network, load_network


def nalb(words: list[str]) -> list[str]:
    """Run the command, its output shown as it comes; returns the lines. JobError where it fails."""
    lines = []
    with subprocess.Popen(
        [sys.executable, "-m", "nalb.cli.main", *words],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=die_with_parent(os.getpid()),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print_line(line.rstrip("\n"))
            lines.append(line)
    if process.returncode:
        raise JobError(f"nalb {' '.join(words[:3])} failed: see above; the same command goes on from here")
    return lines


def compare_batchings(
    out: Path, network: Path | str, batchings: str, iterations: int, model: str, total: int, *more: str
) -> BatchingFile:
    """`nalb compare --train MODEL --batching`, run if OUT is not finished; InputError where it holds another run.

    batchings: comma-separated; total: samples of an iteration; more: further flags.
    """
    if not (out / "batching.json").exists():
        clear(out, batchings.split(","))
        job = ["compare", "--network", str(network), "--train", model, "--batch-total", str(total)]
        nalb([*job, "--batching", batchings, "--iterations", str(iterations), *more, "--out", str(out)])
    run = read_batchings(out)
    has = (run.network, run.workload, run.total, list(run.batchings))
    asked = (load_network(find_network(str(network))).name, f"train {model}", total, batchings.split(","))
    beyond = {len(one.sizes) - iterations for one in run.batchings.values() if one.together}
    if has != asked or not beyond <= {0, 1}:  # one more is trained, whose report may come after the end
        raise another_run(out, f"{run.workload} on {run.network}")
    return run


def compare_parallels(
    out: Path, network: Path | str, ways: str, iterations: int, total: int, *more: str
) -> ParallelFile:
    """`nalb compare --train vgg --parallel`, run if OUT is not finished; InputError where it holds another run.

    ways: comma-separated; total: samples of an iteration; more: further flags.
    """
    if not (out / "parallel.json").exists():
        clear(out, ways.split(","))
        job = ["compare", "--network", str(network), "--train", "vgg", "--batch-total", str(total)]
        nalb([*job, "--parallel", ways, "--iterations", str(iterations), *more, "--out", str(out)])
    run = read_parallels(out)
    has = (run.network, list(run.ways), {(one.total, len(one.iteration_s)) for one in run.ways.values()})
    if has != (load_network(find_network(str(network))).name, ways.split(","), {(total, iterations)}):
        raise another_run(out, f"{run.workload} on {run.network}")
    return run


def batch_events(run_dir: Path) -> list[BatchEvent]:
    """What the coordinator noted of each iteration of one training."""
    return [event for event in read_events(run_dir) if isinstance(event, BatchEvent)]
