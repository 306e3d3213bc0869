"""Real trainings for figures on batch sizes, made once: what has a finished run directory is read, not run again."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from nalb.errors import JobError
from nalb.experiments.runs import clear
from nalb.launch.processes import die_with_parent
from nalb.reporting.batching_file import BatchingFile, read_batchings


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
            print(line, end="", flush=True)
            lines.append(line)
    if process.returncode:
        raise JobError(f"nalb {' '.join(words[:3])} failed: see above; the same command goes on from here")
    return lines


def compare_batchings(out: Path, network: Path | str, batchings: str, iterations: int, *more: str) -> BatchingFile:
    """`nalb compare --batching`, run if OUT is not finished. batchings: comma-separated; more: further flags."""
    if not (out / "batching.json").exists():
        clear(out, batchings.split(","))
        job = ["compare", "--network", str(network), "--batching", batchings, "--iterations", str(iterations)]
        nalb([*job, *more, "--out", str(out)])
    return read_batchings(out)


def batch_events(run_dir: Path) -> list[dict[str, Any]]:
    """What the coordinator noted of each iteration of one training; `workers` are node names in the order of ranks."""
    lines = (run_dir / "samples.jsonl").read_bytes().splitlines()
    return [event for event in map(msgspec.json.decode, lines) if event["event"] == "batch"]
