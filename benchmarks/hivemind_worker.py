"""One peer of hivemind_averager.py, run by the Python that has hivemind: it averages one flat tensor, round after round.

python hivemind_worker.py RANK SIZE ADDRESS MBPS CODEC BYTES ROUNDS FOLDER. All peers share FOLDER, which is empty at first. A
round's seconds go from the moment when hivemind begins to send until the average is there; peers meet before that. Each round is
printed as JSON.
"""

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hivemind
import torch
from hivemind.averaging import DecentralizedAverager
from hivemind.averaging.control import AveragingStage
from hivemind.compression import BlockwiseQuantization, Float16Compression, NoCompression, Uniform8BitQuantization

CODECS = {
    "none": NoCompression,
    "float16": Float16Compression,
    "uniform8": Uniform8BitQuantization,
    "blockwise8": BlockwiseQuantization,
}
BETWEEN_ROUNDS_S = 1.0


def main(argv: list[str]) -> None:
    """Join the others, average as often as asked, and leave without hivemind's slow farewell."""
    rank, size, rounds = int(argv[0]), int(argv[1]), int(argv[6])
    address, mbps, codec, elements = argv[2], float(argv[3]), CODECS[argv[4]], int(argv[5]) // 4
    folder = Path(argv[7])
    torch.set_num_threads(1)
    first = folder / "first"
    _wait(lambda: rank == 0 or first.exists())
    dht = hivemind.DHT(
        start=True,
        host_maddrs=[f"/ip4/{address}/tcp/{45000 + rank}"],
        initial_peers=json.loads(first.read_text()) if rank else [],
        use_relay=False,
        use_auto_relay=False,
    )
    if rank == 0:
        part = folder / "first.part"
        part.write_text(json.dumps([str(one) for one in dht.get_visible_maddrs()]))
        part.rename(first)
    averager = DecentralizedAverager(
        [torch.full((elements,), float(rank))],
        dht,
        start=True,
        prefix="benchmark",
        target_group_size=size,
        min_group_size=size,
        min_matchmaking_time=6.0,
        request_timeout=3.0,
        bandwidth=mbps,
        compression=codec(),
        allreduce_timeout=120,
        averaging_alpha=1.0,
    )
    (folder / f"ready{rank}").touch()
    _wait(lambda: len(list(folder.glob("ready*"))) == size)
    for number in range(rounds):
        control, begun_s = averager.step(wait=False, gather=rank, timeout=150), None
        while not control.done():
            if begun_s is None and control.stage == AveragingStage.RUNNING_ALLREDUCE:
                begun_s = time.monotonic()
            time.sleep(0.001)
        took_s = None if begun_s is None else time.monotonic() - begun_s
        with averager.get_tensors() as (tensor,):
            error = abs(float(tensor[0]) - (size - 1) / 2)
        print(json.dumps({"rank": rank, "round": number, "took_s": took_s, "error": error}), flush=True)
        time.sleep(BETWEEN_ROUNDS_S)
    (folder / f"done{rank}").touch()
    _wait(lambda: len(list(folder.glob("done*"))) == size)
    os._exit(0)


def _wait(happened: Callable[[], bool]) -> None:
    while not happened():
        time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1:])
