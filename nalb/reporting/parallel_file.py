"""Reads and writes parallel.json, the result of a comparison of ways to divide the work, and makes its table for terminals."""

from pathlib import Path
from statistics import median

import msgspec
from rich.markup import escape
from rich.table import Table

from nalb.events import TokensEvent, TokenShapeEvent
from nalb.reporting.run_file import read_json, write_json


class TokenCase(msgspec.Struct, forbid_unknown_fields=True):
    """The make-up of all iterations from `iteration` on, until the next case."""

    iteration: int
    weights: list[int]  # the weight of each sub-model
    members: list[int]  # the number of workers that compute each sub-model
    reason: str
    is_apart: bool = False  # whether the workers of the last sub-model have no samples of their own
    is_tuned: bool | msgspec.UnsetType = msgspec.UNSET  # true: all cases have been measured and this one stays


class ParallelResult(msgspec.Struct, forbid_unknown_fields=True):
    """The training by one way; rows are iterations, columns are workers by rank."""

    scheme: str
    total: int  # the samples of an iteration
    cases: list[TokenCase] = []
    begun_s: list[float] = []  # the time of each iteration's first request, on the clock of events
    iteration_s: list[float] = []  # the time from the first request to the last token
    period_s: list[float] = []  # time between two iterations' first requests, sums included
    tokens: list[list[int]] = []
    helped: list[list[int]] = []  # the tokens among them that came from others' buckets
    compute_s: list[list[float]] = []
    fetch_s: list[list[float]] = []
    fetched_bytes: list[list[int]] = []
    loss: float | None = None  # the loss in rank 0's last line

    def add(self, event: TokensEvent | TokenShapeEvent) -> None:
        """Add an event of the coordinator: an iteration, or a new shape."""
        if isinstance(event, TokenShapeEvent):
            members = [len(ranks) for ranks in event.eligible]
            self.total = event.total
            case = TokenCase(event.iteration, event.weights, members, event.reason, event.is_apart, event.is_tuned)
            self.cases.append(case)
            return
        if self.begun_s:
            self.period_s.append(event.at_s - self.begun_s[-1])
        self.begun_s.append(event.at_s)
        self.iteration_s.append(event.iteration_s)
        self.tokens.append(event.tokens)
        self.helped.append(event.helped)
        self.compute_s.append(event.compute_s)
        self.fetch_s.append(event.fetch_s)
        self.fetched_bytes.append(event.fetched_bytes)

    def steady(self, rows: list[float]) -> list[float]:
        """The rows of the last case without its first iteration. Of a single case, the later half, since the training warms up."""
        begun = self.cases[-1].iteration if self.cases else 0
        later = rows[begun + 1 :] if begun else rows[len(rows) // 2 :]
        return later or rows

    @property
    def steady_s(self) -> float:
        """Median time in seconds from an iteration's beginning to the next one's; NaN where there is one iteration only."""
        return median(self.steady(self.period_s)) if self.period_s else float("nan")


class ParallelFile(msgspec.Struct, forbid_unknown_fields=True):
    """The content of parallel.json."""

    network: str
    workload: str
    stragglers: str | None
    ways: dict[str, ParallelResult]


def write_parallels(run_dir: Path, run: ParallelFile) -> None:
    """Write parallel.json, wholly or not at all. Raises MachineError."""
    write_json(run_dir / "parallel.json", run)


def read_parallels(run_dir: Path) -> ParallelFile:
    """Read parallel.json. Raises InputError where it is absent or damaged."""
    absent, damaged = "make it a readable file", "restore the file, or remove it to train again"
    return read_json(run_dir / "parallel.json", ParallelFile, absent, damaged)


def parallel_table(run: ParallelFile) -> Table:
    """Make a row per way: the iteration time, the speed-up over the first way, and how the tokens were divided."""
    first = next(iter(run.ways.values()))
    sleepers = f", stragglers {run.stragglers}" if run.stragglers else ""
    table = Table(title=escape(f"{run.workload} on {run.network}, {first.total} samples an iteration{sleepers}"))
    headings = ("way", "scheme", "iteration s", "speed-up", "all s", "weights", "workers", "tokens", "helped")
    for heading in (*headings, "fetched MB", "loss"):
        table.add_column(heading, justify="left" if heading in ("way", "scheme") else "right")
    for name, one in run.ways.items():
        case = one.cases[-1]
        table.add_row(
            escape(name),
            one.scheme,
            f"{one.steady_s:.3f}",
            f"{first.steady_s / one.steady_s:.2f}",
            f"{sum(one.period_s):.1f}",
            ",".join(map(str, case.weights)),
            ",".join(map(str, case.members)),
            " ".join(map(str, one.tokens[-1])),
            f"{sum(map(sum, one.helped)) / max(1, sum(map(sum, one.tokens))):.0%}",
            f"{median(sum(row) for row in one.fetched_bytes) / 1e6:.2f}",
            "-" if one.loss is None else f"{one.loss:.4f}",
        )
    return table
