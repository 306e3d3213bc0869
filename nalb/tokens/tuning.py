"""Finds weights and subset while training (Geng et al., IV-B): each case runs for a few iterations, and the fastest stays. Pure.

    phase   cases, in this order
    1       weights: w_1 = 1, each divides the next, all divide N; lexicographic; all workers compute the conditional sub-model
    2       at the best weights, |S| = N, N/2, .., 1 (N's divisors, falling); the first is known from phase 1
    3       where the best |S| is not N: at that |S|, the other weights (ours)
    4       where the best |S| is not N: that S apart, which computes nothing else, at all weights that divide N - |S| (ours)
    5       again all cases that may be as fast as the best one: their fastest iteration takes less than its median (ours)

The paper has no phase 3. It is needed because phase 1 tries weights with all workers in S only. With few workers in S, larger
batches of the conditional sub-model may be better. And where the sum of its gradients over all workers sets the pace, phase 1
cannot tell the weights of the other sub-models apart. Phase 4 has hybrid parallelism among its cases: where the conditional
sub-model keeps S busy, other work delays it, and sums over fewer workers take less time. For N = 8 and M = 3 phases 1 to 3 have
10 + 3 + 9 cases, and phase 4 has 3 to 9 more.

Phase 5 is successive halving (Jamieson and Talwalkar 2016): after each round the slower half of the cases is dropped, until one is
left, and trials become twice as long, so that each round takes about the same time. On busy machines iterations of one case differ
by a tenth, so a choice by four of them would be left to chance. The phase costs little, since it runs only fast cases. Where all
iterations of a case take equally long it has nothing to do.

A trial's first iteration does not count: in it memory is taken for the new batch sizes, and new members of S get parameters. Of a
case's other iterations the median counts, so that one disturbed iteration decides nothing. Of equal cases the earlier one stays.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from nalb.tokens.policies import FELA, FELA_BY_PAPER, Policy, fela, fela_shape
from nalb.tokens.shape import Shape

ITERATIONS = 5  # of a case's trial in phases 1 to 4, with the first one: Geng et al., IV-B
SET_UP = 1  # first iterations of a trial, which do not count
PHASES = {FELA: 5, FELA_BY_PAPER: 2}  # how many phases run

Members = Callable[[int], Sequence[int]]  # size of S -> the ranks in S


@dataclass(frozen=True)
class Configuration:
    """A case of tuning. weights: as in Shape. subset: S, the ascending ranks that compute the conditional sub-model.

    is_apart: as of `fela`.
    """

    weights: tuple[int, ...]
    subset: tuple[int, ...]
    is_apart: bool = False

    def __str__(self) -> str:
        return f"weights {','.join(map(str, self.weights))}, |S| = {len(self.subset)}{', apart' * self.is_apart}"

    def policy(self, workers: int, conditional: int | None = None) -> Policy:
        """The policy of this configuration in a job of `workers` workers. conditional: as of `fela`. Raises InputError."""
        return fela(workers, len(self.weights), self.subset, conditional, self.is_apart)


class Tuner:
    """Chooses each iteration's configuration by the times of the iterations before it.

    total: samples of an iteration. threshold: the smallest batch at which SM-1 computes at full speed, samples. members: gives the
    ranks of S, which the paper leaves open; `range` gives the lowest ranks. conditional: a sub-model, counted from 0; None: the
    last one. phases: from 2, as in the paper, to 5.
    """

    def __init__(
        self,
        workers: int,
        sub_models: int,
        total: int,
        threshold: int,
        members: Members = range,
        conditional: int | None = None,
        phases: int = PHASES[FELA],
    ):
        self._workers, self._total, self._threshold = workers, total, threshold
        self._sub_models = sub_models
        self._members, self._conditional = members, sub_models - 1 if conditional is None else conditional
        everyone = tuple(range(workers))
        chunks = Shape.of(total, workers, (1,), threshold).chunks
        self._weights = weight_cases(divisors(workers), sub_models, chunks)
        self._trials = [Configuration(one, everyone) for one in self._weights]  # the cases to come
        self._later = [self._subsets, self._other_weights, self._apart, self._finalists][: phases - 1]
        self._finals: list[Configuration] = []  # cases left in the last phase
        self._times_s: dict[Configuration, list[float]] = {}  # by case: times of the iterations that count, in order
        self.measured_s: dict[Configuration, float] = {}  # by case: the median of these times
        self._trial_s: list[float] = []  # times of the present trial
        self._length = ITERATIONS  # of the present trial

    @property
    def configuration(self) -> Configuration:
        """The configuration of the next iteration."""
        return self.best if self.is_done else self._trials[0]

    @property
    def shape(self) -> Shape:
        """The shape of the next iteration."""
        return fela_shape(self.policy, self._workers, self._total, self.configuration.weights, self._threshold)

    @property
    def policy(self) -> Policy:
        """The policy of the next iteration."""
        return self.configuration.policy(self._workers, self._conditional)

    @property
    def reason(self) -> str:
        """Why the next iteration has its configuration."""
        now, cases = self.configuration, len(self.measured_s)
        if self.is_done:
            return f"{now}: the best of {cases} cases, {self.measured_s[now]:.4g} s an iteration"
        if now in self.measured_s:
            return f"{now}: one of the {len(self._finals)} fastest of {cases} cases is tried again"
        return f"{now}: case {cases + 1} is tried"

    @property
    def is_done(self) -> bool:
        """Whether all cases are measured; the configuration then stays."""
        return not self._trials

    @property
    def best(self) -> Configuration:
        """The fastest of the cases that are not dropped; of equal ones the earlier one."""
        return min(self._finals or self.measured_s, key=self.measured_s.__getitem__)

    def observe_iteration(self, seconds: float) -> None:
        """Learn how long the next iteration took; may change the configuration. Call it for each iteration, in order."""
        if self.is_done:
            return
        self._trial_s.append(seconds)
        if len(self._trial_s) < self._length:
            return
        case = self._trials.pop(0)
        self._times_s.setdefault(case, []).extend(self._trial_s[SET_UP:])
        self.measured_s[case] = median(self._times_s[case])
        self._trial_s = []
        if self._finals and self.is_done:
            self._length *= 2
            self._trials = self._next_round((len(self._finals) + 1) // 2)
        while self._later and self.is_done:
            self._trials = self._later.pop(0)()

    def _subsets(self) -> list[Configuration]:
        sizes = divisors(self._workers)[-2::-1]
        return [Configuration(self.best.weights, tuple(sorted(self._members(size)))) for size in sizes]

    def _other_weights(self) -> list[Configuration]:
        best = self.best
        if len(best.subset) == self._workers:
            return []
        return [Configuration(one, best.subset) for one in self._weights if one != best.weights]

    def _apart(self) -> list[Configuration]:
        best, others = self.best, self._workers - len(self.best.subset)
        if not others or self._sub_models == 1:
            return []
        apart = Configuration(best.weights, best.subset, True).policy(self._workers, self._conditional)
        chunks = fela_shape(apart, self._workers, self._total, (1,), self._threshold).chunks
        weights = weight_cases(divisors(others), self._sub_models, chunks)
        return [Configuration(one, best.subset, True) for one in weights]

    def _finalists(self) -> list[Configuration]:
        best = self.best
        self._finals = [
            one for one in self.measured_s if one == best or min(self._times_s[one]) < self.measured_s[best]
        ]
        return self._next_round(len(self._finals))

    def _next_round(self, remain: int) -> list[Configuration]:
        """The cases to try again: the `remain` fastest of those left, fastest first; none where only one is left."""
        self._finals = sorted(self._finals, key=self.measured_s.__getitem__)[:remain]
        return self._finals[:] if remain > 1 else []


def divisors(number: int) -> list[int]:
    """All divisors of a number, ascending; of a power of two: 1, 2, 4, up to itself."""
    return [one for one in range(1, number + 1) if number % one == 0]


def weight_cases(candidates: Sequence[int], sub_models: int, most: int) -> list[tuple[int, ...]]:
    """All weights that a shape can have, each from `candidates` and at most `most`, in lexicographic order.

    most: the number of F1 tokens: no token can cover more.
    """
    cases: list[tuple[int, ...]] = [(1,)]
    for _ in range(sub_models - 1):
        cases = [(*one, next_) for one in cases for next_ in candidates if next_ <= most and next_ % one[-1] == 0]
    return cases
