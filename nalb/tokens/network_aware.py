"""Fela that knows its network and its workers: what the paper's rules leave out, learnt from what workers report. Pure.

    rule of the paper                        here
    of a level, most inputs held (Eq. 1)     least seconds to fetch the inputs
    whoever has nothing to do helps          only who would end before the owner, both with all that they are in for
    a helper takes the highest level         it takes what the owner would come to last
    S: the lowest ranks                      S: those that would be done with the conditional sub-model first

A worker is in for what is left of its present token, for the tokens in its bucket, and for going back through all that it has gone
forward through or will: whoever helps forward must go back as well. Who helps to go back must first go forward again. With
in_s the time that a worker is in for, a token is helped with where

    max( in_s(helper) + fetch_s + compute_s(helper),  fetch_s + compute_s(helper) + return_s ) < in_s(owner)
    fetch_s = late_s + max( max over sources of bytes / up of the source,  bytes of all / down of the helper )
    late_s: how much longer than that fetches take, on average: requests, senders that are busy, others on the same links
    return_s: of a token that goes back, until the owner has the gradient from the helper and has gone back through the rest

An owner that is late with a token is expected to take as long again as it is late. An owner that sleeps may not come back: help
always pays. So it does while nothing is known of how long the token takes. An owner that has not asked for a token yet, although
another worker has already computed one, sleeps.
"""

from collections.abc import Callable, Collection, Sequence

from nalb.tokens.iteration import Token
from nalb.tokens.server import Completed, Fetch, TokenServer

BACK = 2.0  # times forward: two gradients instead of one output
NEWEST = 0.1  # weight of the newest time, once there are so many: about ten count

Rates = Callable[[], tuple[Sequence[float], Sequence[float]]]  # bytes/s out of and into each worker, as estimated now


class _Recent:
    """The mean of the values so far, or of about the last 1 / NEWEST of them."""

    def __init__(self) -> None:
        self.mean, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._count += 1
        self.mean += max(NEWEST, 1 / self._count) * (value - self.mean)


