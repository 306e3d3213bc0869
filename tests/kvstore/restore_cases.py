"""Plain Python runs it: for each optimizer a training of eight steps, and one that goes on in a new net from a checkpoint."""

import socket
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd

from kvstore_patch.checkpoints import Checkpoints, Progress
from nalb.checkpoints import folder as folders
from nalb.checkpoints import lock
from nalb.errors import CheckpointError

CASES = [
    ("sgd", {}, "float32"),
    ("sgd", {"momentum": 0.9, "multi_precision": True}, "float16"),
    ("sgd", {"momentum": 0.9, "lr_scheduler": (2, 0.5)}, "float32"),  # a schedule counts: each training has its own
    ("adam", {}, "float32"),
    ("nadam", {}, "float32"),
    ("nag", {"momentum": 0.9}, "float32"),
    ("rmsprop", {"centered": True}, "float32"),
    ("lamb", {}, "float32"),
    ("lars", {"momentum": 0.9}, "float32"),
    ("ftml", {}, "float32"),
    ("adagrad", {}, "float32"),
    ("adadelta", {}, "float32"),
    ("dcasgd", {}, "float32"),
    ("sgld", {}, "float32"),
]
HALF, STEPS = 5, 8


def in_use(folder):
    """Another job's folder is left as it is."""
    half = folder / f".{folders.file_name(7)}.{socket.gethostname()}.writing"
    with lock.claim(folder, "another job"):
        half.touch()
        refused(made("sgd", {}, folder), f"{folder} is used by another job")
        assert half.exists()
    assert made("sgd", {}, folder)[2].restore() == Progress()
    assert not half.exists()


class Scale(gluon.HybridBlock):
    """The simplest layer."""

    def __init__(self):
        super().__init__()
        self.weight = self.params.get("weight", shape=(1, 3))

    def hybrid_forward(self, F, x, weight):
        """Input times weight."""
        return F.broadcast_mul(x, weight)


def made(optimizer, options, folder, dtype="float32", more=(), random_seed=0, settings=None):
    """(net, trainer, checkpoints) of a training that begins."""
    mx.random.seed(1)
    net = gluon.nn.HybridSequential()
    if dtype == "float16":  # MXNet has no dense layer in it for CPUs
        net.add(Scale())
    else:
        net.add(gluon.nn.Dense(6, activation="tanh"), gluon.nn.BatchNorm(), gluon.nn.Dropout(0.5), gluon.nn.Dense(2))
        net.add(*more)
    net.cast(dtype)
    net.initialize(mx.init.Xavier())
    net(nd.zeros((2, 3), dtype=dtype))
    if "lr_scheduler" in options:
        options = options | {"lr_scheduler": mx.lr_scheduler.FactorScheduler(*options["lr_scheduler"], base_lr=0.05)}
    trainer = gluon.Trainer(net.collect_params(), optimizer, dict(options))
    return net, trainer, Checkpoints(net, trainer, HALF, folder, seed=random_seed, settings=settings)


def steps(net, trainer, checkpoints, progress, dtype):
    """Losses until the end."""
    losses = []
    for iteration in range(progress.iteration, STEPS):
        x = nd.random.normal(shape=(4, 3)).astype(dtype)
        with autograd.record():
            loss = (net(x) ** 2).mean()
        loss.backward()
        trainer.step(1)
        losses.append(float(loss.asscalar()))
        if iteration == 2 and trainer.optimizer.lr_scheduler is None:
            trainer.set_learning_rate(0.02)
        checkpoints.after_step(Progress(iteration + 1))
    return losses


def one_step(x, trainer, checkpoints, *layers):
    """The first step, and its checkpoint."""
    with autograd.record():
        for layer in layers:
            x = layer(x)
        loss = x.sum()
    loss.backward()
    trainer.step(1)
    checkpoints.after_step(Progress(1))


def refused(training, says):
    """What does not fit is named, and nothing has changed."""
    net, _, checkpoints = training
    before = net(nd.ones((2, 3))).asnumpy()
    try:
        checkpoints.restore()
    except CheckpointError as error:
        assert says in str(error), error
        assert "\n" not in str(error)
        np.testing.assert_array_equal(net(nd.ones((2, 3))).asnumpy(), before)
    else:
        raise AssertionError(f"not noticed: {says}")


def skip_damaged(folder):
    """A torn one is skipped, and gone once there is a new one; the older ones are kept."""
    net, _, checkpoints = made("sgd", {}, folder)
    assert checkpoints.restore() == Progress(HALF)
    weights = net(nd.ones((2, 3))).asnumpy()
    checkpoints.save(Progress(HALF + 5))
    torn = folders.paths(folder)[-1]
    torn.write_bytes(torn.read_bytes()[:-1])
    net, _, checkpoints = made("sgd", {}, folder)
    assert checkpoints.restore() == Progress(HALF)
    np.testing.assert_array_equal(net(nd.ones((2, 3))).asnumpy(), weights)
    checkpoints.save(Progress(HALF + 1))
    assert [path.name for path in folders.paths(folder)] == [folders.file_name(k) for k in (HALF, HALF + 1)]
    folders.paths(folder)[-1].unlink()


