"""From samples to capacities: the paper's sum of link averages, and what nodes carried when they had to give all.

`PaperEstimator` (Cai et al., Eqs. 6 and 8) averages each link's rates and adds a node's links up. A node whose peers
limit it reads low. `CapacityEstimator` adds up all of a node's samples that overlap in time, up and down apart, and takes
the best rate that lasted. Whether that is the node's limit or its peers' depends on the iteration. In a *free* one all pushes
leave at once, so that many nodes come to their limit, and each free iteration says anew which; with a window nodes are kept in
step, which hides what they could do: such iterations can raise an estimate and not lower it. Messages that had a node to
themselves and went much faster than its limit say that it has `outgrown` it. Where an iteration did not take as long as the
estimates said, the planner has it count alone (`anew`). Of one within which the network changed, the end counts.

A direction's value is a limit only where traffic waited for it. If whenever messages were queued towards a node the sender
itself was busy, nothing is known but a lower bound: the other direction's value stands in where it is higher, and messages
that had the node to themselves raise it.

Both are fed once per iteration and answer at any time; both are pure: the same samples give the same estimate.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from nalb.measurement.samples import Floats, Ints, Mask
from nalb.measurement.traffic import STEPS_PER_WINDOW, Rows, Traffic, quantiles

WINDOW_S = 0.2  # rates are taken over windows at least so long: several token-bucket bursts and scheduler turns
WINDOW_MESSAGES = 24  # ... and over so many of the node's messages, whose bytes are only supposed to arrive evenly
WINDOW_PART = 0.02  # ... and over this part of a long iteration: a machine that stalls catches up faster than its link for a while
PEAK_S = 0.3  # a peak must be reached for so long, or for one and a half windows, or
PEAK_PART = 0.1  # ... for this part of a short iteration: the highest windows are bursts of drained queues
RISE = 0.5  # of what a later iteration exceeds the estimate by is believed at once
ALONE_QUANTILE = 0.9  # of the rates of a node's full-sized messages: the fast ones had the node to themselves
ALONE_PART = 0.85  # of that is believed: a message that follows a pause finds tokens and empty queues
JITTER_S = 0.5e-3  # of a message's two time stamps, on a machine whose cores are busy
NOISE = 1.15  # times: more is no noise
DIFFERENT = 1.3  # what is so many times the estimate is another network's
LATE_S = 0.6  # at the end of an iteration, or
LATE_PART = 0.25  # ... this part of a long one: what it shows is newer than its best windows
ONE_PEER = 0.6  # of what a node has under way
MIN_SAMPLES = 3  # a node with fewer in an iteration is not read
ROOM = 0.8  # a direction under this part of its peak rate has room to spare
FEW = 0.5  # of its link's best flow: a flow that gets less is held back elsewhere
NEAR = 0.9  # a direction above this part of its highest rate is near its peak
PROOF_PART = 0.5  # of the time near its peak a direction must have been waited for
QUEUED = 2  # times a pair's largest message: fewer bytes are on their way
BUSY_PART = 0.85  # a pair that holds an iteration up is busy for this part of it


@dataclass(frozen=True)
class Estimate:
    """What is known of the network, in bytes per second; NaN where nothing is known yet."""

    up: Floats  # per node, shape (N,)
    down: Floats  # per node, shape (N,)
    pairs: Mapping[tuple[int, int], float] = field(
        default_factory=dict
    )  # caps of single directed pairs that were found

    @property
    def complete(self) -> bool:
        """Whether every node has both directions."""
        return bool(np.isfinite(self.up).all() and np.isfinite(self.down).all())


class Estimator(Protocol):
    """One iteration's traffic in, the present estimate out."""

    outgrown: (
        Mask  # shape (2, N), up and down: which nodes the last iteration showed to be much faster than the estimate
    )
    followed: bool  # whether the estimate rests on how the last iteration ended

    def observe(self, traffic: Traffic, free: bool = True, anew: bool = False, follow: bool = False) -> None:
        """free: workers pushed all at once, so that nodes came to their limits; else a window kept them in step.

        follow: look for a change of the network within the iteration.
        """
        ...

    def rely_on_end(self, traffic: Traffic) -> None:
        """Let the end of an iteration with a window count alone: in step, messages that were alone on a link say most."""
        ...

    def find_capped_pair(self, traffic: Traffic) -> bool:
        """Look for a pair whose own cap explains an iteration that took too long; True if one was found and noted."""
        ...

    def forget(self) -> None:
        """What was measured no longer holds."""
        ...

    def estimate(self) -> Estimate: ...


