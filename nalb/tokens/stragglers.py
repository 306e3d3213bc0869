"""Decides which workers sleep at the start of an iteration, in experiments with stragglers (Geng et al., V-C). Pure.

round-robin:D            in iteration k worker k mod N sleeps for D seconds
probability:P:D:SEED     every worker sleeps for D seconds with probability P, drawn by the seed
"""

from dataclasses import dataclass

import numpy as np

from nalb.errors import InputError

ROUND_ROBIN, PROBABILITY = "round-robin", "probability"
FORMS = f"{ROUND_ROBIN}:SECONDS or {PROBABILITY}:P:SECONDS:SEED"
DELAY_MOST_S = 3600.0


@dataclass(frozen=True)
class Stragglers:
    """Which workers sleep, and for how long. delay_s: length of a sleep. probability, seed: None where workers sleep in turn."""

    delay_s: float
    probability: float | None = None
    seed: int | None = None

    @staticmethod
    def read(text: str) -> "Stragglers":
        """The stragglers that an option's text describes. Raises InputError."""
        kind, *words = text.split(":")
        try:
            if kind == ROUND_ROBIN and len(words) == 1:
                return _checked(Stragglers(float(words[0])))
            if kind == PROBABILITY and len(words) == 3:
                return _checked(Stragglers(float(words[1]), float(words[0]), int(words[2])))
        except ValueError:
            pass
        raise InputError(
            f"stragglers {text!r}: give {FORMS}, with 0 to {DELAY_MOST_S:g} s, P from 0 to 1 and a whole SEED from 0"
        )

    def sleep_s(self, worker: int, iteration: int, workers: int) -> float:
        """Seconds that a worker sleeps before its first request of an iteration; equal arguments give equal seconds everywhere."""
        if self.probability is None:
            return self.delay_s if iteration % workers == worker else 0.0
        lot = np.random.default_rng((self.seed or 0, iteration, worker)).random()
        return self.delay_s if lot < self.probability else 0.0


def _checked(one: Stragglers) -> Stragglers:
    """`one`, or ValueError where its values cannot be; NaN cannot, since a comparison with it is false."""
    if not (0 <= one.delay_s <= DELAY_MOST_S and 0 <= (one.probability or 0.0) <= 1 and (one.seed or 0) >= 0):
        raise ValueError
    return one
