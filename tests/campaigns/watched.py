"""Runs a campaign: what does it cost a job to be watched, and does a real Prometheus read what the job did?

The job is one comparison on an emulated network with `--metrics`. After LEARNING iterations, blocks of BLOCK iterations take turns:
in one block a Prometheus scrapes and a `nalb watch` looks every second, in the next one both stand still. Two blocks in a row make
a pair. A pair's result is the median iteration of the watched block over that of the other. At the end Prometheus is asked for the
iterations that it saw.

It needs root, MXNet, and Debian's package prometheus.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from nalb.events import IterationEvent
from nalb.launch.ports import free_pair
from nalb.live.tail import RunTail
from nalb.process.own_program import own_argv

LEARNING, BLOCK = 4, 5
LOOPBACK = "127.0.0.1"
LOOK_S = 0.05
CONFIG = """
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: nalb
    static_configs: [{{targets: ["{address}:{port}"]}}]
"""


class Watching:
    """The processes that look at one job: all go on, or all stand still."""

    def __init__(self, processes: "list[subprocess.Popen[bytes]]"):
        self.processes = processes

    def begin(self) -> None:
        """Let all go on."""
        self._send(signal.SIGCONT)

    def end(self) -> None:
        """Let all stand still."""
        self._send(signal.SIGSTOP)

    def _send(self, number: signal.Signals) -> None:
        for process in self.processes:
            process.send_signal(number)


def asked(port: int, query: str) -> list[dict[str, Any]]:
    """The answer of Prometheus to a query."""
    url = f"http://{LOOPBACK}:{port}/api/v1/query?" + urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(url, timeout=20) as answer:
        found: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return found


def main() -> int:
    """Run the job, watch it in every second block, and print the pairs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="wan4-static", help="default: wan4-static")
    parser.add_argument("--pairs", type=int, default=6, help="pairs of blocks (default: 6)")
    args = parser.parse_args()
    if shutil.which("prometheus") is None:
        parser.exit(3, "watched: there is no prometheus here: apt install prometheus\n")
    iterations = LEARNING + 2 * BLOCK * args.pairs
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port, own_port = (stack.enter_context(free_pair(LOOPBACK)) for _ in range(2))
        (folder / "prometheus.yml").write_text(CONFIG.format(address=LOOPBACK, port=port))
        words = ["prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}"]
        words += [f"--web.listen-address={LOOPBACK}:{own_port}", "--log.level=error"]
        prometheus = subprocess.Popen(words)
        stack.callback(prometheus.wait)
        stack.callback(prometheus.kill)
        run_dir = folder / "run"
        job_words = ["compare", "--network", args.network, "--replay", "mobilenet", "--schemes", "exact"]
        job_words += ["--iterations", str(iterations), "--metrics", str(port), "--out", str(run_dir)]
        job = subprocess.Popen(own_argv("nalb.cli.main", *job_words), env=os.environ)
        stack.callback(job.wait)
        stack.callback(job.terminate)
        while not run_dir.exists() and job.poll() is None:
            time.sleep(LOOK_S)
        watcher = subprocess.Popen(own_argv("nalb.cli.main", "watch", str(run_dir)), stdout=subprocess.DEVNULL)
        stack.callback(watcher.wait)
        stack.callback(watcher.kill)
        watching = Watching([prometheus, watcher])
        times_s = timed(job, run_dir, watching, iterations)
        watching.begin()
        job.wait(60)
        seen = asked(own_port, "max_over_time(nalb_iterations_total[1h])")
        links = asked(own_port, "count by (node, direction) (last_over_time(nalb_link_rate_bytes_per_second[1h]))")
    ratios = report(times_s)
    counted = max((float(one["value"][1]) for one in seen), default=0.0)
    print(f"Prometheus saw {counted:.0f} of {iterations} iterations, and rates of {len(links)} directions of links")
    return 0 if ratios and counted >= iterations - 2 * BLOCK and links else 1


def timed(job: "subprocess.Popen[bytes]", run_dir: Path, watching: Watching, iterations: int) -> list[float]:
    """The seconds from each iteration's end to the next one's, in order; every second block is watched."""
    ends_s: list[float] = []
    tail, is_watched = RunTail(run_dir), True
    while len(ends_s) < iterations and job.poll() is None:
        time.sleep(LOOK_S)
        ends_s += [event.at_s for event in tail.fresh() if isinstance(event, IterationEvent)]
        number = len(ends_s) - LEARNING
        wanted = number < 0 or number // BLOCK % 2 == 0
        if wanted != is_watched:
            (watching.begin if wanted else watching.end)()
            is_watched = wanted
    return [later - earlier for earlier, later in pairwise(ends_s)]


def report(times_s: list[float]) -> list[float]:
    """Print each pair; returns the ratios."""
    counted, ratios = times_s[LEARNING - 1 :], []
    for first in range(0, len(counted) - 2 * BLOCK + 1, 2 * BLOCK):
        # the first iteration of a block saw the change
        watched, alone = (median(counted[begin + 1 : begin + BLOCK]) for begin in (first, first + BLOCK))
        ratios.append(watched / alone)
        print(f"watched {watched:.4f} s, alone {alone:.4f} s: {ratios[-1]:.4f}")
    if ratios:
        print(f"median of {len(ratios)} pairs: {median(ratios):.4f}")
    return ratios


if __name__ == "__main__":
    sys.exit(main())
