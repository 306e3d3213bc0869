"""What the workers of the KVStore tests run: `python workers.py CASE`. Each case checks itself; an assertion fails the job."""

import ctypes
import gc
import os
import sys
import time

import mxnet as mx
import numpy as np
from mxnet import nd
from mxnet.base import _LIB, check_call
from mxnet.gluon import nn

from kvstore_patch.gluon import agreement
from kvstore_patch.store.exchange import JobFinished
from nalb.errors import StoreError

store = mx.kv.create("nalb")
RANK, COUNT = store.rank, store.num_workers


def close(array, expected):
    np.testing.assert_allclose(array.asnumpy(), expected, rtol=1e-6, atol=1e-7)


def values(shape, seed, dtype="float32"):
    """Every worker's arrays, known to all: worker r's is values(...)[r]."""
    generator = np.random.RandomState(seed)
    return [generator.uniform(-1, 1, shape).astype(dtype) for _ in range(COUNT)]


def peek(array):
    """The first number of a float32 array as it is now; asnumpy would wait for what is under way."""
    address = ctypes.c_void_p()
    check_call(_LIB.MXNDArrayGetData(array.handle, ctypes.byref(address)))
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_float))[0]


def refused(call, text):
    """A StoreError of one line, which says this."""
    try:
        call()
    except StoreError as error:
        assert text in str(error), (text, str(error))
        assert "\n" not in str(error)
    else:
        raise AssertionError(f"no error about {text}")


def properties():
    assert store.type == "dist_sync_nalb"
    assert mx.kv.create(store.type) is store
    assert (COUNT, 0 <= RANK < COUNT) == (2, True)
    assert store.is_capable("optimizer") is False
    assert isinstance(store, mx.kvstore.KVStoreBase)


def broadcast():
    for key, shape, dtype in (
        (0, (3, 4), "float32"),
        ("w", (70_001,), "float32"),
        (2, (1,), "float32"),
        (3, (5,), "float16"),
    ):
        mine = values(shape, 5, dtype)[RANK]
        outs = (
            [nd.zeros(shape, dtype=dtype), nd.zeros(shape, dtype=dtype)] if key == 0 else nd.zeros(shape, dtype=dtype)
        )
        store.broadcast(key, nd.array(mine, dtype=dtype), outs)
        for out in outs if isinstance(outs, list) else [outs]:
            assert (out.asnumpy() == values(shape, 5, dtype)[0]).all(), (key, RANK)


def broadcast_reordered(turn):
    """Broadcasts the weight of a convolution that infers; returns the convolution and its weight."""
    convolution = nn.Conv2D(64, 3, groups=4, in_channels=64)
    convolution.initialize()
    weight = convolution.weight.data()
    weight[:] = turn + RANK
    for _ in range(3):
        convolution(nd.ones((2, 64, 12, 12)))
    store.broadcast(f"weight{turn}", weight, [weight])
    assert (weight.asnumpy() == turn).all()
    return convolution, weight


def reordered():
    """A convolution that infers leaves its weight in oneDNN's layout, where no view can be read or written."""
    for turn in range(10):
        convolution, weight = broadcast_reordered(turn)
        convolution(nd.ones((2, 64, 12, 12)))
        store.add_up_once("sum of weights", weight)
        assert (weight.asnumpy() == turn * COUNT).all()


def stock_broadcasts():
    """MXNet's own store sends what a convolution that infers has in oneDNN's layout, and says where an optimizer's state is."""
    for turn in range(10):
        broadcast_reordered(turn)
    refused(lambda: store.save_optimizer_states("states"), "pass update_on_kvstore=False to Trainer")
    refused(lambda: store.load_optimizer_states("states"), "pass update_on_kvstore=False to Trainer")


def inferred(weight):
    """The same numbers in oneDNN's layout: the weight of a convolution that is inferring."""
    convolution = nn.Conv2D(len(weight), 3, groups=4, in_channels=4 * weight.shape[1])
    convolution.initialize()
    convolution.weight.set_data(nd.array(weight))
    for _ in range(3):
        convolution(nd.ones((2, 4 * weight.shape[1], 6, 6)))
    return convolution.weight.data()


def reordered_sums():
    """One array or one per device, in place or out=, without a plan and with one; more pieces than there are slots."""
    for turn in range(6):
        everyone = [np.rint(1000 * np.array(values((512, 128, 3, 3), 3 * turn + i))) for i in range(3)]
        mine = [inferred(everyone[i][RANK]) for i in range(3)]
        outs = [inferred(everyone[i][0]) for i in range(3)] if turn % 2 else mine
        store.pushpull(["one", "two"], [mine[0], mine[1:]], out=[outs[0], outs[1:]])
        close(outs[0], sum(everyone[0]))
        for out in outs[1:]:
            close(out, sum(everyone[1]) + sum(everyone[2]))


def painted(ranks, kvstore):
    """An image after five steps towards these workers' targets as a convolution sees them: oneDNN lays its gradient out."""
    image, convolution = mx.gluon.Parameter("image", shape=(2, 64, 12, 12)), nn.Conv2D(64, 3, in_channels=64)
    image.initialize(mx.init.Constant(0.1))
    convolution.initialize(mx.init.Constant(0.01))
    trainer = mx.gluon.Trainer([image], "sgd", {"learning_rate": 0.01}, kvstore=kvstore)
    for step in range(5):
        with mx.autograd.record():
            seen = convolution(image.data())
            loss = sum(((seen - nd.array(values(seen.shape, step)[rank])) ** 2).sum() for rank in ranks)
        loss.backward()
        trainer.step(COUNT)
    return image.data().asnumpy()


