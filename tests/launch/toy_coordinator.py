"""A coordinator for tests, without MXNet: it serves observers at NALB_OBSERVERS, iterates as they ask, and ends as they ask."""

import os
import signal
import time

import zmq

from nalb.events import AnyEvent, BlockEvent, IterationEvent, LayoutEvent, ReadyEvent
from nalb.protocol import wire
from nalb.services import composition
from nalb.transport.observer_door import ObserverDoor

DIES = "dies"  # the scheme of a block that never ends
TENSORS = 2000  # enough for an event of several lines through ssh


def main() -> None:
    """Tell the observers of a job that has begun, then take their orders."""
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        door = ObserverDoor(socket, os.environ["NALB_OBSERVERS"], 1)
        observers: list[bytes] = []
        iteration = 0

        def tell(event: AnyEvent) -> None:
            for identity in observers:
                assert door.tell(identity, wire.Told(event), zmq.Frame(wire.encode(wire.Told(event))))

        while True:
            socket.poll()
            for identity, frame in door.arrived():
                message = composition.decode_at_coordinator(frame, "an observer")
                print(f"took {type(message).__name__}", flush=True)
                if isinstance(message, wire.Observe) and identity not in observers:
                    observers.append(identity)
                    tell(ReadyEvent(at_s=time.monotonic(), nodes=["a"]))
                    tensors = [(f"tensor{k}", 1, "float32", 0) for k in range(TENSORS)]
                    tell(LayoutEvent(at_s=time.monotonic(), model_bytes=4 * TENSORS, tensors=tensors))
                elif isinstance(message, wire.RunBlock) and message.scheme == DIES:
                    os.kill(os.getpid(), signal.SIGKILL)
                elif isinstance(message, wire.RunBlock):
                    for _ in range(message.iterations):
                        times_s = {"a": 1.0}
                        tell(
                            IterationEvent(
                                at_s=time.monotonic(),
                                iteration=iteration,
                                scheme=message.scheme,
                                communication_s=times_s,
                            )
                        )
                        iteration += 1
                    tell(BlockEvent(at_s=time.monotonic(), scheme=message.scheme, iterations=message.iterations))
                elif isinstance(message, wire.EndJob):
                    return


if __name__ == "__main__":
    main()
