"""Tokens on Gluon blocks without a job: workers are objects of one process, driven by a token server. Run by test_fela.py.

After 20 steps each worker has the parameters that one process gets from the same samples, to 1e-4 of the largest.
"""

import logging
from contextlib import contextmanager

import mxnet as mx
import numpy as np
from mxnet import autograd, gluon, nd
from mxnet.gluon import nn

from kvstore_patch.fela import Trainer, partition, stages
from kvstore_patch.fela.chunks import Chunks
from kvstore_patch.fela.compute import Compute
from kvstore_patch.fela.gradients import Gradients, written
from kvstore_patch.fela.trainer import learning_and_running
from kvstore_patch.fela.updates import Updates
from nalb.errors import NalbError
from nalb.services.tokens import messages as m
from nalb.tokens.policies import data_parallel, fela, hybrid_parallel, model_parallel
from nalb.tokens.server import ComputeToken, GoOn, Part, Synchronise, TokenServer
from nalb.tokens.shape import Shape

STEPS, TOTAL, FEATURES = 20, 24, 16
generator = np.random.RandomState(1)
DATA = generator.uniform(-1, 1, (STEPS, TOTAL, FEATURES)).astype(np.float32)
TARGET = generator.uniform(-1, 1, (STEPS, TOTAL, 1)).astype(np.float32)
OPTIMIZERS = {"sgd": {"learning_rate": 0.3, "momentum": 0.9}, "adam": {"learning_rate": 0.01}}
loss_of = gluon.loss.L2Loss()


def build(kind):
    """Three blocks with known shapes, the same ones each time."""
    mx.random.seed(3)
    blocks, x = [], nd.zeros((2, FEATURES))
    for units in (7, 6, 1):
        block = nn.HybridSequential()
        if kind == "conv" and units > 1:
            block.add(nn.HybridLambda(lambda F, x: F.reshape(x, (0, -1, 4, 4))), nn.Conv2D(16, 3, padding=1))
        else:
            block.add(nn.Dense(units, activation="tanh"))
        if kind == "norm" and units > 1:
            block.add(nn.BatchNorm())
        block.initialize(mx.init.Xavier())
        if kind != "plain":
            block.hybridize()
        x = block(x)
        blocks.append(block)
    return blocks


def parameters_of(blocks):
    return [list(block.collect_params().values()) for block in blocks]


def values(blocks):
    return [one.data().asnumpy() for group in parameters_of(blocks) for one in group]


class Worker:
    """One worker's computing, without threads."""

    def __init__(self, rank, kind, optimizer, loss=loss_of, dtype="float32", is_frozen=False):
        self.rank, self.blocks, self.iteration, self.dtype = rank, build(kind), 0, dtype
        if dtype != "float32":
            for block in self.blocks:
                block.cast(dtype)
        if is_frozen:
            self.blocks[0][0].collect_params().setattr("grad_req", "null")
        learning, running = learning_and_running(self.blocks, loss)
        every = [one for both in zip(learning, running, strict=True) for group in both for one in group]
        self.trainer = gluon.Trainer(every, optimizer, dict(OPTIMIZERS[optimizer]), kvstore=None)
        self.chunks, self.gradients = Chunks(), Gradients(learning, running)
        self.compute = Compute(self.blocks, loss, self.chunks, self.gradients)
        self.updates = Updates(self.trainer, learning, running, TOTAL)

    def run(self, work, shape, workers):
        token = work.token
        message = m.TokenWork(token.id, list(token.chunks), list(token.inputs), token.mirrors, list(work.fetches))
        fetched = {
            (one.token, one.part): workers[one.source].chunks.read(one.token, one.part, token.chunks)
            for one in work.fetches
        }

        def batch(chunks):
            places = [place for chunk in chunks for place in shape.samples_of(chunk)]
            return tuple(nd.array(one[token.id.iteration, places], dtype=self.dtype) for one in (DATA, TARGET))

        self.compute.run(message, shape, batch, fetched)