def conv_input():
    """A parameter that a convolution reads as its data: the same as one process with everyone's targets."""
    np.testing.assert_allclose(painted([RANK], "nalb"), painted(range(COUNT), None), rtol=1e-4, atol=1e-6)


def doubles():
    """Stock servers add float64 with float32's precision (MXNet 1.9.1): known, and no worse than that."""
    mine, out = values((70_001,), 5, "float64"), nd.zeros((70_001,), dtype="float64")
    store.broadcast("wide", nd.array(mine[RANK], dtype="float64"), out)
    np.testing.assert_allclose(out.asnumpy(), mine[0], rtol=1e-7)


def sums():
    """One list call with every kind of shape and dtype, over many iterations, in place and out=."""
    shapes = {"a": (300, 401), "b": (1,), "c": (7, 3, 5), "d": (250_000,)}
    kinds = [(name, shape, dtype) for dtype in ("float32", "float64") for name, shape in shapes.items()]
    keys = [name + dtype for name, _, dtype in kinds]
    for iteration in range(6):
        all_values = [values(shape, 17 * iteration + i, dtype) for i, (_, shape, dtype) in enumerate(kinds)]
        mine = [nd.array(v[RANK], dtype=dtype) for v, (_, _, dtype) in zip(all_values, kinds)]
        if iteration % 2:
            outs = [nd.zeros(shape, dtype=dtype) for _, shape, dtype in kinds]
            store.pushpull(keys, mine, out=outs)
            for array, v in zip(mine, all_values):
                assert (array.asnumpy() == v[RANK]).all(), "out= must leave the value alone"
        else:
            outs = mine
            store.pushpull(keys, mine)
        for out, v in zip(outs, all_values):
            if out.size:
                close(out, sum(v))


def half():
    for iteration in range(4):
        array = nd.full((3000,), (RANK + 1) * (iteration + 1), dtype="float16")
        store.pushpull(9, array)
        assert (array.asnumpy() == 3 * (iteration + 1)).all()


def single_keys():
    """One call per key, read at once: the result of a call may not wait for the next call."""
    for iteration in range(4):
        for key in range(5):
            everyone = values((40, key + 1), 100 * iteration + key)
            array = nd.array(everyone[RANK])
            store.pushpull(key, array, priority=-key)
            close(array, sum(everyone))


def devices():
    """One array per device."""
    for iteration in range(4):
        everyone = [values((11, 13), 7 * iteration + device) for device in range(2)]
        arrays = [nd.array(everyone[device][RANK], ctx=mx.cpu(device)) for device in range(2)]
        outs = [nd.zeros((11, 13), ctx=mx.cpu(device)) for device in range(2)]
        store.pushpull("k", arrays, out=outs)
        for out in outs:
            close(out, sum(sum(v) for v in everyone))


def empty_arrays():
    """Of size 0: one or one per device, with others, as all that a call pushes, as all that any call pushes."""

    def empty():
        with mx.util.np_shape(True):
            return [nd.zeros((0, 3), ctx=mx.cpu(device)) for device in range(2)]

    one, several, outs = empty()[0], empty(), empty()
    for _ in range(3):
        store.pushpull("alone", several, out=outs)
    for _ in range(3):
        full = [nd.ones((5,), ctx=mx.cpu(device)) for device in range(2)]
        store.pushpull(["one", "several", "full"], [one, several, full], out=[one, outs, full])
        close(full[1], [2 * COUNT] * 5)
    store.broadcast("of none", several[0], several)
    store.add_up_once("once none", one)
    for _ in range(3):
        store.pushpull("first", several)
        store.pushpull("second", nd.ones((5,)))
    store.pushpull("first", several)
    store.broadcast("breaks off", nd.ones((2,)), nd.ones((2,)))
    full = nd.ones((5,))
    store.pushpull(["full again", "and none"], [full, several])
    close(full, [COUNT] * 5)


def keys_used_once():
    """Keys with the step's number: nobody keeps their arrays."""

    import threading

    def arrays():
        is_idle = threading.Event()  # the thread that waits for sums holds an array of each call until these have come
        store.exchange.session.note_once(is_idle.set)
        assert is_idle.wait(60)
        gc.collect()
        return sum(isinstance(one, mx.nd.NDArray) for one in gc.get_objects())

    counts = []
    for step in range(20):
        store.pushpull(f"metric of step {step}", nd.ones((3,)))
        counts.append(arrays())
    assert counts[-1] == counts[5], counts


def breaks_off():
    """A broadcast comes after the first of two sums in turn 5."""
    for turn in range(8):
        store.pushpull("first", nd.ones((5,)))
        if turn == 5:
            store.broadcast("in the middle", nd.ones((2,)), nd.ones((2,)))
        else:
            store.pushpull("second", nd.ones((5,)))


def changing_calls():
    """A call that does not fit the record starts a new one, as often as it happens."""
    for keys in ([0, 1], [0, 1], [0, 1], [2], [0, 1], [2], [0, 1], [2], [0, 1], [0, 1], [3, 0], [3, 0], [3, 0]):
        everyone = [values((50,), key + 31) for key in keys]
        arrays = [nd.array(v[RANK]) for v in everyone]
        store.pushpull(keys, arrays)
        for array, v in zip(arrays, everyone):
            close(array, sum(v))


