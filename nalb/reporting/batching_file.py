"""Reads and writes batching.json, the result of a comparison of batchings, and makes its table for terminals."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from rich.markup import escape
from rich.table import Table

from nalb.events import BatchEvent
from nalb.reporting.run_file import read_json, write_json


class BatchingResult(msgspec.Struct, forbid_unknown_fields=True):
    """The training under one batching; rows are iterations, columns are workers by rank."""

    together: bool  # true: workers wait for each other in every iteration; false: each goes on by itself
    sizes: list[list[int]]
    compute_s: list[list[float]]  # the time from the batch to the last gradient, without communication
    period_s: list[list[float]]  # the time from the batch before to this one; 0 for the first
    wait_s: list[list[float]]  # the part of the period spent waiting for the batch size
    loss: float | None  # the loss of rank 0's last epoch
    accuracy: float | None  # the accuracy after that epoch
    curve: list[tuple[int, float]] = []  # each tested accuracy, behind the number of updates made before the test

    def updates_to(self, accuracy: float) -> int | None:
        """The number of updates after which a test first reached the accuracy; None where none did."""
        return next((updates for updates, reached in self.curve if reached >= accuracy), None)

    def seconds_of(self, updates: int) -> float:
        """The time from rank 0's first batch to its last gradient of the first `updates` updates, tests between them included.

        Rank 0 makes the tests. What it waits for parameters between its last batch and that gradient is not in this time.
        """
        return sum(period_s[0] for period_s in self.period_s[:updates]) + self.compute_s[updates - 1][0]

    def seconds_to(self, accuracy: float) -> float | None:
        """The `seconds_of` the updates after which a test first reached the accuracy; None where none did."""
        updates = self.updates_to(accuracy)
        return None if updates is None else self.seconds_of(updates)

    def add(self, event: BatchEvent) -> None:
        """Add the event of one iteration."""
        self.sizes.append(event.sizes)
        self.compute_s.append(event.compute_s)
        self.period_s.append(event.period_s)
        self.wait_s.append(event.wait_s)

    def _later(self, rows: list[list[float]] | list[list[int]]) -> npt.NDArray[np.float64]:
        """The later half of the rows, in which the batch sizes have settled."""
        return np.array(rows[len(rows) // 2 :], dtype=np.float64)

    @property
    def iteration_s(self) -> float:
        """Seconds per iteration, from the later half of the iterations.

        Where workers wait for each other this is the median over iterations of the median worker's period. The slowest worker's
        period would count a pause twice: the pause delays its own worker, and all others an iteration later. Where workers go
        on by themselves this is the sum of the batch sizes over the sum of the workers' speeds.
        """
        periods, sizes = self._later(self.period_s), self._later(self.sizes)
        if self.together:
            return float(np.median(np.median(periods, axis=1)))
        return float(sizes[0].sum() / (sizes[0] / np.median(periods, axis=0)).sum())

    @property
    def ideal_s(self) -> float:
        """Total work over total speed in seconds: an iteration's samples over sum_i x_i / t_i, for sizes x and times t; median."""
        sizes, times = self._later(self.sizes), self._later(self.compute_s)
        return float(np.median(sizes.sum(axis=1) / (sizes / times).sum(axis=1)))

    @property
    def slowest_s(self) -> float:
        """Median of the slowest worker's computing time."""
        return float(np.median(self._later(self.compute_s).max(axis=1)))

    @property
    def manager_wait_s(self) -> float:
        """Median of the shortest wait for batch sizes among the workers: the part that no other worker's slowness causes."""
        return float(np.median(self._later(self.wait_s).min(axis=1)))


class BatchingFile(msgspec.Struct, forbid_unknown_fields=True):
    """The content of batching.json."""

    network: str
    workload: str
    scheme: str  # the scheme of all batchings but joint, MXNet's baselines and NAME@SCHEME
    total: int  # samples per iteration
    batchings: dict[str, BatchingResult]


def write_batchings(run_dir: Path, run: BatchingFile) -> None:
    """Write batching.json, wholly or not at all. Raises MachineError."""
    write_json(run_dir / "batching.json", run)


def read_batchings(run_dir: Path) -> BatchingFile:
    """Read batching.json. Raises InputError where it is absent or damaged."""
    absent, damaged = "make it a readable file", "restore the file, or remove it to train again"
    return read_json(run_dir / "batching.json", BatchingFile, absent, damaged)


def batching_table(run: BatchingFile) -> Table:
    """Make a row per batching: the iteration time, the speed-up over the first batching, the ideal time, loss and accuracy."""
    table = Table(
        title=escape(f"{run.workload} on {run.network}, {run.total} samples an iteration, scheme {run.scheme}")
    )
    headings = ("batching", "iteration s", "speed-up", "slowest compute s", "ideal s", "x ideal", "wait ms", "loss")
    for heading in (*headings, "accuracy", "last sizes"):
        table.add_column(heading, justify="left" if heading == "batching" else "right")
    first = next(iter(run.batchings.values())).iteration_s
    for name, one in run.batchings.items():
        table.add_row(
            escape(name),
            f"{one.iteration_s:.3f}",
            f"{first / one.iteration_s:.2f}",
            f"{one.slowest_s:.3f}",
            f"{one.ideal_s:.3f}",
            f"{one.slowest_s / one.ideal_s:.2f}",
            f"{one.manager_wait_s * 1000:.1f}",
            "-" if one.loss is None else f"{one.loss:.4f}",
            "-" if one.accuracy is None else f"{one.accuracy:.3f}",
            " ".join(str(size) for size in one.sizes[-1]),
        )
    return table
