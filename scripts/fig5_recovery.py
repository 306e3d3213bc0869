"""Figure 5 of Cai et al.: aware and average while the network changes, and how soon aware is back near the bound."""

import statistics
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from nalb.experiments.networks import random_network, write_network
from nalb.experiments.recovery import NEAR, recoveries
from nalb.experiments.runs import Comparison, finish_all, run_script

SCHEMES = ("aware", "average")
SEED = 2023


def main(out: Path, quick: bool) -> None:
    """Run if missing; print every iteration with the changes marked, then the recoveries."""
    nodes, every_s, iterations, low_mbps = (4, 12, 12, 80) if quick else (12, 60, 50, 20)
    name = f"fig5-n{nodes}"
    network = write_network(out / "networks", name, random_network(name, nodes, SEED, low_mbps, every_s=every_s))
    (record,) = finish_all("fig5", out, [Comparison("run", network, "mobilenet", SCHEMES, iterations)])
    for scheme in SCHEMES:
        series = Table(title=f"{scheme}, {nodes} nodes, rates drawn anew every {every_s} s")
        for heading in ("iteration", "seconds", "bound", "x bound", ""):
            series.add_column(heading, justify="right")
        places = record.change_places(scheme)
        for number, (step, bound_s) in enumerate(zip(record.steps[scheme], record.bounds_s(scheme), strict=True)):
            mark = "change during it" if any(number <= at < number + 1 for at in places) else ""
            took_s = step.communication_s
            series.add_row(str(number), f"{took_s:.2f}", f"{bound_s:.2f}", f"{took_s / bound_s:.2f}", mark)
        Console().print(series)
    table = Table(title=f"iterations after a change until within {NEAR - 1:.0%}; 1 is the first wholly after it")
    for heading in ("scheme", "changes", "of new bound: median", "recovered", "of settled level: median", "recovered"):
        table.add_column(heading, justify="left" if heading == "scheme" else "right")
    for scheme in SCHEMES:
        found = recoveries(record, scheme)
        cells = []
        for counts in ([one.to_bound for one in found], [one.to_settled for one in found]):
            back = sum(count != float("inf") for count in counts)
            cells += [f"{statistics.median(counts):g}" if counts else "-", f"{back} of {len(counts)}"]
        table.add_row(scheme, str(len(found)), *cells)
    Console().print(table)
    print(f"figures: nalb report {out / 'run'}")


if __name__ == "__main__":
    sys.exit(run_script("fig5", __doc__, main))