def faults():
    """Wrong use: one clear StoreError each, and the store still works."""
    sparse = nd.array([[0, 1], [2, 0]]).tostype("row_sparse")
    store.pushpull("known", nd.ones((4,)))
    wrong = [
        (lambda: store.pushpull("s", sparse), "row_sparse"),
        (lambda: store.pushpull("known", nd.ones((5,))), "keeps its shape"),
        (lambda: store.pushpull("known", nd.ones((4,), dtype="float64")), "float64"),
        (lambda: store.pushpull("i", nd.ones((4,), dtype="int32")), "int32"),
        (lambda: store.pushpull(["x", "y", "x"], [nd.ones(1)] * 3), "twice in one call: x: give each once"),
        (lambda: store.pushpull(["x", "y"], [nd.ones(1)]), "2 keys, 1 values"),
        (lambda: store.pushpull([], []), "at least one key"),
        (lambda: store.pushpull(2.5, nd.ones(1)), "key 2.5 is of type float: give an integer or a string"),
        (lambda: store.pushpull(b"x", nd.ones(1)), "is of type bytes"),
        (lambda: store.pushpull(["x", None], [nd.ones(1)] * 2), "key None is of type NoneType"),
        (lambda: store.add_up_once(2.5, nd.ones(1)), "key 2.5 is of type float"),
        (
            lambda: store.add_up_once("sparse", nd.ones((2, 2)).tostype("csr")),
            "key 'sparse' is csr: kvstore 'nalb' sums dense",
        ),
        (lambda: store.pushpull("e", []), "key 'e' has no array: give one, or one per device"),
        (lambda: store.broadcast("e", nd.ones(1), []), "key 'e' has no array"),
        (lambda: store.pushpull("n", np.ones(3)), "NDArray"),
        (lambda: store.set_gradient_compression({"type": "2bit"}), "compression"),
        (lambda: store.set_optimizer(mx.optimizer.SGD()), "worker"),
        (lambda: store.push(1, nd.ones(1)), "no separate push"),
        (lambda: store.pull(1, out=nd.ones(1)), "no separate push"),
        (lambda: store.row_sparse_pull(1, out=sparse, row_ids=nd.ones(1)), "no separate push"),
        (lambda: store.init(1, nd.ones(1)), "leave init out"),
        (lambda: store.save_optimizer_states("states"), "the Trainer's save_states"),
        (lambda: store.load_optimizer_states("states"), "the Trainer's save_states"),
        (lambda: store._set_updater(print), "sum by pushpull"),
        (lambda: store._send_command_to_servers(0, ""), "leave it out"),
        (lambda: store.handle, "use its methods"),
        (lambda: mx.kv.create("dist_sync"), "MXNet's own kvstore 'dist_sync'"),
        (lambda: mx.kv.create("nalbb"), "write 'nalb'"),
        (lambda: mx.gluon.Trainer(embedding(), "sgd", {}, kvstore="dist_device_sync").step(1), "--scheme stock"),
        (lambda: mx.gluon.Trainer(embedding(), "sgd", {}, kvstore="nalbb").step(1), "write 'nalb'"),
        (
            lambda: mx.gluon.Trainer(embedding(sparse_grad=True), "sgd", {}, kvstore="nalb").step(1),
            "leave out sparse_grad",
        ),
        (
            lambda: mx.gluon.Trainer(embedding(sparse_grad=True), "sgd", {}, kvstore=store).step(1),
            "leave out sparse_grad",
        ),
        (lambda: mx.gluon.Trainer(embedding(), "sgld", {}, kvstore=store).step(1), "SGLD draws random numbers"),
        (lambda: store.is_capable("flying"), "flying"),
    ]
    for call, text in wrong:
        refused(call, text)
    assert not {name for name in vars(mx.kvstore.KVStore) if not name.startswith("__")} - {*dir(store)}
    assert not hasattr(store, "handle")
    for key in ("known", 33, np.int64(33), np.uint8(33)):
        array = nd.ones((4,))
        store.pushpull(key if RANK else [key], array if RANK else [array])
        assert (array.asnumpy() == COUNT).all()


def embedding(**options):
    """A net's parameters, which are given."""
    net = nn.Embedding(4, 3, **options)
    net.initialize()
    return net.collect_params()


def barriers():
    """No worker goes on before the last has come."""
    import time
    from pathlib import Path

    for turn in range(3):
        for last in range(COUNT):
            mark = Path(sys.argv[2], f"barrier{turn}{last}")
            if last == RANK:
                time.sleep(0.3)
                mark.touch()
            store._barrier()
            assert mark.exists()


SLOW_S = 4.0  # longer than the silence that the job allows, 3/5 of --deadline-s


def register_slow():
    """Make `slow`, an operation that takes SLOW_S, as a large pass does. MXNet has threads for such ones from then on."""

    class Operation(mx.operator.CustomOp):
        def forward(self, is_train, req, in_data, out_data, aux):
            del is_train, aux
            time.sleep(SLOW_S)
            self.assign(out_data[0], req[0], in_data[0])

    class Properties(mx.operator.CustomOpProp):
        def create_operator(self, *_):
            return Operation()

    mx.operator.register("slow")(Properties)


