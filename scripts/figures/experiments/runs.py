"""Runs `nalb compare` for figures; a run whose directory is finished is read and not run again."""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nalb.errors import InputError, JobError, NalbError
from nalb.launch.processes import die_with_parent
from nalb.launch.supervisor import print_line
from nalb.reporting.about_file import ABOUT
from nalb.reporting.record import Record, read_record
from nalb.reporting.run_file import PART, read_run
from netem.network_file import load_network

# the files that a run leaves when it ends early, beside its observers' sockets
LEFT_UNFINISHED = {
    "samples.jsonl",
    "logs",
    "gloo",
    ABOUT,
    f"{ABOUT}{PART}",
    f"run.json{PART}",
    f"batching.json{PART}",
}


@dataclass(frozen=True)
class Comparison:
    """One run that a figure needs."""

    name: str  # the name of its directory
    network: Path
    replay: str
    schemes: tuple[str, ...]
    iterations: int
    environment: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()  # further flags of `nalb compare`

    def argv(self, run_dir: Path) -> list[str]:
        """The command that makes the run."""
        return [
            sys.executable, "-m", "nalb.cli.main", "compare", "--network", str(self.network), "--replay", self.replay,
            "--schemes", ",".join(self.schemes), "--iterations", str(self.iterations), "--out", str(run_dir), *self.options,
        ]  # fmt: skip


def finish_all(figure: str, out: Path, comparisons: Sequence[Comparison]) -> Iterator[Record]:
    """Yield the record of each run, in order, after making those that are not finished; prints a line for each run.

    Raises JobError for the first run that fails, InputError where a directory holds another run.
    """
    for number, comparison in enumerate(comparisons, 1):
        run_dir = out / comparison.name
        finished = (run_dir / "run.json").exists()
        state = "is finished" if finished else f"{comparison.iterations} iterations of {', '.join(comparison.schemes)}"
        print_line(f"{figure}: run {number} of {len(comparisons)}, {run_dir}: {state}")
        if finished:
            check_same(comparison, run_dir)
        else:
            clear(run_dir)
            ended = subprocess.run(
                comparison.argv(run_dir),
                env={**os.environ, **comparison.environment},
                preexec_fn=die_with_parent(os.getpid()),  # the next start would clear the directory under it
                check=False,
            )
            if ended.returncode:
                raise JobError(f"run {run_dir} failed: see above; the same command goes on from here", ended.returncode)
        yield read_record(run_dir)


def check_same(comparison: Comparison, run_dir: Path) -> None:
    """Raise InputError unless the finished run in `run_dir` is the one asked for."""
    run = read_run(run_dir)
    lengths = {len(result.communication_s) for result in run.schemes.values()}
    has = (run.network, run.workload, tuple(run.schemes), lengths)
    name = load_network(comparison.network).name
    if has != (name, f"replay {comparison.replay}", comparison.schemes, {comparison.iterations}):
        raise another_run(run_dir, f"{run.workload} on {run.network}")


def another_run(run_dir: Path, what: str) -> InputError:
    """The error for a directory that holds another run than the one asked for."""
    return InputError(f"{run_dir} holds another run ({what}): choose another --out")


def clear(run_dir: Path, trainings: Sequence[str] = ()) -> None:
    """Remove the files of an unfinished run, and of its trainings in directories of their own within it.

    Raises InputError, and removes nothing, if there is any other file.
    """
    for one in (run_dir, *(run_dir / name for name in trainings)):
        own = LEFT_UNFINISHED.union(trainings if one is run_dir else ())
        for path in one.iterdir() if one.exists() else ():
            if path.name not in own and not path.name.startswith("observers"):
                raise InputError(f"{one} holds {path.name}, which no unfinished run of nalb left: choose another --out")
    if run_dir.exists():
        shutil.rmtree(run_dir)


def run_script(figure: str, what: str, main: Callable[[Path, bool], None]) -> int:
    """Run a figure's script with the flags --out and --quick; an error becomes one line. Returns the exit code."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--out", metavar="DIR", help=f"default: runs/{figure}, with --quick runs/{figure}-quick")
    parser.add_argument("--quick", action="store_true", help="few nodes, MobileNet, few iterations: does it work?")
    args = parser.parse_args()
    try:
        main(Path(args.out or f"runs/{figure}{'-quick' * args.quick}"), args.quick)
    except NalbError as error:
        print(f"{figure}: {error}", file=sys.stderr)
        return error.exit_code
    return 0
