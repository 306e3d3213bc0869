"""What the tests of the speed networks run in a process of its own: `python networks.py FOLDER` prints each case's outcome."""

import hashlib
import io
import json
import sys
import traceback
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest

from kvstore_patch.roles import speed_networks
from kvstore_patch.roles.speed_networks import (
    EPOCHS_MOST,
    KINDS,
    LOOK_BACK,
    NETWORKS,
    STORED_TRAINS_AFTER,
    ModelFolder,
    SpeedNetwork,
    load,
    predictor,
    save,
)
from nalb.batching.decisions import Observation
from nalb.batching.lb_bsp import SpeedBalancer
from nalb.batching.sizes import Bounds
from nalb.batching.speed import NETWORK_AFTER, Ema
from nalb.errors import InputError

FOLDER = Path(sys.argv[1])
READY = NETWORK_AFTER + EPOCHS_MOST  # observations by which a first session has ended
TRAINED = {}  # kind -> a network after READY observations of `reports`, and its predictions


def reports(kind, count=READY + 40, fastest=100.0):
    """(speed, CPU now, memory now): what the kind can foresee and EMA cannot.

    NARX: speed is in proportion to the CPU seen before the iteration. RNN and LSTM: speeds go round in three.
    """
    generator = np.random.default_rng(11)
    cpu = generator.uniform(0.3, 1.0, count + 1)
    speeds = fastest * (cpu[:-1] if kind == "narx" else np.resize([0.5, 0.7, 1.0], count))
    return list(zip(speeds, cpu[1:], generator.uniform(0.3, 0.6, count), strict=True))


def predictions(network, seen):
    """Of the iteration after each observation."""
    answers = []
    for report in seen:
        network.observe_speed(*report)
        answers.append(network.predict())
    return answers


def trained(kind):
    if kind not in TRAINED:
        network = SpeedNetwork(kind, seed=3)
        TRAINED[kind] = network, predictions(network, reports(kind))
    return TRAINED[kind]


def root_mean_square(answers, kind):
    speeds = [speed for speed, _, _ in reports(kind)]
    errors = np.array(answers[READY:-1]) - speeds[READY + 1 :]
    return float(np.sqrt(np.mean(errors**2)))


def refusal(*arguments):
    with pytest.raises(InputError) as caught:
        load(*arguments)
    message = str(caught.value)
    assert "\n" not in message
    return message


def every_kind_learns_what_ema_cannot():
    for kind in KINDS:
        ema = root_mean_square(predictions(Ema(), reports(kind)), kind)
        network = root_mean_square(trained(kind)[1], kind)
        assert network < 0.15 * ema, (kind, network, ema)


def nothing_is_predicted_before_the_first_training_and_all_after():
    for kind in KINDS:
        answers = trained(kind)[1]
        assert answers[: NETWORK_AFTER - 1] == [None] * (NETWORK_AFTER - 1)
        assert None not in answers[READY:]


def ema_stands_in_until_then():
    seen = reports("narx")
    assert predictions(predictor("narx", 3), seen[:5]) == predictions(Ema(), seen[:5])


def seed_decides_alone():
    seen = reports("narx")
    numpys = np.random.get_state()[1].copy()
    mx.random.seed(5)
    before = mx.nd.random.uniform(shape=(3,)).asnumpy()
    mx.random.seed(5)
    again = predictions(SpeedNetwork("narx", seed=3), seen)
    assert (mx.nd.random.uniform(shape=(3,)).asnumpy() == before).all(), "the job's random numbers were drawn"
    assert (np.random.get_state()[1] == numpys).all()
    assert again == trained("narx")[1]
    assert predictions(SpeedNetwork("narx", seed=4), seen) != again