def slow_passes():
    """Neither a first pass that still reads the weights which are broadcast, nor a last gradient in the middle, is a dead link."""
    register_slow()
    weight = nd.full((2000,), RANK)
    passed = nd.Custom(weight, op_type="slow")
    store.broadcast("weight", weight, weight)
    assert (weight.asnumpy() == 0).all()
    assert (passed.asnumpy() == RANK).all()
    gradients = [nd.zeros((3000,)) for _ in range(3)]
    for turn in range(6):
        for one in gradients:
            one[:] = turn
        if turn == 4:
            nd.Custom(gradients[0], op_type="slow").copyto(gradients[1])
        store.pushpull([1, 2, 3], gradients)
        for one in gradients:
            assert (one.asnumpy() == COUNT * turn).all()


def files():
    """Rank 1's file comes to all, in few sums: far from the others each sum costs round trips."""
    data = np.random.RandomState(3).bytes(2 * agreement.PIECE_ELEMENTS_MOST + 3)
    sizes, add_up_once = [], store.add_up_once

    def counted(key, array):
        sizes.append(array.size)
        add_up_once(key, array)

    store.add_up_once = counted
    try:
        assert agreement.agree(store, 7, data if RANK == 1 else None) == data
    finally:
        del store.add_up_once
    assert len(sizes) == 3, "the table of files and two halves"
    assert max(sizes) <= agreement.PIECE_ELEMENTS_MOST


def layers_made_apart():
    """Gluon counts a process's layers in their names; a worker that has made one more sums the same parameters as the others."""
    for _ in range(9 - RANK):  # layers 9 and 10 on rank 0, of which MXNet updates 10 first
        nn.Dense(1)
    layers = nn.Dense(4, in_units=4, use_bias=False), nn.Dense(4, in_units=4, use_bias=False)
    net = nn.Sequential()
    net.add(*layers)
    net.initialize()
    for place, layer in enumerate(layers):
        layer.weight.set_data(nd.full((4, 4), place))
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 1.0}, kvstore=store)
    for _ in range(4):
        with mx.autograd.record():
            loss = layers[0].weight.data().sum() + 10 * layers[1].weight.data().sum()
        loss.backward()
        trainer.step(COUNT)
    close(layers[0].weight.data(), np.full((4, 4), -4.0))
    close(layers[1].weight.data(), np.full((4, 4), 1 - 40.0))
    alone = nn.Sequential()
    alone.add(*(nn.Dense(4, in_units=4, use_bias=False, prefix=f"dense{number}_") for number in (9, 10)))
    alone.initialize()
    for one, like in zip(alone, layers, strict=True):
        one.weight.set_data(like.weight.data())
    for trained, where in ((net, store), (alone, None)):
        trainer = mx.gluon.Trainer(
            trained.collect_params(), "nadam", kvstore=where
        )  # has a number that each update changes
        for _ in range(3):
            with mx.autograd.record():
                loss = trained[0].weight.data().sum() + 10 * trained[1].weight.data().sum()
            loss.backward()
            trainer.step(COUNT if where else 1)
    for one, like in zip(layers, alone, strict=True):
        assert (one.weight.data() == like.weight.data()).asnumpy().all(), "as MXNet alone, on each worker"


def first_sums_overlap():
    """Pieces of one array are all under way at once: rank 0 fills every slot while no other worker has pushed yet."""
    import time
    from pathlib import Path

    from kvstore_patch.keys.slots import DEPTH, PIECE_ELEMENTS

    mark, pieces = Path(sys.argv[2], "sums"), DEPTH * COUNT  # as many servers as workers
    store.pushpull("makes the slots", nd.ones((PIECE_ELEMENTS[0],)))
    mx.nd.waitall()
    expected = values((pieces * 2 * PIECE_ELEMENTS[0],), 7)
    array = nd.array(expected[RANK])
    if RANK:
        direct = store.exchange.direct
        add_up = direct.add_up

        def stay_and_add_up(*arguments):
            while not mark.exists():
                time.sleep(0.05)
            add_up(*arguments)

        direct.add_up = stay_and_add_up
        store.pushpull("large", array)
        direct.add_up = add_up
    else:
        store.pushpull("large", array)
        buffers = store.exchange.direct.slots("float32", PIECE_ELEMENTS[0])
        starts = set(expected[0][: pieces * PIECE_ELEMENTS[0] : PIECE_ELEMENTS[0]].tolist())
        end_s, found = time.monotonic() + 20, set()
        while found != starts and time.monotonic() < end_s:
            time.sleep(0.05)
            found = starts & {peek(buffer) for buffer in buffers}
        mark.touch()
        assert found == starts, f"{len(found)} of {pieces} pieces left before an answer came"
    close(array, sum(expected))


def slots_asked_for_last():
    """Slots for a plan that nobody will use: their thread is still at work when the script ends."""
    import time

    from kvstore_patch.store.slot_maker import SlotMaker
    from nalb.services.exchange import messages as m

    make = SlotMaker.make

    def slowly(self, slots):
        make(self, slots)
        time.sleep(1)

    sums()
    SlotMaker.make = slowly
    store.exchange.slot_maker.orders.put(m.PrepareSlots(99, 0, [m.NewSlots(RANK, 500, 2, 4096, "float32")]))


