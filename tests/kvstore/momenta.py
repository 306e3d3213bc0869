"""Twelve layers whose momenta tell them apart: `python momenta.py save|job|check FOLDER`; only `job` is for a job."""

import sys
from pathlib import Path

import mxnet as mx
from mxnet.gluon import nn

from kvstore_patch.checkpoints import Checkpoints, Progress

LAYERS = 12  # MXNet sorts dense10_ before dense2_


def made(kvstore, prefix="net_", counted_before=0):
    """(net, trainer) of a training whose weights are zero. counted_before: further layers that Gluon has counted."""
    net = nn.Sequential(prefix=prefix)
    with net.name_scope():
        for _ in range(counted_before):
            nn.Dense(1)
        net.add(*(nn.Dense(1, in_units=1, use_bias=False) for _ in range(LAYERS)))
    net.initialize(mx.init.Zero())
    options = {"learning_rate": 1.0, "momentum": 0.5}
    return net, mx.gluon.Trainer(net.collect_params(), "sgd", options, kvstore=kvstore)


def step(net, trainer, slope):
    """One step; this worker's gradient of layer k is `slope` * k."""
    with mx.autograd.record():
        loss = sum(slope * place * layer.weight.data().sum() for place, layer in enumerate(net))
    loss.backward()
    trainer.step(1)


def check(net, trainer):
    """Without a gradient, each weight goes on by its own momentum alone."""
    before = [float(layer.weight.data().asscalar()) for layer in net]
    step(net, trainer, 0)
    moved = [float(layer.weight.data().asscalar()) - start for layer, start in zip(net, before, strict=True)]
    assert moved == [-place / 2 for place in range(LAYERS)], moved


def in_job(folder):
    """Read what plain MXNet wrote, and write what it will read."""
    store = mx.kv.create("nalb")
    net, trainer = made(store)
    step(net, trainer, 1 / store.num_workers)
    trainer.save_states(f"{folder}/job-{store.rank}.states")
    check(net, trainer)
    trainer.load_states(f"{folder}/alone.states")
    check(net, trainer)
    net, trainer = made(store, "apart_", store.rank)
    step(net, trainer, 1 / store.num_workers)
    Checkpoints(net, trainer, 1, folder / "checkpoints").after_step(Progress(1))
    mx.nd.waitall()
    store._barrier()
    net, trainer = made(store, "apart_", store.rank)
    assert Checkpoints(net, trainer, 1, folder / "checkpoints").restore() == Progress(1)
    check(net, trainer)


def main(what: str, folder: Path) -> None:
    """One of the three."""
    if what == "job":
        in_job(folder)
        return
    net, trainer = made(None)
    step(net, trainer, 1)
    if what == "save":
        trainer.save_states(f"{folder}/alone.states")
        return
    for rank in (0, 1):
        trainer.load_states(f"{folder}/job-{rank}.states")
        check(net, trainer)
    net, trainer = made(None)
    assert Checkpoints(net, trainer, 1, folder / "checkpoints").restore() == Progress(1)
    check(net, trainer)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
