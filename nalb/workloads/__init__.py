"""The tensors of the models that jobs replay: gradients alone, with the shapes of Gluon's model zoo for 10 classes.

mobilenet: mobilenet1_0, 12.9 MB; resnet50: resnet50_v1, 94.2 MB; alexnet: alexnet, 228 MB (float32).
"""

import argparse
import json
import math
from dataclasses import dataclass
from importlib import resources

from nalb.errors import InputError

NAMES = ("mobilenet", "resnet50", "alexnet")
ITEM_BYTES = {"float16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class TensorShape:
    """The name, shape and type of one parameter's gradient."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """How many numbers the gradient has."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """The gradient's bytes on the wire, without headers."""
        return self.elements * ITEM_BYTES[self.dtype]


def load(name: str) -> list[TensorShape]:
    """The named model's tensors in Gluon's order. Raises InputError for an unknown name."""
    if name not in NAMES:
        raise InputError(f"unknown workload {name!r}: choose one of {', '.join(NAMES)}")
    rows = json.loads(resources.files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))
    return [TensorShape(row["name"], tuple(row["shape"]), row["dtype"]) for row in rows]


def replay_arguments(description: str) -> argparse.Namespace:
    """What the command line of a rank says that replays a model, on either plane."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("model", choices=NAMES)
    parser.add_argument("--compute-ms", type=float, default=0.0)
    parser.add_argument("--iterations", type=int, default=0, help="0: until the coordinator ends the job")
    parser.add_argument("--verify", action="store_true", help="check every sum against the known one")
    return parser.parse_args()


def bytes_of(name: str) -> int:
    """The bytes of all gradients of the named model. Raises InputError as `load` does."""
    return sum(tensor.size_bytes for tensor in load(name))