class PaperEstimator:
    """S_i = sum_j s_ij with s_ij the mean of the link's sample rates (Cai et al., Eqs. 6 and 8).

    A directed pair has two connections, pushes and answers, that share its rate; their means are added.

    The paper averages all of a link's records; a network that changes needs the newest to weigh more, so each iteration's
    mean is taken over that iteration alone. Links not used in an iteration keep their last value.
    """

    followed = False

    def __init__(self, num_nodes: int):
        self.outgrown = np.zeros((2, num_nodes), dtype=np.bool_)
        self._num_nodes = num_nodes
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self._connection = np.full((2, self._num_nodes, self._num_nodes), np.nan)  # pushes, answers

    def observe(self, traffic: Traffic, free: bool = True, anew: bool = False, follow: bool = False) -> None:
        """Replace the mean of each link that has samples."""
        del free, anew, follow
        rate = traffic.size_bytes / (traffic.end_s - traffic.start_s)
        place = (np.where(traffic.is_push, 0, 1), traffic.source, traffic.target)
        key = np.ravel_multi_index(place, self._connection.shape)
        total, count = (
            np.bincount(key, weight, self._connection.size).reshape(self._connection.shape) for weight in (rate, None)
        )
        seen = count > 0
        self._connection[seen] = total[seen] / count[seen]

    def rely_on_end(self, traffic: Traffic) -> None:
        """The paper knows no such thing."""

    def find_capped_pair(self, traffic: Traffic) -> bool:
        """The paper knows no caps of pairs."""
        del traffic
        return False

    def estimate(self) -> Estimate:
        """Sums over each node's links; a node without any sample is NaN."""
        known = np.isfinite(self._connection)
        link = np.where(known.any(axis=0), np.where(known, self._connection, 0.0).sum(axis=0), np.nan)
        up, down = (np.where(np.isfinite(link).any(axis=axis), np.nansum(link, axis=axis), np.nan) for axis in (1, 0))
        return Estimate(up=up, down=down)