def gluon():
    """Trainer with the store's name: the weights stay alike on all workers and the gradients are the sums."""
    mx.random.seed(3)
    net = nn.HybridSequential()
    net.add(nn.Dense(64, activation="relu"), nn.BatchNorm(), nn.Dense(3))
    net.initialize(mx.init.Xavier())
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, kvstore="nalb")
    rng = np.random.RandomState(RANK)
    for _ in range(5):
        data = nd.array(rng.randn(8, 20))
        with mx.autograd.record():
            loss = (net(data) ** 2).sum()
        loss.backward()
        trainer.step(8 * COUNT)
    weights = np.concatenate(
        [p.data().asnumpy().ravel() for p in net.collect_params().values() if p.grad_req != "null"]
    )
    out = nd.zeros((len(weights),))
    trainer._kvstore.broadcast("check", nd.array(weights), out)
    assert (out.asnumpy() == weights).all()
    assert trainer._kvstore.type == "dist_sync_nalb"


def cast():
    """A net that is trained on in another precision has new keys: the same as one process with everyone's samples."""

    def trained_twice(ranks, kvstore):
        net = nn.Dense(3, in_units=20)
        net.initialize(mx.init.Constant(0.1))
        for dtype in ("float32", "float64"):
            net.cast(dtype)
            trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)
            for step in range(4):
                data = nd.array(np.concatenate([values((8, 20), step, dtype)[rank] for rank in ranks]), dtype=dtype)
                with mx.autograd.record():
                    loss = (net(data) ** 2).sum()
                loss.backward()
                trainer.step(8 * COUNT)
        return [parameter.data().asnumpy() for parameter in net.collect_params().values()]

    for ours, alone in zip(trained_twice([RANK], "nalb"), trained_twice(range(COUNT), None)):
        assert ours.dtype == np.float64
        np.testing.assert_allclose(ours, alone, rtol=1e-5)


def updates_on_workers():
    """MXNet's own store obeys MXNET_UPDATE_ON_KVSTORE=0, by our name too."""
    net = nn.Dense(3, in_units=2)
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="nalb")
    with mx.autograd.record():
        loss = net(nd.ones((2, 2)))
    loss.backward()
    trainer.step(2)
    assert trainer._update_on_kvstore is False
    trainer.save_states(f"{sys.argv[2]}/states")
    trainer.load_states(f"{sys.argv[2]}/states")


def fails_unseen():
    """An operation that nobody waits for fails as the script ends."""
    sums()
    if RANK:
        mx.nd.take(nd.ones((3,)), nd.array([99]), mode="raise")


def fails_amid_an_iteration():
    """What makes a gradient fails once the iterations are planned, while the script is busy with something else."""
    for iteration in range(5):
        array = nd.ones((3,))
        if RANK and iteration == 4:
            array = mx.nd.take(array, nd.array([97, 98, 99]), mode="raise")
        store.pushpull("k", array)
    # A further call, or mx.nd.waitall(), could raise the error in the script before nalb's thread tells it.
    time.sleep(60)


def gan(ranks, stores):
    """Generator and critic after six steps of each, on the samples of these workers; the critic is unfrozen after three."""
    mx.random.seed(3)
    generator, critic = nn.Dense(6, in_units=4), nn.HybridSequential()
    critic.add(nn.Dense(9, activation="tanh", in_units=6), nn.Dense(1, in_units=9))
    for net in (generator, critic):
        net.initialize(mx.init.Xavier())

    def trainer_of(net, kvstore):
        return mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore=kvstore)

    generators, critics = trainer_of(generator, stores[0]), trainer_of(critic[1], stores[1])
    for step in range(6):
        if step == 3:
            critics = trainer_of(critic, stores[2])
        noise, real = (nd.array(np.concatenate([values((8, width), step)[rank] for rank in ranks])) for width in (4, 6))
        with mx.autograd.record():
            loss = (critic(generator(noise)) ** 2).sum() + ((critic(real) - 1) ** 2).sum()
        loss.backward()
        critics.step(8 * COUNT)
        with mx.autograd.record():
            loss = ((critic(generator(noise)) - 1) ** 2).sum()
        loss.backward()
        generators.step(8 * COUNT)
    return [p.data().asnumpy() for net in (generator, critic) for p in net.collect_params().values()]


def several_trainers():
    """Made by the store's name or with the store itself: the same as one process with everyone's samples."""
    for ours, alone in zip(gan([RANK], ["nalb", store, "nalb"]), gan(range(COUNT), [None] * 3)):
        np.testing.assert_allclose(ours, alone, rtol=1e-4, atol=1e-6)


def branched(ranks, kvstore):
    """Weights after six steps on the samples of these workers, of which one at a time has a batch that uses the branch."""
    mx.random.seed(3)
    trunk, branch = nn.Dense(6, in_units=4), nn.Dense(6, in_units=4)
    for net in (trunk, branch):
        net.initialize(mx.init.Xavier())
    parameters = [*trunk.collect_params().values(), *branch.collect_params().values()]
    trainer = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1, "momentum": 0.9}, kvstore=kvstore)
    for step in range(6):
        batches = {rank: nd.array(values((8, 4), step)[rank]) for rank in ranks}
        with mx.autograd.record():
            outs = [trunk(batch) + (branch(batch) if rank == step % COUNT else 0) for rank, batch in batches.items()]
            loss = sum((out**2).sum() for out in outs)
        loss.backward()
        trainer.step(8 * COUNT, ignore_stale_grad=True)
    try:
        trainer.step(8 * COUNT)
    except UserWarning as warning:
        assert "has not been updated by backward" in str(warning)
    else:
        raise AssertionError("MXNet's own complaint about stale gradients did not come")
    return [parameter.data().asnumpy() for parameter in parameters]


def stale_gradients():
    """A branch that a worker's batch does not use: the same as one process with everyone's samples."""
    for ours, alone in zip(branched([RANK], "nalb"), branched(range(COUNT), None)):
        np.testing.assert_allclose(ours, alone, rtol=1e-4, atol=1e-6)


