"""Fela's rules with knowledge of the network and of the workers, learnt from the workers' reports. Pure.

    rule of the paper                                           here
    of a level, the token with most inputs held (Eq. 1)         the token whose inputs take least seconds to fetch
    a worker without tokens helps                               it helps only if it would end its work before the owner ends its own
    a helper takes the token of the highest level               it takes the token that the owner would come to last
    S has the lowest ranks                                      S has the workers that would compute the conditional sub-model first

A worker's work ahead is the rest of its present token, the tokens in its bucket, and going back through all that it has gone or
will go forward through: a worker that helps forward must go back as well. A worker that helps to go back must first go forward
again. With in_s the time of a worker's work ahead, it helps with a token where

    max( in_s(helper) + fetch_s + compute_s(helper),  fetch_s + compute_s(helper) + return_s ) < in_s(owner)
    fetch_s = late_s + max( max over sources of bytes / up of the source,  bytes of all / down of the helper )
    late_s: time that fetches take beyond the second term, on average: requests, busy senders, others on the same links
    return_s: for a token that goes back, the time until the owner has the helper's gradient and has gone back through the rest

An owner that is late with a token is expected to take as long again as it is late. An owner that has not asked for a token of the
iteration, although another worker has already computed one, sleeps. A sleeping owner may not come back, so helping it always pays.
Helping also counts as paying while the times of tokens are not known.
"""

from collections.abc import Callable, Collection, Sequence

from nalb.tokens.iteration import Token
from nalb.tokens.server import Completed, Fetch, TokenServer

BACK = 2.0  # times the forward time: going back computes two gradients instead of one output
NEWEST = 0.1  # weight of the newest value, once there are ten: about the last ten count

Rates = Callable[[], tuple[Sequence[float], Sequence[float]]]  # present estimates, bytes/s out of and into each worker


class _Recent:
    """A mean of the values so far, in which about the last 1 / NEWEST of them count."""

    def __init__(self) -> None:
        self.mean, self._count = 0.0, 0

    def add(self, value: float) -> None:
        self._count += 1
        self.mean += max(NEWEST, 1 / self._count) * (value - self.mean)


class NetworkAware:
    """Gives `cost` and `help` to a TokenServer, and `members` to a Tuner. rates: None: not known, so links count as free."""

    def __init__(self, server: TokenServer, rates: Rates | None = None):
        self._server, self._rates = server, rates
        # worker -> (sub-model, whether back, whether computed again) -> samples -> seconds
        self._seconds: dict[int, dict[tuple[int, bool, bool], dict[int, _Recent]]] = {}
        self.sample_bytes: dict[int, float] = {}  # sub-model -> bytes of its output for a sample
        self._late_s = _Recent()
        server.advise(self.cost, self.help)

    def observe_token(self, one: Completed, compute_s: float, fetched_bytes: float, fetch_s: float) -> None:
        """Learn from a worker's report of a computed token: its computing, the bytes that it fetched, and their time."""
        shape = self._server.shape
        kind = shape.sub_model(one.token.id.level), one.token.mirrors is not None, one.recomputes
        samples = shape.samples(one.token.chunks)
        known = self._seconds.setdefault(one.worker, {}).setdefault(kind, {})
        known.setdefault(samples, _Recent()).add(compute_s)
        of_output = [self._server.fetched(one.token, fetch) for fetch in one.fetches]
        if len({sub_model for sub_model, _ in of_output}) == 1:
            self.sample_bytes[of_output[0][0]] = fetched_bytes / sum(count for _, count in of_output)
        if one.fetches:
            self._late_s.add(fetch_s - self._carried_s(one.worker, one.token, one.fetches))

    def compute_s(self, worker: int, forward: bool, back: bool, sub_model: int, samples: int) -> float | None:
        """Seconds that a worker computes a sub-model forward, back, or both; None where no worker's time is known.

        A batch never seen takes time in proportion to its samples. Going back, if never seen, takes BACK times the forward time. A
        sub-model that this worker has never computed takes as long as on another worker.
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
        """Seconds of a token on a worker; to_the_end: with going back later through what it goes forward through."""
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
        """Seconds in which the worker would fetch the inputs of a token that it does not hold."""
        fetches = self._server.fetches(worker, token)
        if not fetches:
            return 0.0
        return max(0.0, self._carried_s(worker, token, fetches) + self._late_s.mean)

    def _carried_s(self, worker: int, token: Token, fetches: Sequence[Fetch]) -> float:
        """Seconds that the links alone would take for these fetches."""
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
        return self.sample_bytes.get(sub_model, 1.0) * samples  # 1 where unknown: fewest samples first

    def cost(self, worker: int, token: Token) -> float:
        """The cost of a token for a worker: among a level's tokens the one of least cost goes first."""
        if self._rates is None:
            return float(sum(self._server.fetched(token, fetch)[1] for fetch in self._server.fetches(worker, token)))
        return self.fetch_s(worker, token)

    def members(self, size: int) -> list[int]:
        """The `size` ranks of S: the workers that would first fetch, compute and send back their part of the last sub-model.

        The sum of its gradients over S uses the same links. While no times are known, these are the lowest ranks.
        """
        shape = self._server.shape
        samples, sample_bytes = -(-shape.total // size), self.sample_bytes.get(shape.head - 1, 0.0)

        def seconds(worker: int) -> float:
            links_s = 0.0
            if self._rates is not None:
                up, down = self._rates()
                links_s = samples * sample_bytes * (1 / up[worker] + 1 / down[worker])
            return links_s + (self.compute_s(worker, True, False, shape.head, samples) or 0.0)

        return sorted(sorted(range(self._server.workers), key=seconds)[:size])

    def help(self, worker: int, owner: int, tokens: Collection[Token]) -> Token | None:
        """The owner's token that the worker should help with, if any. tokens: those that it may compute, at least one."""
        token = max(tokens, key=lambda one: (one.id.iteration, -one.id.level, one.id.number))
        if self._server.assigned(owner) is None:
            return token if self._server.sleeps(owner) else None
        mine_s, in_s, owners_in_s = self._token_s(worker, token, True), self._in_s(worker), self._in_s(owner)
        if mine_s is None or in_s is None or owners_in_s is None:
            return token
        here_s = self.fetch_s(worker, token) + mine_s
        return token if here_s + max(in_s, self._return_s(worker, owner, token)) < owners_in_s else None

    def _return_s(self, worker: int, owner: int, token: Token) -> float:
        """Seconds until the owner has gone back through the sub-models before a token, from when a helper has gone back with it."""
        shape = self._server.shape
        last, total_s = shape.sub_model(token.id.level), 0.0
        forward = token if token.mirrors is None else self._server.token(token.mirrors)
        if token.id.level < shape.head:
            return total_s
        wanted = [self._server.token(one).chunks for one in forward.inputs if self._server.holder[one] == owner]
        samples = sum(map(shape.samples, wanted))
        if samples and self._rates is not None:
            up, down = self._rates()
            total_s += samples * self.sample_bytes.get(last - 1, 0.0) / min(up[worker], down[owner]) + self._late_s.mean
        return total_s + sum(self.compute_s(owner, False, True, one, samples) or 0.0 for one in range(last) if samples)

    def _in_s(self, worker: int) -> float | None:
        """Seconds of a worker's work ahead; None where they are not known."""
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
    """Seconds for so many samples: the known ones, or in proportion to those of the nearest known number."""
    if samples not in known_s:
        nearest = min(known_s, key=lambda one: abs(one - samples))
        return known_s[nearest].mean * samples / nearest
    return known_s[samples].mean
