"""What the workers of the token tests run: a small net on fixed random data, held against one process's training of the same.

Prints how far this worker's parameters are off, of the largest. --fault: node n1 ends itself so, or waits, once, before
it computes a token of --level, from iteration --fault-at on. --late: node n1 takes in one kind of message later than the others,
another kind each iteration. --cut: connections between workers break at any moment.
"""

import argparse
import array
import ctypes
import fcntl
import os
import signal
import termios
import threading
import time
from collections import Counter
from contextlib import closing, suppress
from functools import partial

import mxnet as mx
import numpy as np
from fela_cases import FEATURES, OPTIMIZERS, build, loss_of, values
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from kvstore_patch import fela
from kvstore_patch.checkpoints import Checkpoints, Progress
from kvstore_patch.fela.compute import Compute
from nalb.batching.stream import Stream
from nalb.errors import StoreError
from nalb.process.own_sockets import own_sockets
from nalb.services.tokens import messages as m
from nalb.transport.courier import Courier

PAUSE, PAUSE_S = "wait", 1.0
LATE_S, CUT_PAUSE_S = 0.1, 0.3
SAMPLES, TOTAL, FAULTY = 60, 24, "n1"
generator = np.random.RandomState(1)
DATA = generator.uniform(-1, 1, (SAMPLES, FEATURES)).astype(np.float32)
TARGET = generator.uniform(-1, 1, (SAMPLES, 1)).astype(np.float32)


def by_one_process(steps, optimizer):
    blocks = build("hybrid")
    net = nn.HybridSequential()
    net.add(*blocks)
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(OPTIMIZERS[optimizer]), kvstore=None)
    stream = Stream(SAMPLES, TOTAL, lambda epoch: np.random.default_rng([1, epoch]).permutation(SAMPLES))
    for step in range(steps):
        chosen = stream.batch(step, 0, TOTAL)
        with autograd.record():
            loss = loss_of(net(nd.array(DATA[chosen])), nd.array(TARGET[chosen]))
        loss.backward()
        trainer.step(TOTAL)
    return values(blocks)


def end_at(level, iteration, number):
    run, ended = Compute.run, []

    def run_or_end(compute, work, *more):
        # on a busy machine the other node may compute all tokens of this level in an iteration
        if not ended and work.token.level == level and work.token.iteration >= iteration:
            ended.append(work.token)
            print(f"{'waits' if number is None else 'ends'} in token {tuple(work.token)}", flush=True)
            if number is None:
                time.sleep(PAUSE_S)
            else:
                os.kill(os.getpid(), number)
        run(compute, work, *more)

    Compute.run = run_or_end


LATE = (m.TokenShape, m.SumGradients, m.SendPart, m.TokenWork, m.NextIteration)


def be_late(client):
    """One kind after another; the order of messages stays. Call it before the Trainer is made."""
    on, wait_until = client.on, client.wait_until
    iterations = Counter()  # that have ended here

    def delay(message):
        iterations["ended"] += isinstance(message, m.NextIteration)
        if isinstance(message, LATE[iterations["ended"] % len(LATE)]):
            time.sleep(LATE_S)

    def handle_late(handler, message):
        delay(message)
        handler(message)

    def wait_late(choose):
        answer = wait_until(choose)
        delay(answer)
        return answer

    client.on = lambda kind, handler: on(kind, partial(handle_late, handler))
    client.wait_until = wait_late


def noted_couriers():
    """A list to which each courier of this process comes as it meets the others."""
    meet, found = Courier.meet, []

    def meet_and_note(courier, *others):
        found.append(courier)
        meet(courier, *others)

    Courier.meet = meet_and_note
    return found


def cut_often(port):
    """Reset the connections that other couriers have made to this port, each while it holds what is not read yet."""
    count, unread, nowhere = 0, array.array("i", [0]), bytes(16)  # AF_UNSPEC: the kernel resets the connection
    while True:
        time.sleep(0.001)
        for one in own_sockets():
            with closing(one), suppress(OSError):  # not connected, or no TCP
                if one.getsockname()[1] == port and one.getpeername():
                    fcntl.ioctl(one, termios.FIONREAD, unread)
                    if unread[0] and not ctypes.CDLL(None).connect(one.fileno(), nowhere, len(nowhere)):
                        count += 1
                        print(f"cut {count}", flush=True)
                        time.sleep(CUT_PAUSE_S)


def require_refused(store):
    """Fela's own thread sums meanwhile, and a call between two of its calls would be another one on each worker."""
    try:
        store.add_up_once("the script's own", nd.ones((2,)))
    except StoreError as error:
        assert "call trainer.gather() first" in str(error), error
    else:
        raise AssertionError("a sum of the script's between a step and gather()")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--every", type=int, default=0)
    parser.add_argument("--gather-every", type=int, default=7)
    parser.add_argument("--fault", choices=("SIGKILL", "SIGSTOP", PAUSE))
    parser.add_argument("--level", type=int, default=0)
    parser.add_argument("--fault-at", type=int, default=12)
    parser.add_argument("--late", action="store_true")
    parser.add_argument("--cut", action="store_true", help="connections between couriers, again and again")
    parser.add_argument("--inexact", action="store_true", help="steps are stale: compare with nothing")
    args = parser.parse_args()
    store = mx.kv.create("nalb")
    blocks = build("hybrid")
    net = nn.HybridSequential()
    net.add(*blocks)
    if args.late and os.environ["NALB_NODE"] == FAULTY:
        be_late(store.client)
    couriers = noted_couriers()
    trainer = fela.Trainer(blocks, loss_of, args.optimizer, OPTIMIZERS[args.optimizer], store, TOTAL, threshold=4)
    batches = trainer.batches(SAMPLES, seed=1)
    checkpoints = Checkpoints(net, trainer, args.every, seed=1, settings={"total": TOTAL})
    iteration = checkpoints.restore().iteration
    if args.fault and os.environ["NALB_NODE"] == FAULTY and iteration == 0:
        end_at(args.level, args.fault_at, getattr(signal, args.fault, None))
    (courier,) = couriers
    if args.cut:
        port = int(courier.address.rpartition(":")[2])
        threading.Thread(target=cut_often, args=(port,), daemon=True).start()
    batches.go_to(iteration)
    while iteration < args.steps:
        for _ in batches:
            trainer.step(lambda part: (nd.array(DATA[part]), TARGET[part]))
            iteration += 1
            checkpoints.after_step(Progress(iteration))
            if iteration % args.gather_every == 0:
                require_refused(store)
                trainer.gather()
                store.add_up_once("the script's own", total := nd.ones((2,)))
                assert total.asnumpy().tolist() == [store.num_workers] * 2
            if iteration == args.steps:
                break
    trainer.gather()
    expected = by_one_process(args.steps, args.optimizer)
    largest = max(np.abs(one).max() for one in expected)
    off = max(np.abs(got - want).max() for got, want in zip(values(blocks), expected, strict=True)) / largest
    assert off <= 1e-4 or args.inexact, f"rank {store.rank} is off by {off:.1e}"
    assert not courier.refused, courier.refused
    print(f"rank {store.rank} is off by {off:.1e}", flush=True)


if __name__ == "__main__":
    main()
