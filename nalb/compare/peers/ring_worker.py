"""`python -m nalb.compare.peers.ring_worker MODEL --address ipc://...`: a worker of a ring all-reduce (PyTorch's gloo).

The model's gradients lie in one flat tensor per dtype, so that small messages cost no time. As in replays of nalb's own
schemes, computing is a sleep, after which all gradients are ready at once. Ranks and addresses come from the environment
(RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, GLOO_SOCKET_IFNAME).
"""

import argparse
import sys
import time
from datetime import timedelta

import msgspec
import zmq

from nalb.compare.peers.messages import End, Iterated, Joined, Run
from nalb.errors import NalbError, PeerError
from nalb.failures import Cause, Failure
from nalb.process.last_words import die
from nalb.workloads import NAMES, load

OPERATION_LIMIT = timedelta(hours=1)  # the limit of one all-reduce: 228 MB, sent nearly twice, take as long at 1 Mbit/s


def main() -> int:
    """Join the ring, run the iterations that the comparison orders, and leave at its end."""
    parser = argparse.ArgumentParser(description="one worker of a ring all-reduce")
    parser.add_argument("model", choices=NAMES)
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--address", required=True)
    args = parser.parse_args()
    import torch
    from torch import distributed

    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=OPERATION_LIMIT)
    ones = torch.ones(1)
    distributed.all_reduce(ones)
    if ones.item() != distributed.get_world_size():
        raise PeerError(f"gloo summed {distributed.get_world_size()} ones to {ones.item():g}: it does not work here")
    elements: dict[str, int] = {}
    for tensor in load(args.model):
        elements[tensor.dtype] = elements.get(tensor.dtype, 0) + tensor.elements
    gradients = [torch.zeros(count, dtype=getattr(torch, dtype)) for dtype, count in elements.items()]

    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
    socket.setsockopt(zmq.IDENTITY, str(distributed.get_rank()).encode())
    socket.connect(args.address)
    socket.send(msgspec.json.encode(Joined()))
    while isinstance(order := msgspec.json.decode(socket.recv(), type=Run | End), Run):
        last_end_s = time.monotonic()
        for _ in range(order.iterations):
            time.sleep(args.compute_ms / 1000)
            started_s = time.monotonic()
            for gradient in gradients:
                distributed.all_reduce(gradient)
            finished_s = time.monotonic()
            socket.send(msgspec.json.encode(Iterated(started_s, finished_s, finished_s - last_end_s)))
            last_end_s = finished_s
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except NalbError as error:
        die(Failure(cause=Cause.PROCESS, detail=str(error)), error.exit_code)