def inputs_are_those_of_the_papers_equation():
    rows = np.array([[10.0, 0.1, 0.6], [20.0, 0.2, 0.7], [30.0, 0.3, 0.8], [40.0, 0.4, 0.9]])
    narx = speed_networks.inputs_of("narx", rows, 20.0)
    half, double = np.log(1.5), np.log(2)
    np.testing.assert_allclose(narx[0], [half, double, half, 0.5, 0.5, 0.5, 0, 0.3], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(narx, speed_networks.inputs_of("narx", rows * [7, 1, 1], 140.0), rtol=1e-5, atol=1e-6)
    rows[0, 1] = 0.0
    assert np.isfinite(speed_networks.inputs_of("narx", rows, 20.0)).all()
    assert rows[0, 1] == 0.0
    np.testing.assert_allclose(speed_networks.inputs_of("rnn", rows, 20.0), [[0, half], [half, double]], rtol=1e-6)
    assert narx.shape == (2, 8)


def training_stops_early_and_keeps_the_best():
    generator = np.random.default_rng(2)
    inputs = generator.uniform(-1, 1, (300, 8)).astype(np.float32)
    noise = generator.standard_normal((300, 1)).astype(np.float32)
    net = speed_networks.build("narx")
    speed_networks.set_weights(net, speed_networks.first_weights(net, generator))
    session = speed_networks.TrainingSession(net, inputs, noise, 1.0, generator, must_adopt=True)
    epochs = 1
    while not session.epoch():
        epochs += 1
    assert epochs < EPOCHS_MOST
    reached = session.held_back_error()
    speed_networks.set_weights(net, session.best)
    assert session.held_back_error() == session.least_error < reached

    hopeless = speed_networks.TrainingSession(net, inputs, noise, 1.0, generator, must_adopt=False)
    hopeless.least_error = 0.0  # nothing is lower than that
    while not hopeless.epoch():
        pass
    assert not hopeless.improved


def stored_models_begin_where_they_ended_also_for_a_faster_worker():
    for kind in KINDS:
        path = FOLDER / f"{kind}.model"
        save(trained(kind)[0], path)
        warm = load(path, kind, seed=0)
        assert {name: value.tolist() for name, value in warm.weights.items()} == {
            name: value.tolist() for name, value in trained(kind)[0].weights.items()
        }
        faster = reports(kind, fastest=300.0)[:60]
        answers = predictions(predictor(kind, 0, stored=path), faster)
        errors = [answer - speed for answer, (speed, _, _) in zip(answers[30:-1], faster[31:], strict=True)]
        assert np.abs(errors).mean() < 25, (kind, errors)
    assert [file.name for file in FOLDER.iterdir() if file.suffix == ".part"] == []


def stored_models_are_trained_further_on_what_is_new():
    """Speeds that go with the square of what they went with: after the first session errors are half of what they were."""
    for kind in KINDS:
        path = FOLDER / f"{kind}-further.model"
        save(trained(kind)[0], path)
        sessions_end = STORED_TRAINS_AFTER + EPOCHS_MOST
        seen = [(speed**2 / 100, cpu, memory) for speed, cpu, memory in reports(kind)[: sessions_end + 60]]
        warm, speeds = load(path, kind, seed=0), np.array([speed for speed, _, _ in seen])
        errors = np.abs(np.array(predictions(warm, seen)[LOOK_BACK:-1]) - speeds[LOOK_BACK + 1 :])
        assert errors[sessions_end:].mean() < errors[: STORED_TRAINS_AFTER - LOOK_BACK].mean() / 2, kind


def a_folder_of_models_begins_where_the_last_job_ended_and_new_ranks_with_the_lowest():
    folder = FOLDER / "models"
    first = ModelFolder(folder, "narx")
    seen = reports("narx")
    fresh = [first.predictor(rank) for rank in (0, 1)]
    assert predictions(fresh[0], seen[:5]) == predictions(Ema(), seen[:5])
    predictions(fresh[1], seen)
    first.save()
    assert [path.name for path in folder.iterdir()] == ["narx-1.model"]  # the other had too little to learn from
    own, other = (ModelFolder(folder, "narx").predictor(rank) for rank in (1, 7))
    assert predictions(own, seen[:20]) == predictions(other, seen[:20]) != predictions(Ema(), seen[:20])


def damaged_models_are_refused_in_one_line():
    path, broken = FOLDER / "whole.model", FOLDER / "broken.model"
    save(trained("narx")[0], path)
    whole = path.read_bytes()
    for at in range(0, len(whole), 97):
        broken.write_bytes(whole[:at])
        assert "not a whole speed model" in refusal(broken, "narx", 0)
        broken.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "not a whole speed model" in refusal(broken, "narx", 0)
    assert "No such file" in refusal(FOLDER / "absent.model", "narx", 0)
    assert "'narx', not 'rnn'" in refusal(path, "rnn", 0)


def models_of_other_shapes_formats_and_values_are_refused():
    path, weights = FOLDER / "odd.model", trained("narx")[0].weights
    name = min(weights)

    def stored(**changed):
        content = io.BytesIO()
        np.savez(content, **{**weights, "kind": np.array("narx"), "format": np.array(speed_networks.FORMAT), **changed})
        path.write_bytes(hashlib.sha256(content.getbuffer()).digest() + content.getbuffer())
        return path

    assert load(stored(), "narx", 0).predict() is None  # no observation yet
    assert "format 7" in refusal(stored(format=np.array(7)), "narx", 0)
    assert "not those of this network" in refusal(stored(**{name: weights[name][:-1]}), "narx", 0)
    assert "not those of this network" in refusal(stored(extra=weights[name]), "narx", 0)
    assert "not finite" in refusal(stored(**{name: weights[name] * np.nan}), "narx", 0)


def mistakes_are_named():
    with pytest.raises(InputError, match="unknown speed network 'gru': choose one of rnn, lstm, narx"):
        SpeedNetwork("gru", 0)
    with pytest.raises(InputError, match="not trained yet"):
        save(SpeedNetwork("rnn", 0), FOLDER / "early.model")


def lb_bsp_balances_by_them():
    """A worker whose CPU has just been halved gets less at once."""
    path = FOLDER / "balance.model"
    save(trained("narx")[0], path)
    balancer = SpeedBalancer(Bounds.of(200, 2), [predictor("narx", worker, stored=path) for worker in range(2)])
    sizes = (100, 100)
    for cpu in (0.8, 0.8, 0.8, 0.8, 0.4):
        seen = [Observation(size, size / 80.0, share, 0.4) for size, share in zip(sizes, (cpu, 0.8), strict=True)]
        sizes = balancer.update(seen).sizes or sizes
    assert sizes[0] < 80, sizes
    assert set(NETWORKS) == set(KINDS)


CASES = [
    every_kind_learns_what_ema_cannot,
    nothing_is_predicted_before_the_first_training_and_all_after,
    ema_stands_in_until_then,
    seed_decides_alone,
    inputs_are_those_of_the_papers_equation,
    training_stops_early_and_keeps_the_best,
    stored_models_begin_where_they_ended_also_for_a_faster_worker,
    stored_models_are_trained_further_on_what_is_new,
    a_folder_of_models_begins_where_the_last_job_ended_and_new_ranks_with_the_lowest,
    damaged_models_are_refused_in_one_line,
    models_of_other_shapes_formats_and_values_are_refused,
    mistakes_are_named,
    lb_bsp_balances_by_them,
]


def outcome(case):
    try:
        case()
    except Exception:
        return traceback.format_exc()
    return "ok"


if __name__ == "__main__":
    print(json.dumps({case.__name__: outcome(case) for case in CASES}))