class CapacityEstimator:
    """Per node and direction the rate sustained at full load, by the newest iteration that shows it; caps of pairs."""

    def __init__(self, num_nodes: int):
        self._num_nodes = num_nodes
        self.forget()

    def forget(self) -> None:
        """Start anew."""
        self.outgrown, self.followed = np.zeros((2, self._num_nodes), dtype=np.bool_), False
        self._before: Traffic | None = None  # the free iteration before the last one
        self._last: Traffic | None = None
        self._rate = np.full((2, self._num_nodes), np.nan)  # up, down
        self._proven = np.zeros((2, self._num_nodes), dtype=np.bool_)
        self._pairs: dict[tuple[int, int], float] = {}

    def observe(self, traffic: Traffic, free: bool = True, anew: bool = False, follow: bool = False) -> None:
        """Take one iteration in. A free one tells limits from lower bounds; others can only raise what is known."""
        best, alone = sustained_rates(traffic, self._num_nodes), _rates_alone(traffic, self._num_nodes)
        seen = best
        old = np.full_like(seen, np.nan) if anew else self._rate
        limits = _waited_for(traffic, seen, is_whole=True) if free else np.zeros_like(self._proven)
        hidden = seen < (NOISE if free else DIFFERENT) * old  # it carried no more than it can: that says nothing
        proven = limits | (self._proven & hidden & (not anew))
        self.outgrown = proven & ~limits & (alone > DIFFERENT * old)
        seen = np.where(proven, seen, np.fmax(seen, alone))
        if free:
            self._before, self._last = self._last, traffic
        changed = np.isnan(old) | (free & (seen > NOISE * old)) | (limits & (old > NOISE * seen))
        rate = np.where(changed, seen, np.where(limits | (seen > old), old + RISE * (seen - old), old))
        self._rate, self._proven = np.where(rate > 0, rate, self._rate), proven  # NaN and 0: nothing was seen of it
        self.followed = follow and traffic.span_s > 2 * LATE_S and self._follow(traffic, best, free)
        for pair, cap in list(self._pairs.items()):
            carried = traffic.size_bytes[traffic.between(*pair)].sum()
            shown = _pair_rate(traffic, pair) if free else _pair_rate_alone(traffic, pair)
            if max(carried / traffic.span_s, shown) > DIFFERENT * cap:
                del self._pairs[pair]  # it has carried much more than its cap

    def _follow(self, traffic: Traffic, best: Floats, free: bool) -> bool:
        """Let what came late count if the network changed within the iteration, whose best rates are from before then; if it did.

        The direction with most under way sets the pace: was it faster before, the network has changed. If most of that is with
        one peer, it may be that pair alone. What others did with nodes that are limited says nothing of themselves.
        """
        late = _latest(traffic)
        ends, took_s = (late.source, late.target), late.end_s - late.start_s
        rates = sustained_rates(late, self._num_nodes)
        under_way_s = np.array([np.bincount(nodes, took_s, self._num_nodes) for nodes in ends])
        pace = direction, node = np.unravel_index(under_way_s.argmax(), under_way_s.shape)
        own = ends[direction] == node
        with_one_s = np.bincount(ends[1 - direction][own], took_s[own]).max()
        was_faster = best[pace] > DIFFERENT * rates[pace]
        if not was_faster or with_one_s > ONE_PEER * under_way_s[pace]:
            return False
        limits = _waited_for(late, rates, is_whole=False) if free else np.zeros_like(self._proven)
        limits[pace] = True
        limited = limits.any(axis=0)
        apart = ~(limited[late.source] | limited[late.target])
        heard = sum(np.bincount(nodes[apart], minlength=self._num_nodes) for nodes in ends) >= MIN_SAMPLES
        rates = np.where(limits, rates, np.fmax(rates, _rates_alone(late, self._num_nodes)))
        shown = (limited | heard) & np.isfinite(rates)
        self._rate, self._proven = np.where(shown, rates, self._rate), np.where(shown, limits, self._proven)
        return True

    def rely_on_end(self, traffic: Traffic) -> None:
        """Forget what the rest of the iteration and older ones showed of whom its end shows."""
        self.observe(_latest(traffic), free=False, anew=True)
        self.followed = True

    def find_capped_pair(self, traffic: Traffic) -> bool:
        """Note the pair that is busy nearly all the time while both its ends have room and no other pair of theirs is busy.

        Its cap is what it carried over the time in which it was busy. Where a node has become slow, several of its pairs
        are busy. A pair already noted is not found again, and one that was faster in the free iteration before has no cap:
        the network has changed.
        """
        ends = traffic.source, traffic.target
        load = np.array([np.bincount(nodes, traffic.size_bytes, self._num_nodes) for nodes in ends])
        has_room = load / traffic.span_s < ROOM * self._limits()
        busy = np.zeros((self._num_nodes, self._num_nodes))
        for pair, rows in traffic.pairs_busy_for(BUSY_PART * traffic.span_s).items():
            busy[pair] = traffic.busy_part(rows)
        is_busy = busy >= BUSY_PART
        for source, target in np.argwhere(is_busy).tolist():
            alone = is_busy[source].sum() == 1 and is_busy[:, target].sum() == 1
            if alone and has_room[0, source] and has_room[1, target] and (source, target) not in self._pairs:
                cap = _pair_rate(traffic, (source, target))
                before = self._before if traffic is self._last else self._last
                if before is None or _pair_rate(before, (source, target)) < DIFFERENT * cap:
                    self._pairs[source, target] = cap
                    return True
        return False

    def _limits(self) -> Floats:
        """Where nothing waited for a direction, the other one's value if it is higher."""
        other = self._rate[::-1]
        return np.where(self._proven | ~(other > self._rate), self._rate, other)

    def estimate(self) -> Estimate:
        """The capacities up and down, and the caps of pairs."""
        up, down = self._limits()
        return Estimate(up=up, down=down, pairs=dict(self._pairs))


def _latest(traffic: Traffic) -> Traffic:
    """The last part of an iteration."""
    return traffic.since(traffic.last_s - max(LATE_S, LATE_PART * traffic.span_s))


def sustained_rates(traffic: Traffic, num_nodes: int) -> Floats:
    """The rate in bytes/s that each node kept up over its better windows, up and down, shape (2, N); NaN for too few messages.

    The value that a window's mean exceeds for PEAK_S (one and a half windows, where they are long), or for PEAK_PART of a
    short iteration.
    """
    rates = []
    for node in (traffic.source, traffic.target):
        window_s = _windows_s(traffic, node, num_nodes)
        part: Floats = np.minimum(PEAK_PART, np.maximum(PEAK_S, 1.5 * window_s) / traffic.span_s)
        values, group = traffic.windows(np.arange(len(node)), node, window_s)
        enough = np.bincount(node, minlength=num_nodes) >= MIN_SAMPLES
        rates.append(np.where(enough, quantiles(values, group, 1 - part), np.nan))
    return np.array(rates)