def train(workers, server, seed):
    """Who asks next is drawn by lot; sums are made as soon as they are ordered."""
    random, steps = np.random.default_rng(seed), [0] * len(workers)
    given, stolen, may_ask = {}, 0, set(range(len(workers)))
    while min(steps) < STEPS:
        ready = sorted({rank for rank in may_ask if steps[rank] < STEPS} | given.keys())
        assert ready, "workers wait for ever"
        rank = ready[random.integers(len(ready))]
        may_ask.discard(rank)
        work = given.pop(rank, None)
        if work:
            workers[rank].run(work, server.shape, workers)
        for order in server.report(rank, work and work.token.id, steps[rank], 0.0, steps[rank] == STEPS - 1):
            if isinstance(order, ComputeToken):
                given[order.worker] = order
                stolen += order.token.mirrors is not None and any(one.part is Part.INPUT for one in order.fetches)
            elif isinstance(order, GoOn):
                steps[order.worker] += 1
                may_ask.add(order.worker)
                workers[order.worker].compute.free(order.complete)
            elif isinstance(order, Synchronise):
                add_up(workers, order)
    return stolen


def add_up(workers, order):
    sums = [worker.gradients.take_sums(order.iteration, order.sub_model) for worker in workers]
    for arrays in zip(*(sums[rank].arrays for rank in order.workers), strict=True):
        whole = nd.add_n(*arrays)
        for array in arrays:
            array[:] = whole
    for worker, own in zip(workers, sums, strict=True):
        if worker.rank in order.workers:
            worker.updates.apply(order.sub_model, own)
        worker.gradients.give_back(order.sub_model, own)


def by_one_process(kind, optimizer, loss_of=loss_of):
    blocks = build(kind)
    net = nn.HybridSequential()
    net.add(*blocks)
    every = [*net.collect_params().values(), *loss_of.collect_params().values()]
    trainer = gluon.Trainer(every, optimizer, dict(OPTIMIZERS[optimizer]), kvstore=None)
    for x, y in zip(DATA, TARGET, strict=True):
        with autograd.record():
            loss = loss_of(net(nd.array(x)), nd.array(y))
        loss.backward()
        trainer.step(TOTAL)
    return values(blocks)


def check(name, workers, policy, shape, kind="hybrid", optimizer="sgd", seed=1):
    expected = by_one_process(kind, optimizer)
    owners = [policy.eligible[sub_model] for sub_model, group in enumerate(parameters_of(build(kind))) for _ in group]
    many = [Worker(rank, kind, optimizer) for rank in range(workers)]
    stolen = train(many, TokenServer(workers, shape, policy), seed)
    largest = max(np.abs(one).max() for one in expected)
    for worker in many:
        assert not len(worker.chunks), f"{name}: {len(worker.chunks)} arrays are left on worker {worker.rank}"
        for owner, got, want in zip(owners, values(worker.blocks), expected, strict=True):
            off = np.abs(got - want).max() / largest
            assert worker.rank not in owner or off <= 1e-4, f"{name}: worker {worker.rank} is off by {off:.1e}"
    return stolen


def check_running_statistics():
    """Batches are tokens, so means are close to those of one process and no more; but all workers have the same."""
    many = [Worker(rank, "norm", "sgd") for rank in range(3)]
    train(many, TokenServer(3, Shape(TOTAL, 6, (1, 2, 2)), fela(3, 3)), 1)
    first, *others = [values(worker.blocks) for worker in many]
    for other in others:
        assert all(np.array_equal(a, b) for a, b in zip(first, other, strict=True)), "statistics differ"
    expected = values([build("norm")[0]])
    moved = [np.abs(a - b).max() for a, b in zip(first, expected, strict=False)]
    assert min(moved) > 0, "statistics have not moved"


class Scaled(gluon.loss.Loss):
    """A loss that learns the scale of the net's outputs."""

    def __init__(self):
        super().__init__(1, 0)
        with self.name_scope():
            self.scale = self.params.get("scale", shape=(1,), init="ones")
        self.initialize()

    def hybrid_forward(self, F, out, y, scale):
        return loss_of(F.broadcast_mul(out, scale), y)


def check_a_loss_that_learns():
    """A loss's own parameters are trained with the last sub-model."""
    losses = [Scaled() for _ in range(3)]
    by_one_process("plain", "sgd", losses[0])
    many = [Worker(rank, "plain", "sgd", loss) for rank, loss in enumerate(losses[1:])]
    train(many, TokenServer(2, Shape(TOTAL, 2, (1, 1, 1)), fela(2, 3)), 1)
    alone, *others = [one.scale.data().asscalar() for one in losses]
    assert abs(alone - 1) > 0.01
    np.testing.assert_allclose(others, alone, rtol=1e-4)


