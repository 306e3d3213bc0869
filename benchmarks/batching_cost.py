"""Measures the cost of a decision on batch sizes, per scheme and predictor: milliseconds of one process, 96 simulated workers.

    python benchmarks/batching_cost.py [--workers 96] [--updates 150]

The table has the median and the worst update, since ARIMA's fits and LBB's rapid tunings are rare and long. `coordinator` rows
are whole iterations at the coordinator, without sockets: it decodes reports, decides sizes, encodes the answers to all workers
and encodes events. Their last column is the median's part of an iteration of --iteration-s seconds.
"""

import argparse
import time

import numpy as np

from nalb.batching.decisions import Observation
from nalb.batching.schemes import PREDICTORS, SCHEMES, BatchJob, build
from nalb.events import encode_line
from nalb.protocol import wire
from nalb.protocol.observers import Measured
from nalb.services import composition
from nalb.services.batching import messages as m
from nalb.services.composition import new_coordinator
from nalb.settings import from_environment


def coordinator_ms(scheme: str, workers: int, updates: int) -> list[float]:
    """The milliseconds that a coordinator spends in each iteration if it only sizes batches."""
    environment = {
        "DMLC_ROLE": "scheduler", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "9091", "NALB_SCHEME": "stock",
        "DMLC_NUM_WORKER": str(workers), "DMLC_NUM_SERVER": "1", "NALB_STOCK": "1", "NALB_BATCHING": scheme,
    }  # fmt: skip
    state = new_coordinator(from_environment(environment, "host"), 0.0)

    def say(rank: int, message: wire.Message) -> None:
        state.receive(b"%d" % rank, composition.decode_at_coordinator(wire.encode(message), "peer"), 0.0)

    for rank in range(workers):
        say(rank, wire.Hello(wire.VERSION, "worker", f"n{rank}", rank, 1))
    for rank in range(workers):
        say(rank, m.JoinBatching(128, None))
    generator = np.random.default_rng(0)
    speeds = generator.uniform(30, 100, workers)
    sizes_of: dict[int, list[int]] = {}
    spent_ms = []
    for iteration in range(updates):
        for _, message in state.outbox:
            if isinstance(message, m.BatchSizes):
                sizes_of.update(dict.fromkeys(range(message.iteration, message.until + 1), message.sizes))
        state.outbox.clear()
        state.events.clear()
        times = np.array(sizes_of[iteration]) / speeds * generator.uniform(0.97, 1.03, workers)
        reports = [
            wire.encode(m.Computed(iteration, size, float(t), 0.5, 0.5, 1.0, 0.0))
            for size, t in zip(sizes_of[iteration], times, strict=True)
        ]
        begun = time.perf_counter()
        for rank, report in enumerate(reports):
            state.receive(b"%d" % rank, composition.decode_at_coordinator(report, "peer"), 0.0)
        for _, message in state.outbox:
            wire.encode(message)
        for event in state.events:
            assert not isinstance(event, Measured), "scheme stock measures nothing"
            encode_line(event)
        spent_ms.append((time.perf_counter() - begun) * 1e3)
    return spent_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=96)
    parser.add_argument("--updates", type=int, default=150)
    parser.add_argument("--iteration-s", type=float, default=1.0)
    options = parser.parse_args()
    names = [*SCHEMES, *(f"lb-bsp {predictor}" for predictor in PREDICTORS)]
    print(f"{options.workers} workers, {options.updates} updates: median and worst milliseconds of one")
    for name in names:
        generator = np.random.default_rng(0)
        speeds = generator.uniform(30, 100, options.workers)
        scheme, _, predictor = name.partition(" ")
        predictors = tuple(PREDICTORS[predictor](i) for i in range(options.workers)) if predictor else None
        controller, sizes = build(scheme, BatchJob((128,) * options.workers, predictors=predictors))
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
    for name in ("off", "static", "dynamic", "lb-bsp", "lb-bsp-gpu", "lbb"):
        spent_ms = coordinator_ms(name, options.workers, options.updates)
        part = np.median(spent_ms) / 1e3 / options.iteration_s
        print(f"coordinator {name:10} {np.median(spent_ms):7.3f} {max(spent_ms):9.3f} {part:7.2%}")


if __name__ == "__main__":
    main()