def local_steps():
    """Updates without a sum skip what the batch does not use; a gradient from before the store is no one's."""
    trunk, branch = nn.Dense(6, in_units=4), nn.Dense(6, in_units=4)
    for net in (trunk, branch):
        net.initialize(mx.init.One())
    parameters = [*trunk.collect_params().values(), *branch.collect_params().values()]

    def step(trainer, has_branch, has_sum):
        with mx.autograd.record():
            out = trunk(nd.ones((8, 4)))
            out = out + branch(nd.ones((8, 4))) if has_branch else out
            loss = out.sum()
        loss.backward()
        if has_sum:
            trainer.allreduce_grads()
        before = [net.weight.data().asnumpy() for net in (trunk, branch)]
        trainer.update(8 * COUNT, ignore_stale_grad=True)
        return [
            not np.array_equal(old, net.weight.data().asnumpy())
            for old, net in zip(before, (trunk, branch), strict=True)
        ]

    alone = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1}, kvstore=None)
    assert step(alone, True, False) == [True, True]
    trainer = mx.gluon.Trainer(parameters, "sgd", {"learning_rate": 0.1}, kvstore="nalb")
    assert step(trainer, False, True) == [True, False]
    for has_sum in (True, False, False, True):
        assert step(trainer, True, has_sum) == [True, True]
        assert step(trainer, False, False) == [True, False]
        assert step(trainer, False, True) == [True, False]


def whole_numbers():
    """Parameters that servers cannot add up are rank 0's everywhere: a table of indices, say."""
    for dtype, shape in (("int32", (3, 5)), ("uint8", (7,)), ("int64", ()), ("int8", (1,))):
        given = nd.array(np.full(shape or (1,), 100 + RANK), dtype=dtype)
        found = nd.zeros(given.shape, dtype=dtype)
        store.broadcast(f"whole {dtype}", given, found)
        assert (found.asnumpy() == 100).all(), dtype

    class Placed(mx.gluon.Block):
        def __init__(self):
            super().__init__()
            with self.name_scope():
                self.index = self.params.get_constant("index", nd.array([2**30 + RANK, 1], dtype="int32"))
                self.dense = nn.Dense(2, in_units=2)

        def forward(self, x):
            return self.dense(x)

    net = Placed()
    net.initialize()
    trainer = mx.gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": 0.1}, kvstore="nalb")
    with mx.autograd.record():
        loss = net(nd.ones((4, 2))).sum()
    loss.backward()
    trainer.step(4 * COUNT)
    assert net.index.data().asnumpy().tolist() == [2**30, 1]


def sums_while_autograd_records():
    weight = nd.ones((3,))
    weight.attach_grad()
    for step in range(8):
        with mx.autograd.record():
            loss = (weight * 2).sum()
            total = nd.ones((5,)) * (step + RANK)
            store.pushpull("recorded", total)
        loss.backward()
        close(total, [COUNT * step + sum(range(COUNT))] * 5)
        close(weight.grad, [2] * 3)


def fails_before_a_fork():
    """Who forks hears of an operation that had failed unread; Python prints errors of its hooks, and goes on."""
    lost = nd.take(nd.ones((3,)), nd.array([9]), mode="raise")
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    try:
        store.pushpull("after the fork", nd.ones((2,)))
    except mx.base.MXNetError as error:
        assert "index" in str(error).lower(), error
    else:
        raise AssertionError("the error is lost")
    total = nd.ones((2,))
    store.pushpull("after the fork", total)
    close(total, [COUNT] * 2)
    del lost


def forks():
    """Rank 0 forks amid an exchange: other threads run meanwhile, or no sign of life would go out; children end by themselves."""
    import threading
    import time
    from pathlib import Path

    mark, array, is_forking = Path(sys.argv[2], "fork"), nd.ones((4,)), threading.Event()
    for _ in range(3):
        store.pushpull("known", nd.ones((4,)))
    if RANK:
        end_s = time.monotonic() + 20
        while not mark.exists() and time.monotonic() < end_s:
            time.sleep(0.05)
        assert mark.exists(), "no other thread ran while rank 0 forked"
        store.pushpull("known", array)
    else:

        def live():
            is_forking.wait()
            time.sleep(0.5)
            mark.touch()

        threading.Thread(target=live).start()
        store.pushpull("known", array)
        is_forking.set()
        child = os.fork()
        if not child:
            sys.exit(7)
        assert os.waitpid(child, 0)[1] == 7 << 8
    close(array, [COUNT] * 4)
    loader = mx.gluon.data.DataLoader(mx.gluon.data.ArrayDataset(np.arange(8)), 4, num_workers=1)
    assert [batch.sum().asscalar() for batch in loader] == [6, 22]


def fitted(ranks, kvstore, seed, optimizer="sgd", **options):
    """A symbolic Module's parameters after six steps on the samples of these workers; the seed is of the first ones."""
    mx.random.seed(seed)
    first = mx.sym.FullyConnected(mx.sym.Variable("data"), num_hidden=300, name="first")
    second = mx.sym.FullyConnected(mx.sym.Activation(first, act_type="tanh"), num_hidden=3, name="second")
    module = mx.mod.Module(mx.sym.SoftmaxOutput(second, name="softmax"))
    size = 8 * len(ranks)
    module.bind([("data", (size, 4))], [("softmax_label", (size,))])
    module.init_params(mx.init.Xavier())
    options = options or {"learning_rate": 0.5, "momentum": 0.9}
    module.init_optimizer(kvstore=kvstore, optimizer=optimizer, optimizer_params=options)
    for step in range(6):
        data = nd.array(np.concatenate([values((8, 4), step)[rank] for rank in ranks]))
        module.forward_backward(mx.io.DataBatch([data], [data[:, :3].argmax(axis=1)]))
        module.update()
    return module.get_params()[0]


