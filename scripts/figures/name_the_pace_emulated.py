"""Runs a campaign: does `nalb why` name what sets the pace, of real jobs with PyTorch on emulated networks?

    .venv-torch/bin/python scripts/figures/name_the_pace_emulated.py --first 98001 --networks 6 --out FILE     as root

Networks are drawn as in name_the_pace.py, and jobs run by `nalb launch --network`. Each rank sums tensors of ELEMENTS
elements, LEARNING times and then COUNTED times, under exact or average in turn; on every second network it sleeps before, as long
as the seed says, which stands for computing. Each rank reads from the kernel what its interface sent and received in the counted
iterations. These bytes over the rates of the network file, and the sleeps, are the truth. Families with things that these counters
do not show are left out: capped pairs, shared uplinks, cores, roles and changes.
"""

import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from nalb.errors import NalbError  # noqa: E402 - the repository need not be installed
from nalb.reporting.pace import paces  # noqa: E402
from nalb.reporting.record import read_timeline  # noqa: E402
from name_the_pace import Case, Way, draw_case, main, row_of  # noqa: E402

FAMILIES = ("even", "near", "heavy", "asymmetric", "adsl")
SCHEMES = ("exact", "average")
ELEMENTS = (
    500_000,
    450_000,
    350_000,
    300_000,
)  # of an iteration's tensors; of one size alone each would be an iteration
LEARNING, COUNTED = 8, 6  # the first three have no plan
COMPUTING_PART = 4 * sum(ELEMENTS) / 12.9e6  # of what is drawn for MobileNet's bytes
LIMIT_S = 240.0


def rank(computing_s: list[float]) -> None:
    """One rank. Prints its number, and bytes per counted iteration: sent, received."""
    dist.init_process_group("nalb")
    torch.set_num_threads(1)
    number, tensors = dist.get_rank(), [torch.ones(elements) for elements in ELEMENTS]
    before = (0, 0)
    for iteration in range(LEARNING + COUNTED):
        if iteration == LEARNING:
            before = counters()
        time.sleep(computing_s[number])
        works = [dist.all_reduce(one, async_op=True) for one in tensors]
        for work in works:
            work.wait()
    sent, received = ((after - start) / COUNTED for start, after in zip(before, counters(), strict=True))
    print("carried", json.dumps([number, sent, received]), flush=True)
    dist.destroy_process_group()


def counters() -> tuple[int, int]:
    """Bytes that this namespace's interfaces have sent and received, loopback left out."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    fields = [line.split() for line in lines if not line.strip().startswith("lo:")]
    return sum(int(one[9]) for one in fields), sum(int(one[1]) for one in fields)


def judged(case: Case) -> dict[str, Any]:
    """Run the job of one case, and ask `nalb why`: a row of the file."""
    nalb = [sys.executable, "-m", "nalb.cli.main"]
    waits = [one * COMPUTING_PART for one in case.computing_s]
    with tempfile.TemporaryDirectory() as folder:
        network, run = Path(folder) / "network.toml", Path(folder) / "run"
        drawn = subprocess.run([*nalb, *case.network.command.split()[1:]], capture_output=True, text=True, check=True)
        network.write_text(drawn.stdout)
        command = [
            *nalb,
            "launch",
            "--framework",
            "torch",
            "--network",
            str(network),
            "--scheme",
            case.scheme,
            "--out",
            str(run),
        ]
        command += ["--", sys.executable, __file__, "--rank", json.dumps(waits)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
        lines = [line.partition("carried ")[2] for line in done.stdout.splitlines() if "carried [" in line]
        if done.returncode or len(lines) < len(case.names):
            raise NalbError(f"{case.network.name}: the job ended with {done.returncode}: {done.stderr[-300:]}")
        pace = next(one for one in paces(read_timeline(run), COUNTED) if one.scheme == case.scheme)
    capacities, truth = case.network.capacities, dict[Way, float]()
    for number, sent, received in map(json.loads, lines):
        truth["link", case.names[number], "up"] = sent / capacities.up[number]
        truth["link", case.names[number], "down"] = received / capacities.down[number]
        truth["computing", case.names[number], ""] = waits[number]
    return row_of(case, truth, pace)


def judged_by_number(family: str, seed: int, number: int) -> dict[str, Any]:
    """Run the job of the case of this number, and ask `nalb why`."""
    return judged(replace(draw_case(family, seed, number), scheme=SCHEMES[number // 2 % len(SCHEMES)]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(json.loads(sys.argv[2]))
    else:
        sys.exit(main(__doc__, FAMILIES, judged_by_number))
