"""Runs a campaign: does `nalb why` name what sets the pace, of real jobs with PyTorch on emulated networks?

    .venv-torch/bin/python scripts/figures/name_the_pace_emulated.py --first 98001 --networks 6 --out FILE     as root

Networks are drawn as in name_the_pace.py, and jobs run by `nalb launch --network`. Each rank sums tensors of ELEMENTS
elements, LEARNING times and then COUNTED times, under exact or average in turn; on every second network it sleeps before, as long
as the seed says, which stands for computing.

The truth is what the kernel counts in the counted iterations. Each rank reads the bytes of its interface, the bytes of its
namespace's TCP connections by peer, and the CPU time of its namespace's processes. Each thing takes bytes over the rate of the
network file, CPU time over the node's quota, or the sleep. What a pair or a site carries is the bytes of its connections, times
what the node's interface sends for each byte of them. Two families are left out: roles, which jobs with PyTorch do not have,
and changing, whose networks are as those of even after each change.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from socket import AF_INET
from typing import Any

import msgspec
import numpy as np
import psutil
import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from nalb.errors import NalbError  # noqa: E402 - the repository need not be installed
from nalb.planning.nodes import Floats  # noqa: E402
from nalb.reporting.pace import paces  # noqa: E402
from nalb.reporting.record import read_timeline  # noqa: E402
from name_the_pace import Case, Way, draw_case, main, row_of, transport_truth  # noqa: E402

FAMILIES = ("even", "near", "heavy", "asymmetric", "adsl", "capped", "shared-cores", "sites")
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
NEAR_SCALE = 0.6  # of the rates of near, which two cores do not carry


class Counters(msgspec.Struct):
    """What the kernel has counted in this namespace."""

    sent: float  # bytes of interfaces, loopback left out
    received: float
    cpu_s: float  # of all processes in it
    by_peer: dict[str, float]  # payload bytes sent, by peer's address

    def since(self, before: "Counters") -> "Counters":
        """What came after, per counted iteration."""
        return Counters(
            (self.sent - before.sent) / COUNTED,
            (self.received - before.received) / COUNTED,
            (self.cpu_s - before.cpu_s) / COUNTED,
            {to: (sent - before.by_peer.get(to, 0)) / COUNTED for to, sent in self.by_peer.items()},
        )


class Carried(msgspec.Struct):
    """What one rank's node carried per counted iteration."""

    rank: int
    addresses: list[str]
    counted: Counters


def rank(computing_s: list[float]) -> None:
    """One rank. Prints what its node carried."""
    dist.init_process_group("nalb")
    torch.set_num_threads(1)
    number, tensors = dist.get_rank(), [torch.ones(elements) for elements in ELEMENTS]
    before = counters()
    for iteration in range(LEARNING + COUNTED):
        if iteration == LEARNING:
            before = counters()
        time.sleep(computing_s[number])
        works = [dist.all_reduce(one, async_op=True) for one in tensors]
        for work in works:
            work.wait()
    links = [each for name, each in psutil.net_if_addrs().items() if name != "lo"]
    own = [one.address for each in links for one in each if one.family == AF_INET]
    print("carried", msgspec.json.encode(Carried(number, own, counters().since(before))).decode(), flush=True)
    dist.destroy_process_group()


def counters() -> Counters:
    """What the kernel has counted in this process's network namespace."""
    lines = Path("/proc/net/dev").read_text().splitlines()[2:]
    interfaces = [line.split() for line in lines if not line.strip().startswith("lo:")]
    by_peer: dict[str, float] = defaultdict(float)
    shown = subprocess.run(["ss", "-tniHO"], capture_output=True, text=True, check=True).stdout
    for line in shown.splitlines():
        if found := re.search(r"bytes_sent:(\d+)", line):
            by_peer[line.split()[4].rpartition(":")[0]] += float(found[1])
    mine, cpu_s = os.stat("/proc/self/ns/net").st_ino, 0.0
    for pid in psutil.pids():
        try:
            if os.stat(f"/proc/{pid}/ns/net").st_ino == mine:
                times = psutil.Process(pid).cpu_times()
                cpu_s += times.user + times.system
        except (psutil.NoSuchProcess, FileNotFoundError, PermissionError):
            continue  # it has ended, or is none of the job's
    sent, received = (float(sum(int(one[place]) for one in interfaces)) for place in (9, 1))
    return Counters(sent, received, cpu_s, dict(by_peer))


def judged(case: Case) -> dict[str, Any]:
    """Run the job of one case, and ask `nalb why`: a row of the file."""
    nalb = [sys.executable, "-m", "nalb.cli.main"]
    waits = case.computing_s * COMPUTING_PART
    with tempfile.TemporaryDirectory() as folder:
        network, run = Path(folder) / "network.toml", Path(folder) / "run"
        drawn = subprocess.run([*nalb, *case.network.command.split()[1:]], capture_output=True, text=True, check=True)
        network.write_text(drawn.stdout)
        command = [*nalb, "launch", "--framework", "torch", "--network", str(network)]
        command += ["--scheme", case.scheme, "--out", str(run)]
        command += ["--", sys.executable, __file__, "--rank", json.dumps(waits.tolist())]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT, check=False)
        lines = [line.partition("carried ")[2] for line in done.stdout.splitlines() if "carried {" in line]
        if done.returncode or len(lines) < len(case.names):
            raise NalbError(f"{case.network.name}: the job ended with {done.returncode}: {done.stderr[-300:]}")
        pace = next(one for one in paces(read_timeline(run), COUNTED) if one.scheme == case.scheme)
    carried = sorted((msgspec.json.decode(line, type=Carried) for line in lines), key=lambda one: one.rank)
    return row_of(case, truth_of(case, carried, waits), pace)


def truth_of(case: Case, carried: list[Carried], waits: Floats) -> dict[Way, float]:
    """What each thing needs, in seconds."""
    network, names, size = case.network, case.names, len(carried)
    of_address = {address: one.rank for one in carried for address in one.addresses}
    pairs = np.zeros((size, size))
    for one in carried:
        for address, sent in one.counted.by_peer.items():
            pairs[one.rank, of_address.get(address, one.rank)] += sent
        pairs[one.rank, one.rank] = 0.0  # loopback
        pairs[one.rank] *= one.counted.sent / pairs[one.rank].sum()
    truth = transport_truth(network.capacities, names, pairs)
    for i, one in enumerate(carried):
        truth["link", names[i], "up"] = max(truth["link", names[i], "up"], one.counted.sent / network.capacities.up[i])
        down_s = one.counted.received / network.capacities.down[i]
        truth["link", names[i], "down"] = max(truth["link", names[i], "down"], down_s)
        truth["computing", names[i], ""] = float(waits[i])
        if network.quotas is not None:
            truth["cores", names[i], ""] = one.counted.cpu_s / network.quotas[i]
    return truth


def judged_by_number(family: str, seed: int, number: int) -> dict[str, Any]:
    """Run the job of the case of this number, and ask `nalb why`."""
    case = draw_case(family, seed, number, NEAR_SCALE if family == "near" else 1.0)
    return judged(replace(case, scheme=SCHEMES[number // 2 % len(SCHEMES)]))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        rank(json.loads(sys.argv[2]))
    else:
        sys.exit(main(__doc__, FAMILIES, judged_by_number))