def symbolic():
    """mx.mod.Module, whose workers begin apart: the same as one process that begins as rank 0 and has everyone's samples."""
    ours, alone = fitted([RANK], "nalb", RANK), fitted(range(COUNT), None, 0)
    for name, weights in alone.items():
        np.testing.assert_allclose(ours[name].asnumpy(), weights.asnumpy(), rtol=1e-4, atol=1e-6)
    if os.environ["NALB_SCHEME"] != "stock":  # whose servers draw for all
        refused(lambda: fitted([RANK], "nalb", RANK, "sgld", learning_rate=0.1), "SGLD draws random numbers")


LAYERS = 4


def layers(count=LAYERS):
    """(net, data, labels) of so many layers of one shape, as a BucketingModule asks for them; the last one learns slowly."""
    data = mx.sym.Variable("data")
    for place in range(count - 1):
        data = mx.sym.Activation(mx.sym.FullyConnected(data, num_hidden=4, name=f"layer{place}"), act_type="tanh")
    weight = mx.sym.Variable("last_weight", lr_mult=0.2)
    last = mx.sym.FullyConnected(data, weight, num_hidden=4, name="last")
    return mx.sym.SoftmaxOutput(last, name="softmax"), ["data"], ["softmax_label"]


def ready(module, ranks, kvstore, seed, parameters=None):
    """The module, with parameters of this seed or these, and with an optimizer, for the samples of these workers."""
    mx.random.seed(seed)
    size = 8 * len(ranks)
    module.bind([("data", (size, 4))], [("softmax_label", (size,))])
    module.init_params(mx.init.Xavier(), parameters)
    optimizer = {"learning_rate": 0.5, "momentum": 0.9}
    module.init_optimizer(kvstore=kvstore, optimizer="sgd", optimizer_params=optimizer)
    return module


def step_in_buckets(module, ranks, counts):
    """For each count of layers, one step in its bucket on the samples of these workers."""
    for step, count in enumerate(counts):
        data = nd.array(np.concatenate([values((8, 4), step)[rank] for rank in ranks]))
        shapes = {"provide_data": [("data", data.shape)], "provide_label": [("softmax_label", data.shape[:1])]}
        module.forward_backward(mx.io.DataBatch([data], [data.argmax(axis=1)], bucket_key=count, **shapes))
        module.update()


def same_parameters(ours, theirs):
    ours, theirs = ours.get_params()[0], theirs.get_params()[0]
    for name, weights in theirs.items():
        np.testing.assert_allclose(ours[name].asnumpy(), weights.asnumpy(), rtol=1e-4, atol=1e-6, err_msg=name)


def buckets():
    """Buckets of different layers: the same as one process, whose store updates by name."""
    for devices in (1, 2):
        contexts = [mx.cpu(device) for device in range(devices)]
        ours = ready(mx.mod.BucketingModule(layers, LAYERS, context=contexts), [RANK], "nalb", RANK)
        alone = ready(mx.mod.BucketingModule(layers, LAYERS), range(COUNT), mx.kv.create("local"), 0)
        counts = [4, 1, 2, 4, 3, 1, 4]
        step_in_buckets(ours, [RANK], counts)
        step_in_buckets(alone, range(COUNT), counts)
        same_parameters(ours, alone)


def module_states():
    """Optimizer states that a Module saves in a job serve a Module without one."""
    file = f"{sys.argv[2]}/{RANK}.states"
    ours = ready(mx.mod.Module(layers()[0]), [RANK], "nalb", RANK)
    step_in_buckets(ours, [RANK], [LAYERS] * 2)
    ours.save_optimizer_states(file)
    alone = ready(mx.mod.Module(layers()[0]), range(COUNT), None, 0, ours.get_params()[0])
    alone.load_optimizer_states(file)
    step_in_buckets(ours, [RANK], [LAYERS] * 2)
    step_in_buckets(alone, range(COUNT), [LAYERS] * 2)
    same_parameters(ours, alone)


def perceptron():
    """A symbolic net, whose layers have names of MXNet's choice where they are given none, and everyone's samples."""
    hidden = mx.sym.Activation(mx.sym.FullyConnected(mx.sym.var("data"), num_hidden=8), act_type="relu")
    samples = np.random.RandomState(0).rand(64, 5).astype("float32")
    return (
        mx.sym.SoftmaxOutput(mx.sym.FullyConnected(hidden, num_hidden=3), name="softmax"),
        samples,
        samples[:, :3].argmax(1),
    )


def fit_by_type(kvstore):
    """A script that splits its data and divides its gradients where the store's type says that several workers train."""
    symbol, samples, labels = perceptron()
    is_split = kvstore is not None and "dist" in kvstore.type and "_async" not in kvstore.type
    part, parts = (kvstore.rank, kvstore.num_workers) if is_split else (0, 1)
    batch = 8 * COUNT // parts
    module = mx.mod.Module(symbol)
    mx.random.seed(1)
    options = {"learning_rate": 0.5, "rescale_grad": 1 / (batch * parts)}
    data = mx.io.NDArrayIter(samples[part::parts], labels[part::parts], batch)
    module.fit(data, num_epoch=2, kvstore=kvstore, initializer=mx.init.Xavier(), optimizer_params=options)
    return module.get_params()[0].values()


