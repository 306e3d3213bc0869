"""Speed predictors that are networks: simple RNN, LSTM and NARX, in Gluon (Chen et al., 3.2.2, section 4 and Table 3).

All three look back two iterations and have one hidden layer. RNN and LSTM see speeds alone. NARX is a feedforward network that also
sees CPU shares c and memory shares m, the present ones included (Eq. 4):

    v^k = F(v^(k-1), v^(k-2), c^k, c^(k-1), c^(k-2), m^k, m^(k-1), m^(k-2))

F is v^(k-1) exp(network): the network predicts the factor by which the speed changes. Errors then count in proportion to the speed,
as they do in an iteration's time: an error of 10 samples/s makes a slow worker the straggler, but not a fast one. And a level of
load that was never seen needs no extrapolation; a network that predicts v^k itself was tried and is worse there.

Speed is proportional to the CPU share that is left, so CPU shares enter as logarithms, as speeds do. The network then has to learn
little more than a sum, for which a few hundred iterations suffice. NARX sees changes of all inputs, but levels of CPU and memory
shares only. A level of speed would tell it which of the few loads seen so far it is in, and it would learn these by heart. The
change of the CPU share itself is an input too: a reported share has the same error on a busy machine as on an idle one, where the
error of its logarithm is small.

The loss is Huber's: squared for errors of the size of noise, absolute for larger ones. Spikes and shifts within an iteration cannot
be foreseen, and would dominate a squared loss.

Training is online, in sessions. A session takes the last HISTORY iterations, holds some back, and makes one epoch per iteration of
the job until the error on the held-back ones stops falling (early stopping). The new weights are adopted only if their error is
lower than that of the present weights. So an iteration takes at most one epoch longer. Choice not taken: to train at once, which
would delay every worker of the job at the end of the 500th iteration.

Speeds are divided by their mean, so weights mean the same for a worker of any speed, and a model can begin with the stored weights
of another worker. A network shares no random state with the training job.
"""

import hashlib
import io
import os
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from types import ModuleType
from typing import Any

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet.gluon import nn, rnn
from mxnet.ndarray import NDArray

from nalb.batching.speed import NETWORK_AFTER, Deferred, Ema, Predictor
from nalb.errors import InputError

LOOK_BACK = 2  # iterations; Chen et al., Table 3
HIDDEN = 10  # units of the hidden layer; the paper does not say
LEARNING_RATE = 0.02  # of Adam (ours, like all below)
HISTORY = 1000  # iterations that a session learns from
BLOCK = 20  # iterations that are held back together, since neighbours share a level of load
HELD_BACK = 10  # one block in so many is held back
BATCH = 64  # samples of a training step
USUAL = 0.05  # part of the speed: larger errors count as absolute ones; a few times the noise of iteration times
FINE = 5  # factor of memory inputs and of the CPU share's change: shares change by hundredths, logarithms by tenths
NO_ROOM = 0.8  # part of the memory in use at which a machine begins to swap, roughly; the input is the difference to it
EPOCHS_MOST, PATIENCE = 100, 10  # of a session; epochs without a lower error before it ends
RETRAIN_AFTER = 100  # observations from the end of a session to the next
STORED_TRAINS_AFTER = 100  # observations before a stored model is first trained on
LEAST_CPU = 0.01  # smaller CPU shares count as this one, whose logarithm is finite
FORMAT = 3  # of stored models: a SHA-256 digest, then the digested content: numpy's npz of weights, kind and format
DIGEST_BYTES = 32


class _LastStep(nn.HybridBlock):
    """A recurrent layer over the look-back window, and a dense layer that reads the output from its last state."""

    def __init__(self, layer: rnn.RNN | rnn.LSTM):
        super().__init__()
        self.recurrent, self.output = layer, nn.Dense(1, in_units=HIDDEN)

    def hybrid_forward(self, F: ModuleType, windows: NDArray) -> NDArray:
        states = self.recurrent(F.expand_dims(windows, axis=2))
        return self.output(F.slice_axis(states, axis=1, begin=-1, end=None))


