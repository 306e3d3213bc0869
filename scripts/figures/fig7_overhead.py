"""Repeats Figure 7 of Cai et al.: the cost of probes and their announcements under equal shares on equal links.

original has neither. probe cuts probe slices. request announces, times and reports every message, and plans upon it. All four
conditions get a plan in each iteration, as every scheme of nalb does.
"""

import math
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.networks import equal_network, write_network
from experiments.overhead import CONFIDENCE, overhead
from experiments.runs import Comparison, finish_all, run_script
from nalb.feedback.window import usual_windows
from nalb.planning.granularity import FIRST_ALPHA_BYTES
from nalb.planning.slices import slice_bytes
from nalb.reporting.run_file import median_s
from nalb.workloads import bytes_of

CONDITIONS = {
    "original": "average-probes-forecasts",
    "probe": "average-forecasts",
    "request": "average-probes+forecasts",
    "probe + request": "average+forecasts",
}
RATE_MBPS = 50  # a node's rate, at which all twelve leave half of two cores idle, as machines of their own would
COMPUTE_MS = 200  # stands for a training's computing before it pushes, during which plans are made
PAPER = {"probe + request": "2.12 %"}


def main(out: Path, quick: bool) -> None:
    """Make the run if it is missing and print the table."""
    nodes, model, iterations = (4, "mobilenet", 10) if quick else (12, "mobilenet", 60)
    network = write_network(out / "networks", f"fig7-n{nodes}", equal_network(f"fig7-n{nodes}", nodes, RATE_MBPS))
    model_bytes = bytes_of(model)
    piece_bytes = int(slice_bytes(model_bytes, nodes, FIRST_ALPHA_BYTES))
    settled_bytes = usual_windows(piece_bytes, nodes, [1.0] * nodes)[0]  # the window of planned schemes
    options = ("--compute-ms", str(COMPUTE_MS))
    wanted = Comparison(
        "run",
        network,
        model,
        tuple(CONDITIONS.values()),
        iterations,
        {"NALB_INFLIGHT_BYTES": str(settled_bytes)},
        options,
    )
    (record,) = finish_all("fig7", out, [wanted])
    times = {name: record.run.schemes[word].iteration_s for name, word in CONDITIONS.items()}
    table = Table(title=f"{model}, {nodes} nodes of {RATE_MBPS} Mbit/s, equal shares: overhead over original")
    for heading in (
        "condition",
        "iteration s",
        "overhead",
        f"{CONFIDENCE:.0%} interval",
        "rounds",
        "paper",
        "plan wait s",
    ):
        table.add_column(heading, justify="left" if heading == "condition" else "right")
    for name, word in CONDITIONS.items():
        found = overhead(times[name], times["original"])
        wait_s = median_s(record.run.schemes[word].plan_wait_s)
        interval = "too few rounds" if math.isnan(found.low) else f"{found.low:+.2%} to {found.high:+.2%}"
        table.add_row(
            name, f"{median_s(times[name]):.3f}", f"{found.value:+.2%}", interval,
            str(found.rounds), PAPER.get(name, "-"), f"{wait_s:.3f}",
        )  # fmt: skip
    Console().print(table)


if __name__ == "__main__":
    sys.exit(run_script("fig7", __doc__, main))