def numpy_arrays(folder):
    """A net of mx.np arrays (npx.set_np) gets its weights back too."""
    mx.npx.set_np()
    weights = []
    for iteration in range(2):
        net = gluon.nn.Dense(2, in_units=3)
        net.initialize()
        trainer = gluon.Trainer(net.collect_params(), "adam")
        checkpoints = Checkpoints(net, trainer, 1, folder)
        assert checkpoints.restore() == Progress(iteration)
        if iteration == 0:
            one_step(mx.np.ones((4, 3)), trainer, checkpoints, net)
        weights.append(net.weight.data().asnumpy())
    np.testing.assert_array_equal(*weights)


def convolutions(folder):
    """Their weights are in oneDNN's layout once they have inferred, and get the checkpoint's values all the same."""
    weights = []
    for iteration in range(2):
        net = gluon.nn.Conv2D(32, 3, padding=1, in_channels=16)
        net.initialize(mx.init.Xavier())
        net.hybridize()
        trainer = gluon.Trainer(net.collect_params(), "sgd", {"momentum": 0.9})
        x = nd.random.normal(shape=(4, 16, 8, 8))
        net(x).wait_to_read()
        checkpoints = Checkpoints(net, trainer, 1, folder)
        assert checkpoints.restore() == Progress(iteration)
        if iteration == 0:
            one_step(x, trainer, checkpoints, net)
        weights.append(net.weight.data().asnumpy())
    np.testing.assert_array_equal(*weights)


def outside_the_net(folder):
    """What the Trainer trains beside the net, such as a loss's weights, is restored too."""
    weights = []
    for iteration in range(2):
        net, loss_scale = gluon.nn.Dense(2, in_units=3, prefix="net_"), gluon.nn.Dense(1, in_units=2, prefix="loss_")
        for block in (net, loss_scale):
            block.initialize(mx.init.Uniform())
        every = {**net.collect_params(), **loss_scale.collect_params()}
        trainer = gluon.Trainer(every, "sgd", {"momentum": 0.9})
        checkpoints = Checkpoints(net, trainer, 1, folder)
        assert checkpoints.restore() == Progress(iteration)
        if iteration == 0:
            one_step(nd.ones((4, 3)), trainer, checkpoints, net, loss_scale)
        weights.append(loss_scale.weight.data().asnumpy())
    np.testing.assert_array_equal(*weights)


def two_writers(folder):
    """Two nets of a script would overwrite each other's files."""
    first, second = made("sgd", {}, folder), made("sgd", {}, folder)
    first[2].save(Progress(1))
    try:
        second[2].save(Progress(1))
    except CheckpointError as error:
        assert "give each a folder of its own" in str(error)
    else:
        raise AssertionError("one net's checkpoint was overwritten by another's")


def main(root: Path) -> None:
    """All cases."""
    for number, (optimizer, options, dtype) in enumerate(CASES):
        folder = root / str(number)
        parts = made(optimizer, options, folder, dtype)
        assert parts[2].restore() == Progress()
        whole = steps(*parts, Progress(), dtype)
        parts = made(optimizer, options, folder, dtype)
        for parameter in parts[0].collect_params().values():  # nothing of it may count
            parameter.set_data(nd.full(parameter.shape, 7, dtype=dtype))
        progress = parts[2].restore()
        assert progress == Progress(HALF), progress
        assert steps(*parts, progress, dtype) == whole[HALF:], (optimizer, options, whole)
        assert len(set(whole)) == STEPS, whole
    folder = root / "0"
    in_use(root / "used")
    skip_damaged(folder)
    refused(made("sgd", {}, folder, random_seed=3), "seed is 0 there and 3 here")
    refused(made("sgd", {}, folder, settings={"total": 3}), "total is None there and 3 here")
    refused(made("adam", {}, folder), "it is of optimizer SGD, this training uses Adam")
    refused(made("sgd", {"momentum": 0.9}, folder), "of another kind: same optimizer options?")
    refused(made("nag", {}, root / "5"), "of another kind: same optimizer options?")
    refused(made("sgd", {}, folder, more=[gluon.nn.Dense(1)]), "another net: parameter 4.bias is not in both")
    refused(made("sgd", {}, root / "1"), "another net: parameter 0.bias is not in both")
    refused(made("lbsgd", {}, folder), "optimizer LBSGD keeps what cannot be saved")
    assert [path.name for path in folders.paths(folder)] == ["checkpoint-000000005.nalb"]
    convolutions(root / "convolutions")
    outside_the_net(root / "outside")
    two_writers(root / "two")
    numpy_arrays(root / "numpy")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