def _pair_rate(traffic: Traffic, pair: tuple[int, int]) -> float:
    """What a directed pair carried over the time in which it was busy, bytes/s; 0 without messages."""
    rows = traffic.between(*pair)
    return 0.0 if not len(rows) else float(traffic.size_bytes[rows].sum() / (traffic.busy_part(rows) * traffic.span_s))


def _pair_rate_alone(traffic: Traffic, pair: tuple[int, int]) -> float:
    """As _rates_alone, of a directed pair; 0 for too few messages."""
    rows = traffic.between(*pair)
    rows = rows[traffic.is_full_sized[rows]]  # probes fit into the bursts that a cap lets through
    rate = traffic.size_bytes[rows] / (traffic.longest_s[rows] + JITTER_S)
    return ALONE_PART * float(np.quantile(rate, ALONE_QUANTILE)) if len(rows) >= MIN_SAMPLES else 0.0


def _rates_alone(traffic: Traffic, num_nodes: int) -> Floats:
    """What a node's fast messages say that it carries at least, up and down, shape (2, N); NaN for too few.

    In step with its peers, it pauses often. Each message is given the longest time that it may have taken: a machine short
    of CPU reads forecast and message at once.
    """
    rate = traffic.size_bytes / (traffic.longest_s + JITTER_S)
    part, rates = np.full(num_nodes, ALONE_QUANTILE), []
    for node in (traffic.source, traffic.target):
        has_large = np.bincount(node, traffic.is_full_sized, num_nodes) >= MIN_SAMPLES
        counts = traffic.is_full_sized | ~has_large[node]  # a server with hardly a share has probes alone
        node, rate_of = node[counts], rate[counts]
        enough = np.bincount(node, minlength=num_nodes) >= MIN_SAMPLES
        rates.append(np.where(enough, ALONE_PART * quantiles(rate_of, node, part), np.nan))
    return np.array(rates)


def _windows_s(traffic: Traffic, node: Ints, num_nodes: int) -> Floats:
    """How long each node's windows are, shape (N,); node: of each message."""
    first_s, last_s = traffic.lasting(node, num_nodes)
    count = np.bincount(node, minlength=num_nodes)
    least_s = max(WINDOW_S, WINDOW_PART * traffic.span_s)
    return np.asarray(np.maximum(least_s, WINDOW_MESSAGES * (last_s - first_s) / np.maximum(count, 1)))


def _waited_for(traffic: Traffic, peak: Floats, is_whole: bool) -> Mask:
    """Which directions messages waited for while they were near their peak, shape (2, N): the peak is their limit.

    They wait for one end if the other has room to spare; or if they get far less than the other end's best flow and not much
    less than this end's, since a link's flows share it equally unless something else holds them back (max-min fairness).

    is_whole: the traffic is a whole iteration's, so that who pushes nothing is no worker.
    """
    num_nodes = peak.shape[1]
    ends = traffic.source, traffic.target
    window_s = max(WINDOW_S, *(float(_windows_s(traffic, node, num_nodes).max()) for node in ends))
    every, same = np.arange(len(traffic.source)), np.full(num_nodes, window_s)
    rate = np.array([traffic.windows(every, node, same)[0].reshape(num_nodes, -1) for node in ends])  # (2, N, times)
    has_room = rate < ROOM * peak[:, :, np.newaxis]
    best, awaited = np.zeros(rate.shape), np.zeros(rate.shape, dtype=np.bool_)
    queued, held_up = _queued(traffic, window_s, rate.shape[2], is_whole)
    if not queued:
        return np.zeros(peak.shape, dtype=np.bool_)
    messages = [rows for _, _, rows, _ in queued]
    group = np.repeat(np.arange(len(queued)), [len(rows) for rows in messages])
    flows, _ = traffic.windows(np.concatenate(messages), group, np.full(len(queued), window_s))
    flows = flows.reshape(len(queued), -1)
    for (source, target, _, times), flow in zip(queued, flows, strict=True):
        for direction, node in enumerate((source, target)):
            best[direction, node, times] = np.maximum(best[direction, node, times], flow[times])
    for (source, target, _, times), flow in zip(queued, flows, strict=True):
        few_out, few_in = (flow[times] < FEW * best[place][times] for place in ((0, source), (1, target)))
        awaited[1, target, times] |= has_room[0, source, times] | few_out & ~few_in
        awaited[0, source, times] |= has_room[1, target, times] | few_in & ~few_out
    for server, waiting in held_up.items():
        awaited[0, server] |= waiting
    near_peak = rate >= NEAR * rate.max(axis=2, keepdims=True)
    return np.asarray((awaited & near_peak).sum(axis=2) >= PROOF_PART * near_peak.sum(axis=2))


