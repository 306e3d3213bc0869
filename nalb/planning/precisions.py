"""Chooses in which precision each worker pushes its gradients, and in which all sums are answered. Pure.

All workers get the same bits of a sum, so all answers have one precision. Pushes may differ from worker to worker. Both are chosen
from STEPS, from whole values to fewer bytes, for the least priced time

    iteration_s(T) / (1 - PRICE)^(answers' step / 2 + mean of the pushes' steps / 2)

with T the time of exchange by `shares.exact`. So a step of everything must save PRICE of an iteration, and a step of one part saves
in proportion to that part: what does not bind stays whole. Rounding that no time pays for is never chosen, as where the exchange
hides under computing.

The search goes down from whole values. In each round it tries a step of the answers, steps of the pushes of the slowest uplinks,
and both together, and takes the best. At last each worker, from the fastest uplink on, goes back up as far as that costs no priced
time. On wan4-static, wan6-static and wan6-asymmetric this finds the optimum of all combinations. By sites all pushes and answers
have one precision: what travels in a LAN then crosses the uplink as it is. Caps of pairs are not seen.

Choice not taken: int4. A value keeps 1/14 of the largest of its neighbours, which no model is known to bear, so only who asks for
it gets it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np

from nalb.planning.nodes import Capacities, CoreTimes, Floats, Node, completion_s, linear_load
from nalb.planning.shares import exact
from nalb.planning.slices import PRECISIONS, Tensor, size_bytes, value_dtype, wire_dtype

STEPS = ("float32", "float16", "int8")
AUTO_PRECISION = "auto"  # asks for a choice
ASKED = (*PRECISIONS, AUTO_PRECISION)  # what a job's options may ask for
PRICE = 0.05  # part of an iteration's time that a step of all pushes and answers must save
TRIED = 16  # numbers of workers that are tried together, at most


@dataclass(frozen=True)
class Precisions:
    """The precisions of one exchange."""

    answers: str
    pushes: tuple[str, ...]  # by node; a node without a worker has the answers'

    @classmethod
    def all_in(cls, precision: str, nodes: Sequence[Node]) -> "Precisions":
        """One precision for everything."""
        return cls(precision, (precision,) * len(nodes))

    def on(self, nodes: Sequence[Node], tensors: Sequence[Tensor]) -> list[Node]:
        """These nodes, with the bytes that each one pushes of these tensors for each byte of an answer."""
        answers_bytes = bytes_in(tensors, self.answers)
        parts = {one: bytes_in(tensors, one) / answers_bytes for one in set(self.pushes)}
        return [replace(node, push_part=parts[one]) for node, one in zip(nodes, self.pushes, strict=True)]


class IterationPace(NamedTuple):
    """How an iteration's time follows from its exchange's. Times in seconds."""

    other_s: float = 0.0  # of an iteration, before its exchange begins and after it ends
    hidden_s: float = 0.0  # for so long the exchange goes on under computing
    delay_s: float = 0.0  # of an exchange, beside what its links need

    def iteration_s(self, exchange_s: float) -> float:
        """The time of an iteration whose exchange needs so long by its links."""
        return self.other_s + max(exchange_s + self.delay_s, self.hidden_s)


EXPOSED = IterationPace()  # the exchange is all there is


@dataclass(frozen=True)
class PrecisionModel:
    """What precisions cost and save on a network."""

    nodes: Sequence[Node]
    tensors: Sequence[Tensor]  # whatever precision they are cut for
    capacities: Capacities  # cores: of the same tensors, cut as they are
    pace: IterationPace = EXPOSED

    def exchange_s(self, precisions: Precisions) -> float:
        """The least time of an exchange, seconds."""
        model_bytes = bytes_in(self.tensors, precisions.answers)
        nodes = precisions.on(self.nodes, self.tensors)
        return exact(nodes, model_bytes, self._capacities(model_bytes))[1]

    def _capacities(self, model_bytes: int) -> Capacities:
        """The capacities for shares in other bytes: cores handle the same values."""
        cores = self.capacities.cores
        if cores is not None:
            part = sum(tensor.size_bytes for tensor in self.tensors) / model_bytes
            cores = CoreTimes(cores.fixed_s, part * cores.s_per_byte)
        return replace(self.capacities, pairs={}, cores=cores)

    def priced_s(self, precisions: Precisions) -> float:
        """The time of an iteration, with the price of rounding."""
        return self.pace.iteration_s(self.exchange_s(precisions)) / float((1 - PRICE) ** self._steps(precisions))

    def _steps(self, precisions: Precisions) -> float:
        pushes = [STEPS.index(one) for node, one in zip(self.nodes, precisions.pushes, strict=True) if node.is_worker]
        return (STEPS.index(precisions.answers) + float(np.mean(pushes))) / 2

    def choose(self) -> Precisions:
        """The precisions of least priced time. Cost: 4 (TRIED + 1) times `exact` for each of a few rounds, and 2 N times."""
        chosen = Precisions.all_in(STEPS[0], self.nodes)
        chosen_s = self.priced_s(chosen)
        while tried := list(self._below(chosen)):
            rated_s = [self.priced_s(one) for one in tried]
            best = int(np.argmin(rated_s))
            if rated_s[best] >= chosen_s:
                break
            chosen_s, chosen = rated_s[best], tried[best]
        return chosen if self.capacities.uplinks is not None else self._raised(chosen, chosen_s)

    def _raised(self, chosen: Precisions, chosen_s: float) -> Precisions:
        """The precisions with which single workers push more bytes where that costs no priced time."""
        for i in sorted(range(len(self.nodes)), key=lambda i: -self.capacities.up[i]):
            for one in STEPS[: STEPS.index(chosen.pushes[i])] if self.nodes[i].is_worker else ():
                found = replace(chosen, pushes=(*chosen.pushes[:i], one, *chosen.pushes[i + 1 :]))
                if self.can_be_poured(found) and (found_s := self.priced_s(found)) < chosen_s:
                    chosen_s, chosen = found_s, found
                    break
        return chosen

    def _below(self, present: Precisions) -> Iterator[Precisions]:
        """Precisions with fewer bytes that are tried."""
        # Of steps with equal bytes the first one counts: float16 saves nothing of tensors that have two bytes per value.
        steps = list({bytes_in(self.tensors, one): one for one in reversed(STEPS)}.values())[::-1]
        lower = steps[steps.index(present.answers) :][:2]  # the present answers, and their next step
        if self.capacities.uplinks is not None:
            yield from (Precisions.all_in(one, self.nodes) for one in lower[1:])
            return
        workers = [i for i, node in enumerate(self.nodes) if node.is_worker]
        slowest = sorted(workers, key=lambda i: self.capacities.up[i])
        tried = {present}
        for answers in lower:
            for step, count in product(steps[1:], _counts(len(workers))):
                pushes = [max(one, step, key=STEPS.index) for one in present.pushes]
                kept = set(slowest[count:])
                found = Precisions(
                    answers,
                    tuple(
                        answers if not node.is_worker else present.pushes[i] if i in kept else pushes[i]
                        for i, node in enumerate(self.nodes)
                    ),
                )
                if found not in tried and self.can_be_poured(found):
                    tried.add(found)
                    yield found

    def can_be_poured(self, precisions: Precisions) -> bool:
        """Whether no node's load falls where its share grows, as `exact` needs."""
        _, per_share = linear_load(precisions.on(self.nodes, self.tensors), 1.0)
        return bool((per_share >= 0).all() or (per_share < 0).all(axis=0).any())

    def worth_s(self, precisions: Precisions) -> Floats:
        """How much longer the exchange would take if a node's worker alone pushed float32, seconds, shape (N,).

        With the best shares for that, or with the present ones where no others can be computed.
        """
        model_bytes = bytes_in(self.tensors, precisions.answers)
        capacities = self._capacities(model_bytes)
        shares, with_s = exact(precisions.on(self.nodes, self.tensors), model_bytes, capacities)
        worth = np.zeros(len(self.nodes))
        for i, one in enumerate(precisions.pushes):
            if one == STEPS[0] or not self.nodes[i].is_worker:
                continue
            found = replace(precisions, pushes=(*precisions.pushes[:i], STEPS[0], *precisions.pushes[i + 1 :]))
            if self.can_be_poured(found):
                worth[i] = self.exchange_s(found) - with_s
            else:
                nodes = found.on(self.nodes, self.tensors)
                worth[i] = completion_s(nodes, shares, model_bytes, capacities) - with_s
        return worth


def asked_for(asked: str, nodes: Sequence[Node], tensors: Sequence[Tensor], capacities: Capacities) -> Precisions:
    """The precisions that an option's value asks for, where the exchange is all there is."""
    if asked == AUTO_PRECISION:
        return PrecisionModel(nodes, tensors, capacities).choose()
    return Precisions.all_in(asked, nodes)


def cut_for(tensors: Sequence[Tensor], precision: str) -> list[Tensor]:
    """The tensors, as they travel in this precision."""
    return [replace(one, dtype=wire_dtype(value_dtype(one.dtype), precision)) for one in tensors]


def bytes_in(tensors: Sequence[Tensor], precision: str) -> int:
    """The bytes of these tensors in this precision."""
    return sum(size_bytes(one.elements, wire_dtype(value_dtype(one.dtype), precision)) for one in tensors)


def _counts(most: int) -> list[int]:
    """The numbers from 0 to `most` that are tried: all of them, or some that grow evenly by factors."""
    if most <= TRIED:
        return list(range(most + 1))
    return [0, *np.unique(np.geomspace(1, most, TRIED).round().astype(int)).tolist()]
