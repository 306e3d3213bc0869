"""The levels of an iteration's tokens, and how many tokens each has.

With M sub-models there are 2M - 1 levels: F1 to F(M-1) go forward, FB_M goes forward through the last sub-model, takes the loss and
goes back, and B(M-1) to B1 go back. Sub-models and levels are counted from 0 in the code.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from nalb.errors import InputError

SUB_MODELS_MOST = 64
SAMPLES_MOST = 1_000_000_000  # of an iteration
CHUNKS_MOST = 100_000  # of an iteration: the coordinator keeps every token in memory


def level_name(level: int, sub_models: int) -> str:
    """A level's name for people, such as F1, FB3 or B2."""
    last = sub_models - 1
    kind = "F" if level < last else "FB" if level == last else "B"
    return f"{kind}{min(level, 2 * last - level) + 1}"


def read_weights(text: str) -> tuple[int, ...]:
    """The weights in an option's text, such as 1,2,4. Raises InputError."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and len(word) < 10 for word in words):
        raise InputError(f"weights {text!r}: give whole numbers with commas, as in 1,2,4")
    return Shape(1, 1, tuple(map(int, words))).weights


@dataclass(frozen=True)
class Shape:
    """The number of tokens of an iteration at each level, and their samples.

    total: samples of an iteration, over all workers. chunks: the number of F1 tokens; each holds total / chunks samples, rounded up
    or down. weights: per sub-model, how many F1 tokens one of its tokens covers; weights[0] is 1, and each divides the next (w_i in
    Geng et al., IV-B). Raises InputError.
    """

    total: int
    chunks: int
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.weights) <= SUB_MODELS_MOST:
            raise InputError(f"{len(self.weights)} weights: give one per sub-model, at most {SUB_MODELS_MOST}")
        if self.weights[0] != 1 or min(self.weights) < 1 or any(high % low for low, high in pairwise(self.weights)):
            raise InputError(
                f"weights {self.weights}: the first must be 1, and each must divide the next, as in 1, 2, 4"
            )
        if not 1 <= self.chunks <= self.total <= SAMPLES_MOST or self.chunks > CHUNKS_MOST:
            raise InputError(
                f"{self.total} samples in {self.chunks} tokens: give 1 to {SAMPLES_MOST} samples, one at least for each "
                f"token, and a threshold with which there are at most {CHUNKS_MOST} tokens"
            )

    @staticmethod
    def of(total: int, workers: int, weights: tuple[int, ...], threshold: int) -> "Shape":
        """The shape with n1 = max(total / threshold, workers) F1 tokens (Geng et al., Eq. 2), but no more tokens than samples.

        threshold: the smallest batch at which SM-1 computes at full speed.
        """
        if threshold < 1 or workers < 1:
            raise InputError(f"threshold {threshold}, {workers} workers: give at least 1 of each")
        return Shape(total, min(max(-(-total // threshold), workers), max(total, 1)), weights)

    @staticmethod
    def dealt(total: int, homes: int, weights: tuple[int, ...], threshold: int) -> "Shape":
        """The shape with an equal number of F1 tokens for each of `homes` workers, of about `threshold` samples each."""
        each = max(round(total / threshold / homes), 1)
        return Shape(total, min(each * homes, max(total, 1)), weights)

    @cached_property
    def sub_models(self) -> int:
        """M, the number of sub-models."""
        return len(self.weights)

    @cached_property
    def levels(self) -> int:
        """2M - 1, the number of levels."""
        return 2 * self.sub_models - 1

    @cached_property
    def head(self) -> int:
        """The level that takes the loss."""
        return self.sub_models - 1

    def sub_model(self, level: int) -> int:
        """The sub-model whose parameters a level's tokens use."""
        return min(level, 2 * self.head - level)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """The number of tokens per sub-model and direction: n_i = ceil(n_1 / w_i)."""
        return tuple(-(-self.chunks // weight) for weight in self.weights)

    def samples_of(self, chunk: int) -> range:
        """The places of an F1 token's samples among the iteration's samples."""
        return range(chunk * self.total // self.chunks, (chunk + 1) * self.total // self.chunks)

    def samples(self, chunks: Sequence[int]) -> int:
        """The number of samples of these F1 tokens."""
        return sum(len(self.samples_of(chunk)) for chunk in chunks)
