"""A rank in a process of its own, so that it can be killed: `plain_rank.py RANK SIZE ELEMENTS`.

It writes its agent's pid and address to stdout, reads all addresses and the coordinator's from stdin, and sums until stdin ends.
"""

import select
import sys

from nalb.plane import orders
from tests.plane.plain_front import PlainFront

rank, size, elements = map(int, sys.argv[1:])
front = PlainFront(rank, size, starts_coordinator=False)
print(front.agent.pid, front.hear(orders.Listening).address, flush=True)
coordinator, *addresses = sys.stdin.readline().split()
front.send(orders.Peers(addresses, coordinator))
front.hear(orders.AllJoined)
front.register([elements])
is_ended = False
while not is_ended:
    front.route()
    front.tensors[0][:] = rank
    front.begin()
    front.wait()
    assert (front.tensors[0] == size * (size - 1) / 2).all()
    print("summed", flush=True)
    is_ended = bool(select.select([sys.stdin], [], [], 0)[0])