def _queued(
    traffic: Traffic, window_s: float, count: int, is_whole: bool
) -> tuple[list[tuple[int, int, Rows, slice | Ints]], dict[int, Mask]]:
    """Per pair its source, target, messages, and in which of `count` windows, an eighth apart, more of these were queued.

    Pushes are between a pair's first and last: they have all left at once. A pair without any, since its source is no worker or
    its target no server, has answers: these are while fewer have come than could have.

    And in which windows all of such a server's answers were, shape (count,), if they are for nodes that serve nothing: for its
    uplink. Should it be these nodes' downlinks that hold them up, they set the pace whatever the shares.
    """
    step_s = window_s / STEPS_PER_WINDOW
    at_s = traffic.first_s + step_s * np.arange(count + STEPS_PER_WINDOW)
    serving = set(np.unique(traffic.target[traffic.is_push]).tolist())
    ready: dict[int, tuple[Floats, Floats]] = {}
    queued: list[tuple[int, int, Rows, slice | Ints]] = []
    held_up: dict[int, Mask] = {}
    for (source, target), rows in traffic.pairs_busy_for(window_s).items():
        if len(pushes := rows[traffic.is_push[rows]]):
            first = int(np.searchsorted(at_s, traffic.start_s[pushes].min()))
            last = int(np.searchsorted(at_s, traffic.end_s[pushes].max(), "right")) - STEPS_PER_WINDOW
            queued.append((source, target, pushes, slice(first, max(first, last))))
        elif is_whole:
            if source not in ready:
                ready[source] = _sums_ready(traffic, source)
            waiting = _late_bytes(traffic, rows, *ready[source], at_s) > QUEUED * traffic.size_bytes[rows].max()
            throughout = np.lib.stride_tricks.sliding_window_view(waiting, STEPS_PER_WINDOW + 1).all(axis=1)
            queued.append((source, target, rows, np.flatnonzero(throughout)))
            held_up[source] = held_up.get(source, throughout) & throughout & (target not in serving)
    return queued, held_up


def _sums_ready(traffic: Traffic, server: int) -> tuple[Floats, Floats]:
    """Times, rising from -inf, and of how many bytes a node's server had all other nodes' pushes by then.

    All push the same slices in the same order; what its own node pushed is not seen.
    """
    pushes = np.flatnonzero(traffic.is_push & (traffic.target == server))
    at_s = np.append(-np.inf, np.sort(traffic.end_s[pushes]))
    source = traffic.source[pushes]
    by_worker = [traffic.arrived(pushes[source == worker], at_s) for worker in np.unique(source)]
    return at_s, np.min(by_worker, axis=0) if by_worker else np.zeros(1)


def _late_bytes(traffic: Traffic, answers: Rows, ready_s: Floats, ready_bytes: Floats, at_s: Floats) -> Floats:
    """How many bytes of a pair's answers had by these times not come, though ready for as long as the fastest of them took.

    That one found no queue: it took the way, however long, and what the clocks of the two ends are apart.
    """
    order = answers[np.argsort(traffic.end_s[answers], kind="stable")]
    place = np.searchsorted(ready_bytes, np.cumsum(traffic.size_bytes[order]))
    known = place < len(ready_s)
    way_s = (traffic.end_s[order[known]] - ready_s[place[known]]).min(initial=np.inf)
    could_have = ready_bytes[np.searchsorted(ready_s, at_s - way_s, "right") - 1]
    return np.asarray(could_have - traffic.arrived(answers, at_s))


ESTIMATORS: dict[str, Callable[[int], Estimator]] = {"paper": PaperEstimator, "capacity": CapacityEstimator}
