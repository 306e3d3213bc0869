"""The models of simulations of Fela: how long each layer computes for a batch, and how many bytes it sends.

Measured: seconds of equal convolution layers on a K40c, forward and backward, by batch. Source: the public prototype of Fela's
authors, github.com/Steamgjk/Hove.
Assumed, where nothing was published:

    going forward takes a third of the time
    a dense layer reads or writes each weight three times at DENSE_BYTES_PER_S, and computes at DENSE_FLOPS
    GoogLeNet's units take the time of the measured layers on images of their size, times the ratio of their multiplications
    beyond the largest measured batch time grows in proportion; below the smallest it is constant
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from nalb.tokens.partition import Curve, stages

FORWARD_PART = 1 / 3  # part of a layer's time; going back computes two gradients
FLOAT_BYTES = 4
DENSE_BYTES_PER_S = 200e9  # 70 % of a K40c's 288 GB/s
DENSE_FLOPS = 2.3e12  # operations per second: the measured convolutions reach so many
DENSE_THRESHOLD = 2048  # samples: Geng et al., Fig. 1


def _curve(first: int, *seconds: float) -> dict[int, float]:
    """A curve with the seconds of batches that double from `first` on."""
    return {first << place: one for place, one in enumerate(seconds)}


# channels @ width of the image, x number of layers -> seconds of all these layers together
K40C: dict[str, Curve] = {
    "64@224 x2": _curve(1, 0.0253, 0.0380, 0.0641, 0.166, 0.157, 0.313),
    "128@112 x2": _curve(1, 0.0151, 0.0253, 0.0442, 0.0626, 0.0935, 0.185, 0.364),
    "256@56 x2": _curve(1, 0.0119, 0.0195, 0.0337, 0.0427, 0.0580, 0.113, 0.219, 0.431),
    "512@28 x2": _curve(1, 0.0122, 0.0194, 0.0328, 0.0356, 0.0445, 0.0806, 0.154, 0.299, 0.588),
    "512@14 x2": _curve(1, 0.0071, 0.0090, 0.0122, 0.0164, 0.0192, 0.0271, 0.0487, 0.105, 0.199, 0.382),
    "128@32 x4": _curve(4, 0.0130, 0.0166, 0.0205, 0.0373, 0.0683, 0.131, 0.641, 1.22, 2.40),
    "256@16 x4": _curve(4, 0.0128, 0.0178, 0.0173, 0.0282, 0.0433, 0.0801, 0.165, 0.318, 0.622),
    "512@7 x2": _curve(1, 0.0037, 0.0066, 0.0073, 0.0087, 0.0095, 0.0132, 0.0211, 0.0312, 0.0573, 0.116, 0.223),
}


@dataclass(frozen=True)
class Layer:
    """One layer. curve: seconds forward and backward, of one or more such layers. part: the layer's part of that time.

    output_bytes: of one sample.
    """

    name: str
    curve: Curve
    part: float
    parameters_bytes: float
    output_bytes: float

    def seconds(self, samples: float) -> float:
        """Seconds forward and backward for a batch of `samples` samples."""
        batches = list(self.curve)
        beyond = max(samples / batches[-1], 1.0)
        return self.part * beyond * float(np.interp(samples, batches, list(self.curve.values())))


@dataclass(frozen=True)
class SubModel:
    """Consecutive layers of a model."""

    layers: tuple[Layer, ...]
    _known_s: dict[int, float] = field(default_factory=dict, init=False, repr=False, compare=False)  # by samples

    @cached_property
    def parameters_bytes(self) -> float:
        """The size of the parameters, and of their gradients."""
        return sum(layer.parameters_bytes for layer in self.layers)

    @property
    def output_bytes(self) -> float:
        """The size of one sample's output, and of the loss's gradient by it."""
        return self.layers[-1].output_bytes

    def seconds(self, samples: int) -> float:
        """Seconds forward and backward for a batch of `samples` samples."""
        if samples not in self._known_s:
            self._known_s[samples] = sum(layer.seconds(samples) for layer in self.layers)
        return self._known_s[samples]


@dataclass(frozen=True)
class Profile:
    """One model. cuts: the first layers of the sub-models, counted from 0. threshold: SM-1's threshold batch, samples."""

    name: str
    layers: tuple[Layer, ...]
    cuts: tuple[int, ...]
    threshold: int

    @cached_property
    def sub_models(self) -> tuple[SubModel, ...]:
        """Fela's sub-models."""
        return self.cut(self.cuts)

    @cached_property
    def whole(self) -> tuple[SubModel, ...]:
        """All layers as one sub-model, for data parallelism."""
        return self.cut((0,))

    def cut(self, starts: Sequence[int]) -> tuple[SubModel, ...]:
        """Sub-models that begin at these layers."""
        ends = (*starts[1:], len(self.layers))
        return tuple(SubModel(self.layers[low:high]) for low, high in zip(starts, ends, strict=True))

    def stages(self, count: int, samples: int) -> tuple[SubModel, ...]:
        """`count` sub-models whose slowest takes least time for `samples` samples, for model parallelism. Raises InputError."""
        times = [layer.seconds(samples) for layer in self.layers]
        return self.cut([one.start for one in stages(times, count)])