def _narx() -> nn.HybridSequential:
    net = nn.HybridSequential()
    net.add(nn.Dense(HIDDEN, activation="tanh", in_units=8), nn.Dense(1, in_units=HIDDEN))
    return net


KINDS: dict[str, Callable[[], nn.HybridBlock]] = {
    "rnn": lambda: _LastStep(rnn.RNN(HIDDEN, activation="tanh", layout="NTC", input_size=1)),
    "lstm": lambda: _LastStep(rnn.LSTM(HIDDEN, layout="NTC", input_size=1)),
    "narx": _narx,
}

Floats = npt.NDArray[Any]
Weights = dict[str, Floats]  # parameter name within the network -> values


class SpeedNetwork:
    """One worker's network, a `Predictor` that predicts None until it has been trained or given weights.

    kind: a key of KINDS. Deterministic: the seed decides the first weights and the batches. Raises InputError for an unknown kind,
    and for weights of other shapes than this kind's.
    """

    def __init__(self, kind: str, seed: int, weights: Weights | None = None):
        if kind not in KINDS:
            raise InputError(f"unknown speed network {kind!r}: choose one of {', '.join(KINDS)}")
        self.kind = kind
        self._generator = np.random.default_rng(seed)
        self._reports: deque[tuple[float, float, float]] = deque(maxlen=HISTORY + LOOK_BACK + 1)  # speed, CPU, memory
        self._net, self._trainee = build(kind), build(kind)
        self._trained = weights is not None
        set_weights(self._net, first_weights(self._net, self._generator) if weights is None else weights)
        self._mean_speed: float | None = None  # divisor of the speeds; None: the mean of those seen so far
        self._until_session = NETWORK_AFTER if weights is None else STORED_TRAINS_AFTER
        self._session: TrainingSession | None = None

    @property
    def weights(self) -> Weights | None:
        """The weights that predict now; None before the first training."""
        return _get(self._net) if self._trained else None

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:
        """Learn one iteration's speed and shares, and train for one epoch if a session is under way.

        Cost: at most HISTORY / BATCH training steps.
        """
        self._reports.append((speed, cpu_share, memory_share))
        self._until_session -= 1
        if self._until_session <= 0 and self._session is None:
            self._session = self._begin_session()
        if self._session is not None and self._session.epoch():
            if self._session.improved:
                set_weights(self._net, self._session.best)
                self._mean_speed = self._session.mean_speed
                self._trained = True
            self._session = None
            self._until_session = RETRAIN_AFTER

    def predict(self) -> float | None:
        if not self._trained or len(self._reports) <= LOOK_BACK:
            return None
        mean_speed = self._mean_speed or _mean_speed(self._reports)
        window = inputs_of(self.kind, np.array(list(self._reports)[-LOOK_BACK - 1 :]), mean_speed)
        return self._reports[-1][0] * float(np.exp(self._net(mx.nd.array(window)).asscalar()))

    def _begin_session(self) -> "TrainingSession":
        set_weights(self._trainee, _get(self._net))
        mean_speed = _mean_speed(self._reports)
        reports = np.array(self._reports)
        inputs = inputs_of(self.kind, reports, mean_speed)[:-1]  # the speed that follows the last one is not known yet
        speeds = reports[LOOK_BACK:, :1]
        targets = np.log(speeds[1:] / speeds[:-1]).astype(np.float32)
        return TrainingSession(
            self._trainee, inputs, targets, mean_speed, self._generator, must_adopt=not self._trained
        )