class Looks(gluon.HybridBlock):
    """Cannot be drawn as a graph: it looks at the shape of its input. Its own mean has no gradient by nature; 2 is constant."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.norm, self.dense = nn.BatchNorm(), nn.Dense(3)
            self.mean = self.params.get("mean", shape=(1,), grad_req="null", differentiable=False, init="zeros")
            self.two = self.params.get_constant("two", [2.0])

    def forward(self, x):
        return self.dense(self.norm(x)) * x.shape[0]


def check_what_a_forward_pass_changes():
    """Statistics that run, of whatever type; no frozen weight, no statistic that stays, no scale that does not learn."""
    net = nn.HybridSequential()
    net.add(nn.Dense(4), nn.BatchNorm(scale=False), nn.BatchNorm(use_global_stats=True), Looks())
    net.initialize()
    net(nd.ones((2, 3)))
    net[0].collect_params().setattr("grad_req", "null")
    running = {f"{net[1].prefix}running_mean", f"{net[1].prefix}running_var"}
    looks = {f"{net[3].norm.prefix}running_mean", f"{net[3].norm.prefix}running_var", net[3].mean.name}
    assert written(net[3]) == looks
    assert {name for name in written(net) if "batchnorm2" not in name} >= running
    drawn = nn.HybridSequential()
    drawn.add(*[net[i] for i in range(3)])
    assert written(drawn) == running
    drawn.hybridize()
    assert written(drawn) == running
    learning, changed = learning_and_running([drawn], loss_of)
    assert {one.name for one in changed[0]} == running
    assert not {one.name for one in learning[0]} & {one.name for one in net[0].collect_params().values()}


def check_frozen_weights_and_other_types():
    """Frozen weights keep their bits, and statistics in double precision are means like others."""
    for dtype in ("float64", "float32"):
        many = [Worker(rank, "norm", "sgd", dtype=dtype, is_frozen=True) for rank in range(3)]
        before = many[0].blocks[0][0].weight.data().asnumpy()
        moved = many[0].blocks[0][1].running_mean.data().asnumpy()
        train(many, TokenServer(3, Shape(TOTAL, 6, (1, 2, 2)), fela(3, 3)), 1)
        for worker in many:
            assert np.array_equal(worker.blocks[0][0].weight.data().asnumpy(), before), "a frozen weight has moved"
            assert not np.array_equal(worker.blocks[0][1].running_mean.data().asnumpy(), moved)
            assert worker.blocks[0][1].running_mean.data().dtype == np.dtype(dtype)


def check_newcomers():
    """A worker gets a sub-model although an evaluation has left its convolutions' weights in oneDNN's layout."""
    old, new = (Worker(rank, "conv", "sgd") for rank in range(2))
    for parameter in parameters_of(old.blocks)[0]:
        parameter.set_data(parameter.data() + 1)
    new.blocks[0](nd.array(DATA[0])).wait_to_read()
    new.updates.put(0, old.updates.collect(0))
    for a, b in zip(values(old.blocks[:1]), values(new.blocks[:1]), strict=True):
        assert np.array_equal(a, b), "the newcomer has other parameters"


def check_partition():
    """Whatever the machine's speed: the blocks are the net, and each has something to learn."""
    net, front = nn.HybridSequential(), nn.HybridSequential()
    front.add(nn.Flatten(), nn.Dense(64), nn.Activation("relu"))
    net.add(front, nn.Dense(64), nn.BatchNorm(), nn.Dropout(0.5), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    x = nd.random.uniform(shape=(4, 2, 8))
    before = net(x).asnumpy()
    blocks = partition(net, x, most=32)
    assert np.array_equal(before, net(x).asnumpy()), "to be timed has changed the running statistics"
    y = x
    for block in blocks:
        assert list(block.collect_params())
        y = block(y)
    assert np.array_equal(y.asnumpy(), net(x).asnumpy())
    assert {id(one) for group in parameters_of(blocks) for one in group} == {*map(id, net.collect_params().values())}
    assert 1 <= blocks.threshold <= 32
    check_nets_of_other_classes()
    for count, found in ((1, 1), (2, 2), (9, 4)):
        parts = stages(net, x, count)
        y = x
        for part in parts:
            y = part(y)
        assert len(parts) == found
        assert all(list(part.collect_params()) for part in parts)
        assert np.array_equal(y.asnumpy(), net(x).asnumpy())


class Swapped(gluon.HybridBlock):
    """Has features and an output, and is not one after the other."""

    def __init__(self):
        super().__init__()
        self.features, self.output = nn.HybridSequential(), nn.Dense(3)
        self.features.add(nn.Dense(8), nn.Dense(8))

    def forward(self, x):
        return self.output(self.features(x)) + 1


def check_nets_of_other_classes():
    """A net of the model zoo is cut as what it is made of; one that cannot be cut stays whole, with a warning."""
    zoo = gluon.model_zoo.vision.get_resnet(1, 18, thumbnail=True, classes=10)
    for net, shape, count in ((zoo, (2, 3, 32, 32), 3), (Swapped(), (2, 5), 1)):
        net.initialize(mx.init.Xavier())
        x = nd.random.uniform(shape=shape)
        said = []
        handler = logging.Handler()
        handler.emit = said.append
        logging.getLogger("kvstore_patch.fela.cutting").addHandler(handler)
        parts = stages(net, x, count, batch=2)
        logging.getLogger("kvstore_patch.fela.cutting").removeHandler(handler)
        assert len(said) == (count == 1)
        assert len(parts) == count
        y = x
        for part in parts:
            y = part(y)
        assert np.array_equal(y.asnumpy(), net(x).asnumpy())


def check_refusals():
    first, second, _ = build("plain")
    unknown = nn.HybridSequential()
    unknown.add(nn.Dense(3))
    unknown.initialize()
    adds = build("plain")[0]
    adds.collect_params().setattr("grad_req", "add")
    for blocks, words in (
        ([first, nn.Flatten()], "block 2 has no parameter that learns"),
        ([first, unknown], "let the blocks see one batch first"),
        ([first, second, first], "is in several blocks"),
        ([adds], "grad_req='write'"),
    ):
        with refused(words):
            learning_and_running(blocks, loss_of)
    with mx.util.np_array(True):
        for call in (lambda: learning_and_running([first], loss_of), lambda: stages(first, nd.zeros((1, FEATURES)), 1)):
            with refused("npx.set_np() is on"):
                call()
    with refused("optimizer Nadam keeps"):
        Updates(gluon.Trainer(first.collect_params(), "nadam", {}, kvstore=None), [], [], TOTAL)
    with refused("tokens are summed with kvstore 'nalb'"):
        Trainer([first], loss_of, "sgd", {}, mx.kv.create("local"), TOTAL)
    for loss, words in ((lambda out, y: loss_of(out, y).mean(), "one for each sample"),):
        worker = Worker(0, "plain", "sgd", loss)
        with refused(words):
            train([worker], TokenServer(1, Shape(TOTAL, 1, (1, 1, 1)), fela(1, 3)), 1)


@contextmanager
def refused(words):
    try:
        yield
    except NalbError as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"not refused: {words}")


