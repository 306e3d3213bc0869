"""What a decision on batch sizes costs, per scheme and predictor: milliseconds of one process, 96 simulated workers.

    python benchmarks/batching_cost.py [--workers 96] [--updates 150]

The median and the worst update: ARIMA's fits and LBB's rapid tunings are rare and long.
"""

import argparse
import time

import numpy as np

from nalb.batching.decisions import Observation
from nalb.batching.schemes import PREDICTORS, SCHEMES, Job, build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=96)
    parser.add_argument("--updates", type=int, default=150)
    options = parser.parse_args()
    names = [*SCHEMES, *(f"lb-bsp {predictor}" for predictor in PREDICTORS)]
    print(f"{options.workers} workers, {options.updates} updates: median and worst milliseconds of one")
    for name in names:
        generator = np.random.default_rng(0)
        speeds = generator.uniform(30, 100, options.workers)
        scheme, _, predictor = name.partition(" ")
        predictors = tuple(PREDICTORS[predictor](i) for i in range(options.workers)) if predictor else None
        controller, sizes = build(scheme, Job((128,) * options.workers, predictors=predictors))
        spent_ms = []
        for update in range(options.updates):
            if update % 50 == 0:
                speeds = generator.permutation(speeds)
            times = np.array(sizes) / speeds * generator.uniform(0.97, 1.03, options.workers)
            observations = [Observation(size, float(t)) for size, t in zip(sizes, times, strict=True)]
            begun = time.perf_counter()
            sizes = controller.update(observations).sizes or sizes
            spent_ms.append((time.perf_counter() - begun) * 1e3)
        print(f"{name:20} {np.median(spent_ms):9.3f} {max(spent_ms):9.3f}")


if __name__ == "__main__":
    main()