class TrainingSession:
    """One training with early stopping; `best` holds the weights of least error on the held-back samples."""

    def __init__(
        self,
        net: nn.HybridBlock,
        inputs: Floats,
        targets: Floats,
        mean_speed: float,
        generator: np.random.Generator,
        must_adopt: bool,
    ):
        last = min(HELD_BACK, len(inputs) // BLOCK) - 1  # of few blocks the last whole one is held back
        held_back = np.arange(len(inputs)) // BLOCK % HELD_BACK == last
        self._net, self._generator, self.mean_speed = net, generator, mean_speed
        self._inputs, self._targets = inputs[~held_back], targets[~held_back]
        self._judge = mx.nd.array(inputs[held_back]), mx.nd.array(targets[held_back])
        self._loss = mx.gluon.loss.HuberLoss(rho=USUAL)
        adam = {"learning_rate": LEARNING_RATE}
        self._trainer = mx.gluon.Trainer(net.collect_params(), "adam", adam, kvstore=None)
        self._epochs, self._without_gain = 0, 0
        self.best, self.improved = _get(net), False
        # of the held-back samples so far; weights of a larger error are not adopted
        self.least_error = np.inf if must_adopt else self.held_back_error()

    def epoch(self) -> bool:
        """Train on all samples once; returns whether the session has ended."""
        order = self._generator.permutation(len(self._inputs))
        for chosen in np.array_split(order, -(-len(order) // BATCH)):
            with mx.autograd.record():
                loss = self._loss(self._net(mx.nd.array(self._inputs[chosen])), mx.nd.array(self._targets[chosen]))
            loss.backward()
            self._trainer.step(len(chosen))
        error = self.held_back_error()
        self._epochs, self._without_gain = self._epochs + 1, self._without_gain + 1
        if error < self.least_error:
            self.least_error, self.best, self.improved, self._without_gain = error, _get(self._net), True, 0
        return self._epochs == EPOCHS_MOST or self._without_gain == PATIENCE

    def held_back_error(self) -> float:
        """The loss of the present weights on the held-back samples."""
        inputs, targets = self._judge
        return float(self._loss(self._net(inputs), targets).mean().asscalar())


def predictor(kind: str, seed: int, stored: Path | None = None) -> Predictor:
    """A predictor that begins as EMA and goes over to the network, after NETWORK_AFTER iterations or at once with stored weights.

    stored: a model's file. Raises InputError for a file that is not such a model.
    """
    if stored is None:
        return Deferred(Ema(), SpeedNetwork(kind, seed))
    return Deferred(Ema(), load(stored, kind, seed), after=0)


# name -> maker of a worker's predictor from the worker's index, as in schemes.PREDICTORS
NETWORKS: dict[str, Callable[[int], Predictor]] = {kind: partial(predictor, kind) for kind in KINDS}


class ModelFolder:
    """A folder of stored models of one kind, by rank: a job begins with the models of earlier jobs and stores its own.

    A rank without a stored model begins with that of the lowest rank: speeds are divided by their mean, so a model fits any worker.
    """

    def __init__(self, folder: Path, kind: str):
        """Raises InputError for a folder in which nothing can be stored."""
        self._folder, self._kind = folder, kind
        try:
            folder.mkdir(parents=True, exist_ok=True)
            TemporaryFile(dir=folder).close()
        except OSError as error:
            raise InputError(f"--predictor-models {folder}: {error.strerror}: choose another folder") from None
        self._networks: dict[int, SpeedNetwork] = {}

    def predictor(self, worker: int) -> Predictor:
        """A worker's predictor, as in NETWORKS. Raises InputError for a file that is not a model of this kind."""
        stored = sorted(self._folder.glob(f"{self._kind}-*.model"), key=lambda path: (len(path.name), path.name))
        own = self._path(worker)
        chosen = own if own in stored else stored[0] if stored else None
        network = load(chosen, self._kind, worker) if chosen else SpeedNetwork(self._kind, worker)
        self._networks[worker] = network
        return Deferred(Ema(), network, after=0 if chosen else NETWORK_AFTER)

    def save(self) -> None:
        """Store every network that has been trained. Raises OSError."""
        for worker, network in self._networks.items():
            if network.weights is not None:
                save(network, self._path(worker))

    def _path(self, worker: int) -> Path:
        return self._folder / f"{self._kind}-{worker}.model"


def save(network: SpeedNetwork, path: Path) -> None:
    """Store the network's present weights. Raises InputError for a network that has not been trained yet."""
    weights = network.weights
    if weights is None:
        raise InputError(f"speed network {network.kind} is not trained yet: store it after {NETWORK_AFTER} iterations")
    content = io.BytesIO()
    np.savez(content, **weights, kind=np.array(network.kind), format=np.array(FORMAT))
    part = path.with_name(path.name + ".part")
    part.write_bytes(hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
    os.replace(part, path)  # readers find a whole file or none


def load(path: Path, kind: str, seed: int) -> SpeedNetwork:
    """A network with the weights stored at `path`, of this worker or another. Raises InputError that names the file."""
    try:
        stored = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot read this speed model ({error.strerror}): name one that was stored") from None
    digest, content = stored[:DIGEST_BYTES], stored[DIGEST_BYTES:]
    if hashlib.sha256(content).digest() != digest:
        raise InputError(f"{path}: not a whole speed model: delete it, train without it and store anew")
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        weights = {name: arrays[name] for name in arrays.files}
    found, version = str(weights.pop("kind", None)), int(weights.pop("format", 0))
    if version != FORMAT:
        raise InputError(
            f"{path}: a speed model of format {version}, this nalb reads {FORMAT}: train and store it anew"
        )
    if found != kind:
        raise InputError(f"{path}: a model of kind {found!r}, not {kind!r}: name another file or kind")
    try:
        return SpeedNetwork(kind, seed, weights)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def build(kind: str) -> nn.HybridBlock:
    """An untrained network of a kind, all of whose weights are zero."""
    net = KINDS[kind]()
    net.initialize(mx.init.Zero())  # draws nothing from MXNet's own random state
    net.hybridize()  # computes the same numbers faster
    return net


def first_weights(net: nn.HybridBlock, generator: np.random.Generator) -> Weights:
    """Glorot's uniform distribution for matrices, zero for the rest."""
    weights = {}
    for name, value in sorted(_get(net).items()):
        limit = np.sqrt(6 / sum(value.shape)) if value.ndim == 2 else 0.0
        weights[name] = generator.uniform(-limit, limit, value.shape).astype(np.float32)
    return weights


def _get(net: nn.HybridBlock) -> Weights:
    return {name: parameter.data().asnumpy() for name, parameter in net._collect_params_with_prefix().items()}


def set_weights(net: nn.HybridBlock, weights: Weights) -> None:
    """Give a network these weights. Raises InputError for weights of other shapes, and for ones that are not finite."""
    present = net._collect_params_with_prefix()
    shapes = {name: parameter.shape for name, parameter in present.items()}
    if {name: value.shape for name, value in weights.items()} != shapes:
        raise InputError("weights are not those of this network: store it anew with this nalb")
    if not all(value.dtype == np.float32 and np.isfinite(value).all() for value in weights.values()):
        raise InputError("weights are not finite float32 numbers: store a network that was trained well")
    for name, parameter in present.items():
        parameter.set_data(mx.nd.array(weights[name]))


def _mean_speed(reports: "deque[tuple[float, float, float]]") -> float:
    return float(np.mean([speed for speed, _, _ in reports]))


def inputs_of(kind: str, reports: Floats, mean_speed: float) -> Floats:
    """The network's inputs after each report that has LOOK_BACK reports before it. reports: shape (n, 3), oldest first.

    RNN and LSTM: shape (n - 2, 2), log(v / mean) of the two last iterations, oldest first. NARX: shape (n - 2, 8), the last change
    of log v; the last two changes of log c, then of m, oldest first; the last change of c; the levels of m and c. Inputs of m and
    the change of c are multiplied by FINE.
    """
    speed, cpu, memory = reports.T
    if kind != "narx":
        return np.stack(_steps(np.log(speed / mean_speed))[1:], axis=1).astype(np.float32)
    speeds, shares = _steps(np.log(speed)), _steps(cpu)
    logs, used = _steps(np.log(np.maximum(cpu, LEAST_CPU))), _steps(FINE * (memory - NO_ROOM))
    changes: list[Floats] = [
        speeds[2] - speeds[1],
        logs[1] - logs[0],
        logs[2] - logs[1],
        used[1] - used[0],
        used[2] - used[1],
    ]
    levels: list[Floats] = [FINE * (shares[2] - shares[1]), used[2], shares[2]]
    return np.stack(changes + levels, axis=1).astype(np.float32)


def _steps(values: Floats) -> list[Floats]:
    """The values two iterations ago, one iteration ago and now, for every iteration that has two before it."""
    return [values[back : len(values) - LOOK_BACK + back] for back in range(LOOK_BACK + 1)]
