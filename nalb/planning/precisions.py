"""Chooses in which precision each worker pushes its gradients, and in which all sums are answered. Pure.

All workers get the same bits of a sum, so all answers have one precision. Pushes may differ from worker to worker. Both are chosen
from STEPS, from whole values to fewer bytes, for the least priced time

    iteration_s(T) / (1 - PRICE)^(answers' step / 2 + mean of the pushes' steps / 2)

with T the time of exchange by `shares.exact`. So a step of everything must save PRICE of an iteration, and a step of one part saves
in proportion to that part: what does not bind stays whole. Rounding that no time pays for is never chosen, as where the exchange
hides under computing.

The search goes down from whole values. In each round it tries a step of the answers, steps of the pushes of the slowest uplinks,
and both together, and takes the best. At last each worker, from the fastest uplink on, goes back up as far as that costs no priced
time. On wan4-static, wan6-static and wan6-asymmetric this finds the optimum of all combinations. Bytes that a worker pushes beyond
those of an answer need ROOM on all links that they take: where one is nearly full, they come late. By sites all pushes and answers
have one precision: what travels in a LAN then crosses the uplink as it is. Caps of pairs are not seen.

Choice not taken: int4. It keeps 1/14 of the largest of a value's neighbours, and only small models are known to bear that. So only
who asks for it gets it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np

from nalb.planning.filling import fill_levels_s
from nalb.planning.nodes import (
    Capacities,
    CoreTimes,
    Floats,
    Node,
    completion_s,
    linear_loads,
    lone_worker,
    server_indices,
)
from nalb.planning.shares import exact
from nalb.planning.slices import PRECISIONS, Tensor, size_bytes, value_dtype, wire_dtype

STEPS = ("float32", "float16", "int8")
AUTO_PRECISION = "auto"  # asks for a choice
ASKED = (*PRECISIONS, AUTO_PRECISION)  # what a job's options may ask for
PRICE = 0.05  # part of an iteration's time that a step of all pushes and answers must save
# Times each byte that a worker pushes beyond those of an answer: links must have room for as many more. Messages wait for each
# other, so links that are nearly full end late, and estimates are off. Simulated slice by slice on 46 drawn networks, `auto` takes
# 1.0025 of the time of int8 on average, and more than 1.03 on two of them; with 1 it takes 1.014, and more than 1.03 on six.
ROOM = 2.0
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
        return float(self.exchanges_s([precisions])[0])

    def exchanges_s(self, several: Sequence[Precisions], room: float = 1.0) -> Floats:
        """The least times of exchanges in several precisions, seconds: the T of `exact` in each, with one level all at once.

        room: times each byte that a worker pushes beyond those of an answer.
        """
        if self.capacities.uplinks is not None:
            return np.array([self._by_sites_s(one) for one in several])
        if lone_worker(self.nodes) is not None:
            return np.zeros(len(several))
        model_bytes = np.array([self._bytes[one.answers] for one in several], dtype=np.float64)
        fixed, per_share = self._loads(several, room)
        rates = self.capacities.rates
        start_s, slope_s = fixed / rates, np.maximum(per_share, 0.0) / rates  # with room a load may fall with the share
        if (cores := self._core_times(model_bytes[:, None, None])) is not None:
            of_cores = np.broadcast_to(cores.fixed_s, cores.s_per_byte.shape)
            start_s = np.concatenate([start_s, of_cores], axis=1)
            slope_s = np.concatenate([slope_s, cores.s_per_byte], axis=1)
        servers = server_indices(self.nodes)
        level_s = fill_levels_s(start_s[:, :, servers], slope_s[:, :, servers], model_bytes)
        return np.maximum(level_s, start_s.max(axis=(1, 2)))

    def _by_sites_s(self, precisions: Precisions) -> float:
        model_bytes = self._bytes[precisions.answers]
        return exact(precisions.on(self.nodes, self.tensors), model_bytes, self._capacities(model_bytes))[1]

    def _loads(self, several: Sequence[Precisions], room: float = 1.0) -> tuple[Floats, Floats]:
        """Each node's load in each of these precisions, as `linear_loads`, shape (C, 2, N)."""
        answers = np.array([self._bytes[one.answers] for one in several], dtype=np.float64)
        pushes = np.array([[self._bytes[push] for push in one.pushes] for one in several], dtype=np.float64)
        pushes = pushes.reshape(len(several), len(self.nodes))  # also of none
        pushes += (room - 1) * np.maximum(0.0, pushes - answers[:, None])
        return linear_loads(self.nodes, pushes / answers[:, None], answers)

    @cached_property
    def _bytes(self) -> dict[str, int]:
        """The tensors' bytes by precision."""
        return {one: bytes_in(self.tensors, one) for one in PRECISIONS}

    def _capacities(self, model_bytes: int) -> Capacities:
        """The capacities for shares in other bytes."""
        return replace(self.capacities, pairs={}, cores=self._core_times(np.array(model_bytes)))

    def _core_times(self, model_bytes: Floats) -> CoreTimes | None:
        """The cores' times by shares of so many bytes: they handle the same values. s_per_byte: model_bytes' shape times (N,)."""
        cores = self.capacities.cores
        if cores is None:
            return None
        parts = sum(tensor.size_bytes for tensor in self.tensors) / model_bytes
        return CoreTimes(cores.fixed_s, parts * cores.s_per_byte)

    def priced_s(self, precisions: Precisions) -> float:
        """The time of an iteration, with the price of rounding."""
        return float(self._priced_s([precisions])[0])

    def _priced_s(self, several: Sequence[Precisions]) -> Floats:
        times = np.array([self.pace.iteration_s(one) for one in self.exchanges_s(several, ROOM).tolist()])
        return np.asarray(times / (1 - PRICE) ** np.array([self._steps(one) for one in several]))

    def _steps(self, precisions: Precisions) -> float:
        pushes = [STEPS.index(one) for node, one in zip(self.nodes, precisions.pushes, strict=True) if node.is_worker]
        return (STEPS.index(precisions.answers) + sum(pushes) / len(pushes)) / 2

    def choose(self) -> Precisions:
        """The precisions of least priced time. Cost: that of 4 (TRIED + 1) times of `exact` at once for each of a few rounds."""
        chosen = Precisions.all_in(STEPS[0], self.nodes)
        chosen_s = self.priced_s(chosen)
        while tried := self._below(chosen):
            rated_s = self._priced_s(tried)
            best = int(np.argmin(rated_s))
            if rated_s[best] >= chosen_s:
                break
            chosen_s, chosen = float(rated_s[best]), tried[best]
        return chosen if self.capacities.uplinks is not None else self._raised(chosen, chosen_s)

    def _raised(self, chosen: Precisions, chosen_s: float) -> Precisions:
        """The precisions with which single workers push more bytes where that costs no priced time."""
        for i in sorted(range(len(self.nodes)), key=lambda i: -self.capacities.up[i]):
            higher = STEPS[: STEPS.index(chosen.pushes[i])] if self.nodes[i].is_worker else ()
            tried = self.pourable(
                [replace(chosen, pushes=(*chosen.pushes[:i], one, *chosen.pushes[i + 1 :])) for one in higher]
            )
            for found, found_s in zip(tried, self._priced_s(tried), strict=True):
                if found_s < chosen_s:
                    chosen_s, chosen = float(found_s), found
                    break
        return chosen

    def _below(self, present: Precisions) -> list[Precisions]:
        """Precisions with fewer bytes that are tried."""
        # Of steps with equal bytes the first one counts: float16 saves nothing of tensors that have two bytes per value.
        steps = list({self._bytes[one]: one for one in reversed(STEPS)}.values())[::-1]
        lower = steps[steps.index(present.answers) :][:2]  # the present answers, and their next step
        if self.capacities.uplinks is not None:
            return [Precisions.all_in(one, self.nodes) for one in lower[1:]]
        workers = [i for i, node in enumerate(self.nodes) if node.is_worker]
        slowest = sorted(workers, key=lambda i: self.capacities.up[i])
        tried = {present: None}  # in order
        for answers in lower:
            for step, count in product(steps[1:], _counts(len(workers))):
                lowered = set(slowest[:count])
                found = Precisions(
                    answers,
                    tuple(
                        answers if not node.is_worker else max(one, step, key=STEPS.index) if i in lowered else one
                        for i, (node, one) in enumerate(zip(self.nodes, present.pushes, strict=True))
                    ),
                )
                tried[found] = None
        return self.pourable(list(tried)[1:])

    def pourable(self, several: Sequence[Precisions]) -> list[Precisions]:
        """Those with which no node's load falls where its share grows, as `exact` needs."""
        if lone_worker(self.nodes) is not None:
            return list(several)
        can_be = (self._loads(several)[1] >= 0).all(axis=(1, 2))
        return [one for one, can in zip(several, can_be.tolist(), strict=True) if can]

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
            if self.pourable([found]):
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