def _convolutions(name: str, count: int, inputs: int, outputs: int, width: int, pooled: bool) -> list[Layer]:
    """The layers of a block of VGG. Each takes half the time of two equal ones, also the first one, which has fewer inputs."""
    layers = []
    for place in range(count):
        weights = 9 * (inputs if place == 0 else outputs) * outputs + outputs
        edge = width // 2 if pooled and place == count - 1 else width
        layers.append(
            Layer(
                f"{name} {place + 1}",
                K40C[f"{outputs}@{width} x2"],
                0.5,
                FLOAT_BYTES * weights,
                FLOAT_BYTES * outputs * edge**2,
            )
        )
    return layers


def _dense(name: str, inputs: int, outputs: int) -> Layer:
    weights = inputs * outputs
    fixed_s, sample_s = 3 * FLOAT_BYTES * weights / DENSE_BYTES_PER_S, 6 * weights / DENSE_FLOPS
    curve = {batch: fixed_s + sample_s * batch for batch in (1, 1 << 20)}
    return Layer(name, curve, 1.0, FLOAT_BYTES * (weights + outputs), FLOAT_BYTES * outputs)


def vgg19() -> Profile:
    """VGG19 for images of 3 x 224 x 224, cut by partition.py (layers 1-8, 9-16, 17-19)."""
    blocks = [(2, 3, 64, 224), (2, 64, 128, 112), (4, 128, 256, 56), (4, 256, 512, 28), (4, 512, 512, 14)]
    layers = [layer for number, (count, inputs, outputs, width) in enumerate(blocks, 1)
              for layer in _convolutions(f"conv{number}", count, inputs, outputs, width, pooled=True)]  # fmt: skip
    layers += [_dense("fc1", 512 * 7 * 7, 4096), _dense("fc2", 4096, 4096), _dense("fc3", 4096, 1000)]
    return Profile("vgg19", tuple(layers), (0, 8, 16), 16)


# GoogLeNet for images of 3 x 32 x 32. Multiplications of a sample in the measured layers:
_REFERENCE = {
    "128@32 x4": 4 * 9 * 128**2 * 32**2,
    "256@16 x4": 4 * 9 * 256**2 * 16**2,
    "512@7 x2": 2 * 9 * 512**2 * 7**2,
}
_INCEPTIONS = (  # inputs, 1x1, 3x3 reduced, 3x3, 5x5 reduced, 5x5 (as two 3x3), pooled; width
    (192, 64, 96, 128, 16, 32, 32, 32),
    (256, 128, 128, 192, 32, 96, 64, 32),
    (480, 192, 96, 208, 16, 48, 64, 16),
    (512, 160, 112, 224, 24, 64, 64, 16),
    (512, 128, 128, 256, 24, 64, 64, 16),
    (512, 112, 144, 288, 32, 64, 64, 16),
    (528, 256, 160, 320, 32, 128, 128, 16),
    (832, 256, 160, 320, 32, 128, 128, 8),
    (832, 384, 192, 384, 48, 128, 128, 8),
)
_CURVE_OF_WIDTH = {32: "128@32 x4", 16: "256@16 x4", 8: "512@7 x2"}


def googlenet() -> Profile:
    """GoogLeNet for images of 3 x 32 x 32, in twelve units, cut as in the paper: 1-4, 5-9, 10-12."""
    layers = [_unit("first", 9 * 3 * 192, 192, 32, 32)]
    for place, (inputs, one, low3, three, low5, five, pooled, width) in enumerate(_INCEPTIONS):
        weights = inputs * (one + low3 + low5 + pooled) + 9 * (low3 * three + low5 * five + five * five)
        after = 8 if place == 6 else width  # a pool follows the last of the middle ones
        layers.append(_unit(f"inception {place + 1}", weights, one + three + five + pooled, width, after))
        if place == 1:
            layers.append(Layer("pool", {1: 1e-9}, 1.0, 0.0, FLOAT_BYTES * 480 * 16**2))
    layers.append(_dense("fc", 1024, 10))
    return Profile("googlenet", tuple(layers), (0, 4, 9), 64)


def _unit(name: str, weights: int, outputs: int, width: int, width_after: int) -> Layer:
    curve = _CURVE_OF_WIDTH[width]
    part = weights * width**2 / _REFERENCE[curve]
    return Layer(name, K40C[curve], part, FLOAT_BYTES * weights, FLOAT_BYTES * outputs * width_after**2)


PROFILES = {"vgg19": vgg19, "googlenet": googlenet}