class NetworkAware:
    """cost and help for TokenServer, members for Tuner. rates: None where nothing is known of links: they then cost nothing."""

    def __init__(self, server: TokenServer, rates: Rates | None = None):
        self._server, self._rates = server, rates
        # worker -> (sub-model, back, computed again) -> samples -> seconds
        self._seconds: dict[int, dict[tuple[int, bool, bool], dict[int, _Recent]]] = {}
        self._sample_bytes: dict[int, float] = {}  # of each sub-model's output
        self._late_s = _Recent()
        server.advise(self.cost, self.help)

    def observe(self, one: Completed, compute_s: float, fetched_bytes: float, fetch_s: float) -> None:
        """Take in what a worker reports of a token that it has computed."""
        shape = self._server.shape
        kind = shape.sub_model(one.token.id.level), one.token.mirrors is not None, one.recomputes
        samples = shape.samples(one.token.chunks)
        known = self._seconds.setdefault(one.worker, {}).setdefault(kind, {})
        known.setdefault(samples, _Recent()).add(compute_s)
        of_output = [self._server.fetched(one.token, fetch) for fetch in one.fetches]
        if len({sub_model for sub_model, _ in of_output}) == 1:
            self._sample_bytes[of_output[0][0]] = fetched_bytes / sum(count for _, count in of_output)
        if one.fetches:
            self._late_s.add(fetch_s - self._carried_s(one.worker, one.token, one.fetches))

    def compute_s(self, worker: int, forward: bool, back: bool, sub_model: int, samples: int) -> float | None:
        """How long a worker computes forward, back, or both; None where nothing is known of it.

        Of batches never seen: in proportion to samples. Until one has been seen, going back takes twice as long as forward. Of a
        sub-model that the worker has never computed: as long as another one.
        """
        for one in (worker, *self._seconds):
            seconds = self._of_worker(one, forward, back, sub_model, samples)
            if seconds is not None:
                return seconds
        return None

    def _of_worker(self, worker: int, forward: bool, back: bool, sub_model: int, samples: int) -> float | None:
        kinds = self._seconds.get(worker, {})
        if known := kinds.get((sub_model, back, forward and back)):
            return _for_samples(known, samples)
        there = kinds.get((sub_model, False, False))
        if not back or not there:
            return None
        there_s, and_back = _for_samples(there, samples), kinds.get((sub_model, True, False))
        back_s = _for_samples(and_back, samples) if and_back else BACK * there_s
        return back_s + (there_s if forward else 0.0)

    def _token_s(self, worker: int, token: Token, to_the_end: bool) -> float | None:
        """Of a token; with what it is in for later where `to_the_end`."""
        shape = self._server.shape
        sub_model, samples = shape.sub_model(token.id.level), shape.samples(token.chunks)
        if token.id.level == shape.head:
            return self.compute_s(worker, True, False, sub_model, samples)
        back = token.mirrors is not None
        forward = not back or self._server.recomputes(worker, token)
        if to_the_end and not back:
            there, and_back = (self.compute_s(worker, not way, way, sub_model, samples) for way in (False, True))
            return None if there is None or and_back is None else there + and_back
        return self.compute_s(worker, forward, back, sub_model, samples)

    def fetch_s(self, worker: int, token: Token) -> float:
        """How long it would take to get what the worker does not hold."""
        fetches = self._server.fetches(worker, token)
        if not fetches:
            return 0.0
        return max(0.0, self._carried_s(worker, token, fetches) + self._late_s.mean)

    def _carried_s(self, worker: int, token: Token, fetches: Sequence[Fetch]) -> float:
        """How long the links alone would take."""
        if self._rates is None:
            return 0.0
        up, down = self._rates()
        by_source: dict[int, float] = {}
        for fetch in fetches:
            by_source[fetch.source] = by_source.get(fetch.source, 0.0) + self._bytes(token, fetch)
        slowest_s = max(size_bytes / up[source] for source, size_bytes in by_source.items())
        return max(slowest_s, sum(by_source.values()) / down[worker])

    def _bytes(self, token: Token, fetch: Fetch) -> float:
        sub_model, samples = self._server.fetched(token, fetch)
        return self._sample_bytes.get(sub_model, 1.0) * samples  # nothing known: all links alike, fewest samples first

    def cost(self, worker: int, token: Token) -> float:
        """Of two tokens of a level the cheaper one goes first."""
        if self._rates is None:
            return float(sum(self._server.fetched(token, fetch)[1] for fetch in self._server.fetches(worker, token)))
        return self.fetch_s(worker, token)

    def members(self, size: int) -> list[int]:
        """The ranks of S: of so many, those that would fetch, compute and send back their part of the last sub-model first.

        Its sum over S runs over the same links. While nothing is known, the lowest ranks.
        """
        shape = self._server.shape
        samples, sample_bytes = -(-shape.total // size), self._sample_bytes.get(shape.head - 1, 0.0)

        def seconds(worker: int) -> float:
            links_s = 0.0
            if self._rates is not None:
                up, down = self._rates()
                links_s = samples * sample_bytes * (1 / up[worker] + 1 / down[worker])
            return links_s + (self.compute_s(worker, True, False, shape.head, samples) or 0.0)

        return sorted(sorted(range(self._server.workers), key=seconds)[:size])

    def help(self, worker: int, owner: int, tokens: Collection[Token]) -> Token | None:
        """Which of the owner's tokens the worker should help with, if any. tokens: those that it may compute, at least one."""
        token = max(tokens, key=lambda one: (one.id.iteration, -one.id.level, one.id.number))
        if self._server.assigned(owner) is None:
            return token if self._server.sleeps(owner) else None
        mine_s, in_s, owners_in_s = self._token_s(worker, token, True), self._in_s(worker), self._in_s(owner)
        if mine_s is None or in_s is None or owners_in_s is None:
            return token
        here_s = self.fetch_s(worker, token) + mine_s
        return token if here_s + max(in_s, self._return_s(worker, owner, token)) < owners_in_s else None

    def _return_s(self, worker: int, owner: int, token: Token) -> float:
        """After a worker has gone back with a token: until the owner has the gradient, and is through the sub-models before it."""
        shape = self._server.shape
        last, total_s = shape.sub_model(token.id.level), 0.0
        forward = token if token.mirrors is None else self._server.token(token.mirrors)
        if token.id.level < shape.head:
            return total_s
        wanted = [self._server.token(one).chunks for one in forward.inputs if self._server.holder[one] == owner]
        samples = sum(map(shape.samples, wanted))
        if samples and self._rates is not None:
            up, down = self._rates()
            total_s += (
                samples * self._sample_bytes.get(last - 1, 0.0) / min(up[worker], down[owner]) + self._late_s.mean
            )
        return total_s + sum(self.compute_s(owner, False, True, one, samples) or 0.0 for one in range(last) if samples)

    def _in_s(self, worker: int) -> float | None:
        """How long a worker is in for; None where nobody knows."""
        shape, total_s = self._server.shape, 0.0
        if present := self._server.assigned(worker):
            work, since_s = present
            seconds = self._token_s(worker, work.token, False)
            if seconds is None:
                return None
            total_s = abs(seconds + self.fetch_s(worker, work.token) - since_s)
            if work.token.mirrors is None and work.token.id.level < shape.head:
                back_s = self.compute_s(worker, False, True, work.token.id.level, shape.samples(work.token.chunks))
                total_s += back_s or 0.0
        gone_back = {one.mirrors for one in self._server.waiting(worker)}
        for one in self._server.waiting(worker):
            seconds = self._token_s(worker, one, True)
            if seconds is None:
                return None
            total_s += seconds + self.fetch_s(worker, one)
        if present:
            gone_back.add(present[0].token.mirrors)
        for one in self._server.tapes(worker):
            if one.id not in gone_back:
                total_s += self.compute_s(worker, False, True, one.id.level, shape.samples(one.chunks)) or 0.0
        return total_s


def _for_samples(known_s: dict[int, _Recent], samples: int) -> float:
    """By samples: as known, or in proportion to the nearest that is."""
    if samples not in known_s:
        nearest = min(known_s, key=lambda one: abs(one - samples))
        return known_s[nearest].mean * samples / nearest
    return known_s[samples].mean
