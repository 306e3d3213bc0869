"""lbb_workers.py whose rank 0 reports its last step half a second late: `python late_report_workers.py STEPS`."""

import runpy
import sys
import time
from pathlib import Path

from kvstore_patch.batching import Balancer

STEPS = int(sys.argv[1])
make = Balancer.__init__


def make_late(self, rank, source, clock):
    report = source.report

    def report_late(message):
        if (rank, message.iteration) == (0, STEPS - 1):
            time.sleep(0.5)
        report(message)

    source.report = report_late
    make(self, rank, source, clock)


Balancer.__init__ = make_late
sys.argv[1:] = [str(STEPS), str(STEPS), "0"]
runpy.run_path(str(Path(__file__).parent / "lbb_workers.py"))
