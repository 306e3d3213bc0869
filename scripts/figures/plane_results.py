"""Makes the runs of the table of the plane for PyTorch: gloo's ring and nalb's schemes, three runs of each. Run it in .venv-torch.

The networks are those of main_results.py. No run takes ten minutes.
"""

import sys
from pathlib import Path

from experiments.runs import run_script
from main_results import TWELVE, Row, measure

ALL, TWO = ("gloo", "average", "aware", "exact", "oracle"), ("gloo", "exact")
ROWS = (
    Row("wan6-static", "mobilenet", ((ALL, 10),)),
    Row("wan4-static", "mobilenet", ((ALL, 10),)),
    Row("wan6-asymmetric", "mobilenet", ((ALL, 10),)),
    Row(TWELVE, "mobilenet", ((TWO, 8),)),
    Row("wan6-static", "resnet50", ((TWO, 6),)),
    Row("wan6-asymmetric", "resnet50", ((TWO, 6),)),
)


def main(out: Path, quick: bool) -> None:
    """Make the runs of the plane for PyTorch."""
    measure("plane-results", ROWS, out, quick, ("--framework", "torch"))


if __name__ == "__main__":
    sys.exit(run_script("plane-results", __doc__, main))
