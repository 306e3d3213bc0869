"""Repeats LB-BSP's Fig. 13 (Chen et al., 2021): whether FedAvg learns as much with batch sizes by speed. Seeds are paired.

    python scripts/figures/federated_accuracy.py [--seeds 4] [--rounds 100]

Five clients with two classes of Fashion-MNIST each take turns in one process. No machines are emulated, since waiting does not
change what clients learn. A round's time is the slowest client's samples over its cores (those of uneven5-cpu), without averaging
and overheads; uneven_machines.py times real rounds. Beside FedAvg and LB-BSP's sizes, the script trains the two variants that the
paper rejects: local steps by speed, and LB-BSP's sizes with the learning rate in proportion. With the same seed all variants have
the same first model and draw from the same samples. Accuracy is the mean of the last JUDGED models, because without common classes
the models of neighbouring rounds differ by several points. The interval is that of the paired differences (t, 95 %).
"""

import argparse
import sys
from pathlib import Path

import mxnet as mx
import numpy as np
import numpy.typing as npt
from mxnet import autograd, gluon
from mxnet.gluon import nn
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
from train_fashion_mnist import DATA, Bytes, accuracy, load, to_input

from nalb.batching.sizes import Bounds, apportion
from nalb.cli.flags import parse_names
from nalb.errors import InputError
from nalb.planning.nodes import Floats
from netem.network_file import find_network, load_network

BATCH, STEPS, RATE = 100, 15, 0.01  # a client's batch, local steps and learning rate at first; the paper has 500 steps
HIDDEN = 100  # units of the single hidden layer; few, so that many rounds and seeds are cheap
JUDGED = 50  # the last models whose accuracies are averaged
TEST_IMAGES = 2000
Data = tuple[Bytes, npt.NDArray[np.float32], Bytes, npt.NDArray[np.float32]]  # images and labels to train, and to test
VARIANTS = ("FedAvg", "LB-BSP", "steps by speed", "rate by size")


def train(variant: str, sizes: tuple[int, ...], rounds: int, seed: int, data: Data) -> float:
    """Train a variant and return the mean accuracy of the last JUDGED models. sizes: each client's batch by speed."""
    images, labels, test_images, test_labels = data
    clients = len(sizes)
    owned = [np.flatnonzero(labels.astype(int) * clients // 10 == client) for client in range(clients)]
    generators = [np.random.default_rng([seed, client]) for client in range(clients)]
    mx.random.seed(seed)
    net = nn.HybridSequential()
    net.add(nn.Dense(HIDDEN, activation="relu"), nn.Dense(10))
    net.initialize(mx.init.Xavier())
    net(mx.nd.zeros((1, 1, 28, 28)))
    net.hybridize()
    parameters = list(net.collect_params().values())
    trainer = gluon.Trainer(net.collect_params(), "sgd", {"learning_rate": RATE}, kvstore=None)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    model = [value.data().copy() for value in parameters]
    reached = []
    for number in range(rounds):
        total = [mx.nd.zeros(value.shape) for value in model]
        for client, size in enumerate(sizes):
            for parameter, value in zip(parameters, model, strict=True):
                parameter.set_data(value)
            batch = BATCH if variant in ("FedAvg", "steps by speed") else size
            trainer.set_learning_rate(RATE * size / BATCH if variant == "rate by size" else RATE)
            for _ in range(max(1, round(STEPS * size / BATCH)) if variant == "steps by speed" else STEPS):
                chosen = generators[client].choice(owned[client], batch, replace=False)
                with autograd.record():
                    loss = loss_of(net(to_input(images[chosen])), mx.nd.array(labels[chosen]))
                loss.backward()
                trainer.step(batch)
            for part, parameter in zip(total, parameters, strict=True):
                part += parameter.data() / clients
        model = total
        if number >= rounds - JUDGED:
            for parameter, value in zip(parameters, model, strict=True):
                parameter.set_data(value)
            reached.append(accuracy(net, test_images, test_labels))
    return float(np.mean(reached))


def parse_variants(text: str) -> list[str]:
    """The variants that --variants names, in order. Raises InputError for unknown ones, and unless FedAvg comes first: the others
    are compared with it."""
    names = parse_names("--variants", text)
    if unknown := [name for name in names if name not in VARIANTS]:
        raise InputError(f"--variants {unknown[0]!r} is unknown: choose of {', '.join(VARIANTS)}")
    if names[0] != "FedAvg":
        raise InputError(f"--variants {text!r}: others are held against FedAvg: name it first")
    return names


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--variants", default=",".join(VARIANTS), help=f"of: {', '.join(VARIANTS)}; FedAvg first")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    try:
        variants = parse_variants(options.variants)
    except InputError as error:
        parser.exit(error.exit_code, f"federated_accuracy: {error}\n")
    cores = np.array([node.cpu_quota for node in load_network(find_network("uneven5-cpu")).nodes])
    sizes = apportion(cores, Bounds.of(BATCH * len(cores), len(cores)))
    test_images, test_labels = load(options.data, "t10k")
    data = (*load(options.data, "train"), test_images[:TEST_IMAGES], test_labels[:TEST_IMAGES])
    table = Table(
        title=f"{options.rounds} rounds of {STEPS} steps, sizes {' '.join(map(str, sizes))}, {options.seeds} seeds"
    )
    for heading in ("", "round over FedAvg's", "accuracy", "less FedAvg's", "95 % interval"):
        table.add_column(heading, justify="right")
    even_s, by_speed_s = BATCH / cores.min(), (np.array(sizes) / cores).max()
    first: Floats | None = None
    for variant in variants:
        reached = np.array([train(variant, sizes, options.rounds, seed, data) for seed in range(options.seeds)])
        first = reached if first is None else first
        apart = reached - first
        half = (
            student.ppf(0.975, len(apart) - 1) * apart.std(ddof=1) / np.sqrt(len(apart)) if len(apart) > 1 else np.nan
        )
        part = 1.0 if variant == "FedAvg" else by_speed_s / even_s
        interval = f"[{apart.mean() - half:+.3f}, {apart.mean() + half:+.3f}]"
        table.add_row(variant, f"{part:.2f}", f"{reached.mean():.3f}", f"{apart.mean():+.4f}", interval)
        print(f"{variant}: {' '.join(f'{one:.3f}' for one in reached)}", flush=True)
    Console(width=110).print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