def main():
    check_refusals()
    stolen = 0
    for workers, chunks, weights, subset in (
        (1, 1, (1, 1, 1), None),
        (2, 2, (1, 1, 1), None),
        (2, 4, (1, 2, 4), [1]),
        (3, 5, (1, 2, 4), [0, 2]),
        (4, 8, (1, 1, 2), [0]),
        (4, 24, (1, 8, 8), None),
    ):
        for optimizer in OPTIMIZERS:
            shape, policy = Shape(TOTAL, chunks, weights), fela(workers, 3, subset)
            stolen += check(
                f"fela {workers} {weights} {subset} {optimizer}", workers, policy, shape, "hybrid", optimizer
            )
    assert stolen, "no backward token was computed by another worker than its forward token"
    for middle in (0, 1):
        check(f"conditional {middle}", 3, fela(3, 3, [1], middle), Shape(TOTAL, 6, (1, 2, 2)), "plain")
    policy, shape = data_parallel(3, TOTAL, 3)
    assert not check("dp", 3, policy, shape)
    policy, shape = hybrid_parallel(3, TOTAL, 3)
    check("hp", 3, policy, shape)
    policy, shape = model_parallel(3, TOTAL, 3, 4)
    check("mp", 3, policy, shape)
    for workers, chunks in ((1, 1), (3, 6)):
        check("conv", workers, fela(workers, 3), Shape(TOTAL, chunks, (1, 2, 2)), "conv")
    check("norm alone", 1, fela(1, 3), Shape(TOTAL, 1, (1, 1, 1)), "norm")
    check_running_statistics()
    check_a_loss_that_learns()
    check_what_a_forward_pass_changes()
    check_frozen_weights_and_other_types()
    check_newcomers()
    check_partition()
    print("stolen", stolen)


if __name__ == "__main__":
    main()
