"""What batch sizes and joint plans gain on uneven machines, by real training; federated rounds too.

    python scripts/uneven_machines.py [--out DIR] [--quick]

cpu: uneven4-cpu, a small CNN, every batching (Chen et al., Figs. 10 and 12; Yao et al.; Tyagi and Sharma). both: uneven4-both,
MobileNet, batch sizes alone, the network alone and scheme joint. federated: uneven5-cpu, FedAvg of five clients with two
classes each (Chen et al., 5.5). Each in a directory of DIR; one that is finished is read and not run again.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from nalb.errors import JobError
from nalb.experiments.runs import run_script
from nalb.reporting.batching_file import BatchingFile, batching_table

ROOT = Path(__file__).resolve().parents[1]
COMPARISONS = {  # directory -> arguments of nalb compare, iterations in full and with --quick
    "cpu": (
        ["--network", "uneven4-cpu", "--train", "cnn", "--batch-total", "4096"],
        ["--batching", "off,static,dynamic,lb-bsp,lb-bsp-gpu,lbb"],
        (60, 20),
    ),
    "both": (
        ["--network", "uneven4-both", "--train", "mobilenet", "--batch-total", "128"],
        ["--batching", "off@average,off@aware,lb-bsp@average,lb-bsp@aware,joint"],
        (40, 14),
    ),
}
PAPERS = (
    "papers: lb-bsp 0.42 to 0.48 x BSP's iteration (Chen et al., Table 3), 30 % under the others where the slowest is 1/3 of the "
    "fastest (Fig. 12); federated rounds 27 % shorter; lbb's epochs 65 % shorter than SSGD's (Yao et al.)"
)


def nalb(words: list[str], log: Path | None = None) -> str:
    """Run it, here and in the log; returns what it printed. JobError where it fails."""
    process = subprocess.Popen(
        [sys.executable, "-m", "nalb.cli.main", *words], stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    lines = []
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        lines.append(line)
    if process.wait():
        raise JobError(f"nalb {' '.join(words[:3])} failed: see above; the same command goes on from here")
    if log is not None:
        log.write_text("".join(lines), encoding="utf-8")
    return "".join(lines)


def compare(out: Path, arguments: list[str], iterations: int) -> BatchingFile:
    """A comparison of batchings, run if it is not finished."""
    if not (out / "batching.json").exists():
        shutil.rmtree(out, ignore_errors=True)
        nalb(["compare", *arguments, "--iterations", str(iterations), "--out", str(out)])
    return msgspec.json.decode((out / "batching.json").read_bytes(), type=BatchingFile)


def federated(out: Path, batching: str, rounds: int) -> dict:
    """One FedAvg training: what rank 0 printed."""
    log = out / batching / "printed.txt"
    if not log.exists():
        shutil.rmtree(out / batching, ignore_errors=True)
        script = ["--", sys.executable, str(ROOT / "examples/train_federated.py"), "--rounds", str(rounds)]
        job = ["launch", "--network", "uneven5-cpu", "--scheme", "average", "--batching", batching]
        nalb([*job, "--out", str(out / batching), *script], log)
    row = next(line for line in log.read_text(encoding="utf-8").splitlines() if '"round_s"' in line)
    return json.loads(row[row.index("{") :])


def main(out: Path, quick: bool) -> None:
    """Run what is missing, print the tables."""
    console = Console(width=max(130, Console().width))
    tables = []
    for name, (job, batchings, iterations) in COMPARISONS.items():
        tables.append(batching_table(compare(out / name, job + batchings, iterations[quick])))
    table = Table(title="FedAvg, 5 clients x 2 classes on uneven5-cpu, 20 local steps")
    for heading in ("batching", "round s", "over off", "accuracy (last 5 models)"):
        table.add_column(heading, justify="left" if heading == "batching" else "right")
    rows = {name: federated(out / "federated", name, 15 if quick else 60) for name in ("off", "lb-bsp-federated")}
    for name, row in rows.items():
        part = row["round_s"] / rows["off"]["round_s"]
        table.add_row(name, f"{row['round_s']:.2f}", f"{part:.2f}", f"{row['accuracy']:.3f}")
    for one in (*tables, table):
        console.print(one)
    console.print(PAPERS)


if __name__ == "__main__":
    sys.exit(run_script("uneven-machines", __doc__, main))