def fit_forward(kvstore):
    """FeedForward, Module's elder, divides by all workers' batches by itself; its layers get the same names everywhere."""
    symbol, samples, labels = perceptron()
    part, parts = (RANK, COUNT) if kvstore is not None else (0, 1)
    mx.random.seed(2)
    data = mx.io.NDArrayIter(samples[part::parts], labels[part::parts], 8 * COUNT // parts)
    model = mx.model.FeedForward(symbol, num_epoch=2, initializer=mx.init.Xavier(), learning_rate=0.5)
    model.fit(data, kvstore=kvstore)
    return model.arg_params.values()


def by_type():
    """Scripts that look at the store's type: the same as one process with everyone's samples, layers named apart or not."""
    if RANK:
        perceptron()[0].list_arguments()  # takes the first automatic names
    for fit in (fit_by_type, fit_forward):
        for ours, alone in zip(fit(store), fit(None)):
            np.testing.assert_allclose(ours.asnumpy(), alone.asnumpy(), rtol=1e-4, atol=1e-6)


def trained(as_array):
    """Weights after five steps; as_array: from numpy's to the kind of array that the net computes with."""
    net = nn.HybridSequential()
    net.add(nn.Dense(300, activation="relu", in_units=20), nn.Dense(3, in_units=300))
    net.initialize()
    parameters = list(net.collect_params().values())
    for seed, parameter in enumerate(parameters):
        parameter.set_data(as_array(values(parameter.shape, seed)[RANK]))
    trainer = mx.gluon.Trainer(net.collect_params(), "adam", {"learning_rate": 0.01}, kvstore="nalb")
    for step in range(5):
        data = as_array(values((8, 20), step)[RANK])
        with mx.autograd.record():
            loss = (net(data) ** 2).sum()
        loss.backward()
        trainer.step(8 * COUNT)
    return [parameter.data().asnumpy() for parameter in parameters]


def several_groups():
    """Three calls an iteration, 12 MB in all, long enough for tensors to be cut anew; whole numbers, so sums are exact."""
    groups = [
        [("a", 2_000_000, "float32"), ("b", 7, "float32")],
        [("c", 300_000, "float32")],
        [("d", 350_001, "float64")],
    ]
    for turn in range(15):
        for group in groups:
            keys, bases = [key for key, _, _ in group], [np.arange(size) % 1000 for _, size, _ in group]
            arrays = [nd.array((RANK + 1) * base + turn, dtype=kind) for base, (_, _, kind) in zip(bases, group)]
            store.pushpull(keys, arrays)
            for array, base in zip(arrays, bases):
                assert (array.asnumpy() == COUNT * (COUNT + 1) / 2 * base + COUNT * turn).all(), (turn, group)


def words_as_keys():
    """Two calls an iteration, of a held job: words as keys, two devices, other arrays for the sums, an empty one, three dtypes."""
    devices, turn = [mx.cpu(0), mx.cpu(1)], 0
    base = np.arange(1100 * 1000).reshape(1100, 1000) % 251  # large enough for MXNet to spread it over its servers
    try:
        while True:
            turn += 1
            weights = np.rint(1000 * np.array(values((512, 128, 3, 3), turn)))
            weight = inferred(weights[RANK])  # in oneDNN's layout, and another array each time
            halves = nd.full((300,), RANK + turn, dtype="float16")
            wide = [nd.full((7, 5), RANK + turn, ctx=device, dtype="float64") for device in devices]
            sums = [nd.zeros((7, 5), ctx=device, dtype="float64") for device in devices]
            large = nd.array(base * (RANK + 1) + turn)
            store.pushpull(["half", "wide"], [halves, wide], out=[halves, sums])
            apart = nd.zeros((1100, 1000))
            store.pushpull(["large", "weight"], [large, weight], out=[apart, weight])
            assert (large.asnumpy() == base * (RANK + 1) + turn).all(), "out= must leave the value alone"
            ranks = sum(rank + turn for rank in range(COUNT))
            assert (halves.asnumpy() == ranks).all()
            for one in sums:
                assert (one.asnumpy() == 2 * ranks).all()
            assert (apart.asnumpy() == COUNT * (COUNT + 1) / 2 * base + COUNT * turn).all()
            close(weight, sum(weights))
    except JobFinished:
        assert turn > 11


def numpy_arrays():
    """npx.set_np(): a Trainer's weights are those that it gives with NDArrays; one array or one per device, in place or out=."""
    with_ndarrays = trained(nd.array)
    mx.npx.set_np()
    for ours, theirs in zip(trained(mx.np.array), with_ndarrays):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    devices = [mx.cpu(0), mx.cpu(1)]
    for turn in range(4):
        arrays = [mx.np.full((5, 7), RANK + turn, ctx=device) for device in devices]
        outs = arrays if turn % 2 else [mx.np.zeros((5, 7), ctx=device) for device in devices]
        store.pushpull("several devices", arrays, out=outs)
        for out in outs:
            assert (out.asnumpy() == 2 * sum(rank + turn for rank in range(COUNT))).all()


if __name__ == "__main__":
    for case in sys.argv[1].split(","):
        globals()[case]()
        print(f"{case} ok on {RANK}", flush=True)
