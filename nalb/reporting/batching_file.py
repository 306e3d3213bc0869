"""A comparison of batchings: batching.json in the run directory, and its table for terminals."""

from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from rich.markup import escape
from rich.table import Table

from nalb.events import BatchEvent
from nalb.reporting.run_file import read_json, write_json


class BatchingResult(msgspec.Struct, forbid_unknown_fields=True):
    """One way to size batches; rows are iterations, columns workers by rank."""

    together: bool  # workers wait for each other in every iteration; else each goes its own way
    sizes: list[list[int]]
    compute_s: list[list[float]]  # from the batch to the last gradient, without communication
    period_s: list[list[float]]  # from one batch to the next
    wait_s: list[list[float]]  # of it spent waiting for the size
    loss: float | None  # of rank 0's last epoch
    accuracy: float | None
    curve: list[tuple[int, float]] = []  # updates made, and the accuracy after them, where it was tested

    def updates_to(self, accuracy: float) -> int | None:
        """How many updates it took until the tested accuracy was reached for the first time; None: it was not."""
        return next((updates for updates, reached in self.curve if reached >= accuracy), None)

    def add(self, event: BatchEvent) -> None:
        """One iteration."""
        self.sizes.append(event.sizes)
        self.compute_s.append(event.compute_s)
        self.period_s.append(event.period_s)
        self.wait_s.append(event.wait_s)

    def _later(self, rows: list[list[float]] | list[list[int]]) -> npt.NDArray[np.float64]:
        """The later half: the sizes have settled."""
        return np.array(rows[len(rows) // 2 :], dtype=np.float64)

    @property
    def iteration_s(self) -> float:
        """Median of the middle worker's period; of workers that go their own way, the total over their summed speeds.

        A worker that pauses in lockstep is late itself, and makes all others late an iteration later: the slowest worker's
        period would count it twice.
        """
        periods, sizes = self._later(self.period_s), self._later(self.sizes)
        if self.together:
            return float(np.median(np.median(periods, axis=1)))
        return float(sizes[0].sum() / (sizes[0] / np.median(periods, axis=0)).sum())

    @property
    def ideal_s(self) -> float:
        """Total work over total speed: the samples of an iteration over sum_i x_i / t_i, median."""
        sizes, times = self._later(self.sizes), self._later(self.compute_s)
        return float(np.median(sizes.sum(axis=1) / (sizes / times).sum(axis=1)))

    @property
    def slowest_s(self) -> float:
        """Median of the slowest worker's computing."""
        return float(np.median(self._later(self.compute_s).max(axis=1)))

    @property
    def manager_wait_s(self) -> float:
        """Median of the wait for sizes of the worker that waited least: what others' slowness is no part of."""
        return float(np.median(self._later(self.wait_s).min(axis=1)))


class BatchingFile(msgspec.Struct, forbid_unknown_fields=True):
    """batching.json."""

    network: str
    workload: str
    scheme: str  # of distribution, the same for all but MXNet's baselines
    total: int  # samples per iteration
    batchings: dict[str, BatchingResult]


def write_batchings(run_dir: Path, run: BatchingFile) -> None:
    """Write batching.json, all or nothing."""
    write_json(run_dir / "batching.json", run)


def read_batchings(run_dir: Path) -> BatchingFile:
    """Read batching.json; InputError says what is wrong with it."""
    absent, damaged = "make it a readable file, or remove it", "restore the file, or remove it to train again"
    return read_json(run_dir / "batching.json", BatchingFile, absent, damaged)


def batching_table(run: BatchingFile) -> Table:
    """One row per batching: iteration time against the ideal and against the first one, and what was learnt."""
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
