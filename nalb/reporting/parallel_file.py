"""A comparison of ways to share a model out: parallel.json in the run directory, and its table for terminals."""

from pathlib import Path
from statistics import median

import msgspec
from rich.markup import escape
from rich.table import Table

from nalb.events import TokensEvent, TokenShapeEvent
from nalb.reporting.run_file import read_json, write_json


class TokenCase(msgspec.Struct, forbid_unknown_fields=True):
    """What iterations consist of, from one on."""

    iteration: int
    weights: list[int]  # by sub-model
    members: list[int]  # by sub-model: how many workers compute it
    reason: str
    is_apart: bool = False  # who computes the last sub-model has no samples of its own
    is_tuned: bool | msgspec.UnsetType = msgspec.UNSET  # all cases are measured: it stays


class ParallelResult(msgspec.Struct, forbid_unknown_fields=True):
    """One way; rows are iterations, columns workers by rank."""

    scheme: str
    total: int  # samples of an iteration
    cases: list[TokenCase] = []
    begun_s: list[float] = []  # each iteration's first request, on the coordinator's clock
    iteration_s: list[float] = []  # from then to the last token
    period_s: list[float] = []  # from the first request to the next iteration's, with sums; the last one is missing
    tokens: list[list[int]] = []
    helped: list[list[int]] = []  # of them, from others' buckets
    compute_s: list[list[float]] = []
    fetch_s: list[list[float]] = []
    fetched_bytes: list[list[int]] = []
    loss: float | None = None  # of rank 0's last line

    def add(self, event: TokensEvent | TokenShapeEvent) -> None:
        """What the coordinator noted."""
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
        """Of the last case, without its first iteration; of its later half, if it is the only one: it warms up."""
        begun = self.cases[-1].iteration if self.cases else 0
        later = rows[begun + 1 :] if begun else rows[len(rows) // 2 :]
        return later or rows

    @property
    def steady_s(self) -> float:
        """Median time from one iteration's beginning to the next one's; NaN of a single iteration."""
        return median(self.steady(self.period_s)) if self.period_s else float("nan")


class ParallelFile(msgspec.Struct, forbid_unknown_fields=True):
    """parallel.json."""

    network: str
    workload: str
    stragglers: str | None
    ways: dict[str, ParallelResult]


def write_parallels(run_dir: Path, run: ParallelFile) -> None:
    """Write parallel.json, all or nothing."""
    write_json(run_dir / "parallel.json", run)


def read_parallels(run_dir: Path) -> ParallelFile:
    """Read parallel.json; InputError says what is wrong with it."""
    absent, damaged = "make it a readable file, or remove it", "restore the file, or remove it to train again"
    return read_json(run_dir / "parallel.json", ParallelFile, absent, damaged)


def parallel_table(run: ParallelFile) -> Table:
    """One row per way: time of an iteration, against the first way, and how the tokens were shared out."""
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
