"""Runs real trainings for figures on batch sizes and tokens; one whose directory is finished is read and not run again."""

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
    """Run nalb with these words and show its output as it comes; return the lines. Raises JobError if it fails."""
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
    """Run `nalb compare --train MODEL --batching` unless OUT is finished; return the results.

    batchings: comma-separated; total: samples of an iteration; more: further flags. Raises InputError where OUT holds
    another run.
    """
    if not (out / "batching.json").exists():
        clear(out, batchings.split(","))
        job = ["compare", "--network", str(network), "--train", model, "--batch-total", str(total)]
        nalb([*job, "--batching", batchings, "--iterations", str(iterations), *more, "--out", str(out)])
    run = read_batchings(out)
    has = (run.network, run.workload, run.total, list(run.batchings))
    asked = (load_network(find_network(str(network))).name, f"train {model}", total, batchings.split(","))
    beyond = {len(one.sizes) - iterations for one in run.batchings.values() if one.together}
    if has != asked or not beyond <= {0, 1}:  # one more iteration is trained, and its report may come too late
        raise another_run(out, f"{run.workload} on {run.network}")
    return run


def compare_parallels(
    out: Path, network: Path | str, ways: str, iterations: int, total: int, *more: str
) -> ParallelFile:
    """Run `nalb compare --train vgg --parallel` unless OUT is finished; return the results.

    ways: comma-separated; total: samples of an iteration; more: further flags. Raises InputError where OUT holds another run.
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
    """The coordinator's batch events of one training, one for each iteration."""
    return [event for event in read_events(run_dir) if isinstance(event, BatchEvent)]
