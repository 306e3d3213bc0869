"""One agent's part in the sums of an iteration: it pushes its slices, sums what others push to it, and answers them.

    within a site   members push to the slice's leader, which adds up the parts of its site in the order of ranks
    between sites   leaders push these sums to the slice's owner, which adds them up in the order of sites
    back            the owner answers the leaders and its own site, leaders answer theirs: all get the owner's bits

Without sites every rank is a site of its own, and leads all slices there. An owner leads the slices that it owns in its own site.
As a server an agent holds no plan: it adds up what comes, and knows its own plan once its own part is there.

Values of two bytes travel in these: parts exactly, sums rounded once, by the owner and by leaders of other sites.

A precision of fewer bytes rounds them. All answers have one, the layout's; each rank's pushes have their own, the plan's. An agent
rounds each slice once per iteration: a member its part, a leader the sum of its site, an owner the answer. The owner decodes its
own answer and leaders hand it on as it came, so all ranks hold the same bits. What a precision takes is kept (`Residuals`), whoever
rounded, and added to this rank's next part of the slice, in whatever codec that travels. So nothing moves when slices get
other owners, other codecs or other sizes: the next sum has it in any case.

A part or a sum that no codec takes, as one with NaN, travels as it is: its header says so. Nothing of it is kept.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import zmq

from nalb.errors import PeerError
from nalb.plane.codecs import Codec, codec_of
from nalb.plane.links import AgentLinks, SliceHeader
from nalb.plane.pushing import Cut, SliceProgress
from nalb.plane.residuals import Residuals
from nalb.plane.sums import SumsUnderWay, Values
from nalb.planning.slices import wire_dtype
from nalb.protocol import wire
from nalb.services.exchange import messages as m
from nalb.services.exchange.sums import digest, signs

# So many slices are encoded before what has arrived is read. If all were, messages would wait, and seem to have come at once: with
# float16 on wan6-static (exact, load 16) estimates of links were off by 63 % in the median, and are by 8 %.
ENCODED_AT_ONCE = 4
NOTHING = m.SliceSum(0.0, 0.0, 0.0)  # of a slice that a broken-off iteration has not pushed


def sites_of(size: int, levels: wire.Levels | None) -> list[list[int]]:
    """The ranks of each site, rising. levels: what the coordinator says; None: every rank is a site of its own."""
    if levels is None:
        return [[rank] for rank in range(size)]
    sites: list[list[int]] = [[] for _ in range(max(levels.site) + 1)]
    for rank, site in sorted(zip(levels.global_server, levels.site, strict=True)):
        sites[site].append(rank)
    return sites


@dataclass
class _UnderWay:
    """What is under way. Times are of the monotonic clock."""

    number: int
    plan: m.Plan
    cut: Cut
    progress: SliceProgress
    pushes_in: str  # this rank's precision; all answers have the cut's
    rounds: bool = False  # whether rounding may take something that is kept
    tensors: list[Values] = field(default_factory=list)
    asked: dict[int, int] = field(default_factory=dict)  # by slice, the rank that is to answer it
    signs: npt.NDArray[np.float64] | None = None  # where sums are verified
    sent: list[m.SliceSum] = field(default_factory=list)  # likewise, by slice
    received: list[m.SliceSum] = field(default_factory=list)


class AgentExchange:
    """Sums the iterations that `begin` names, one after the other."""

    def __init__(
        self,
        links: AgentLinks,
        rank: int,
        sites: Sequence[Sequence[int]],
        tell: Callable[[int, int], None],
        verify: bool,
    ):
        """rank: this agent's. tell: called with a tensor and how many of its elements hold their sums."""
        self._links, self._rank, self._sites, self._tell, self._verify = links, rank, sites, tell, verify
        self.residuals: Residuals | None = None  # None: rounding has taken nothing that is still to be added
        self._site_of_rank = {rank: site for site, members in enumerate(sites) for rank in members}
        self._own_site = self._site_of_rank[rank]
        members = sites[self._own_site]
        self._others_here = [one for one in members if one != rank]
        self._place_here = {one: place for place, one in enumerate(members)}
        self._within, self._between = SumsUnderWay(len(members)), SumsUnderWay(len(sites))
        self._now: _UnderWay | None = None

    def begin(self, number: int, plan: m.Plan, cut: Cut) -> SliceProgress:
        """Begin an iteration by plan; the one before is complete."""
        pushes_in = plan.pushes[self._rank] if plan.pushes else cut.precision
        now = self._now = _UnderWay(number, plan, cut, SliceProgress(cut, plan.window_of(self._rank)), pushes_in)
        dtypes, precisions = set(cut.script_dtype), {pushes_in, cut.precision}
        now.rounds = any(wire_dtype(dtype, one) != dtype for one in precisions for dtype in dtypes)
        if self.residuals is None and now.rounds:
            self.residuals = Residuals()
        if self.residuals is not None:
            self.residuals.fit(cut)
        if self._verify:
            lengths = (stop - start for start, stop in zip(cut.start, cut.stop, strict=True))
            now.signs = signs(number, max(lengths))
            now.sent, now.received = ([NOTHING] * len(cut.tensor) for _ in range(2))
        return now.progress

    def end(self) -> m.Sums | None:
        """End the iteration; digests of its slices where sums are verified."""
        now = self._iteration
        self._now = None
        is_whole = now.progress.tensors == len(now.cut.elements)
        if is_whole and not now.rounds:
            self.residuals = None  # all of it is in this iteration's sums
        return m.Sums(now.number, now.sent, now.received) if self._verify else None

    def write_kept(self, path: Path) -> None:
        """Write what rounding took to a file, while no sum is under way; no file where nothing was rounded."""
        if self.residuals is None:
            path.unlink(missing_ok=True)  # of an earlier run
        else:
            self.residuals.write(path)

    def read_kept(self, path: Path) -> None:
        """Go on with what a file holds of another run's."""
        self.residuals = Residuals.read(path)

    def add_tensor(self, tensor: Values) -> None:
        """The next tensor of the iteration lies there."""
        self._iteration.tensors.append(tensor)

    def push(self) -> bool:
        """Let go what the window allows, or as much as may be encoded at a time; returns whether anything left."""
        now = self._now
        has_left, encoded = False, 0
        while now is not None and encoded < ENCODED_AT_ONCE and (index := now.progress.next_slice()) is not None:
            has_left = True
            values = self._slice(now, index)
            if (residual := self._residual(now, index)) is not None:
                encoded += 1
                with np.errstate(all="ignore"):
                    values += residual
                residual[:] = 0
            if now.signs is not None:
                now.sent[index] = digest(values, now.signs)
            if now.plan.server_of_slice[index] != self._rank:
                now.progress.under_way_bytes += now.cut.size_bytes[index]
            leader = self._leader(now.plan, self._own_site, index)
            if leader == self._rank:
                self._add_within(self._rank, now.number, index, values)
            else:
                self._push_to(leader, now, index, values)
            now = self._now
        return has_left

    # ---- what arrives

    def pushed(self, rank: int, header: SliceHeader, values: Values) -> None:
        """A member's part of a slice, or another site's sum of it."""
        if rank in self._place_here:
            self._add_within(rank, header.iteration, header.slice_index, values)
        else:
            self._add_between(rank, header.iteration, header.slice_index, values)

    def room(self, rank: int, header: SliceHeader) -> Values:
        """Where the answer belongs. Raises PeerError where nothing was asked of that rank, or it has answered before."""
        now = self._now
        if now is None or header.iteration != now.number:
            raise PeerError(
                f"answered slice {header.slice_index} of iteration {header.iteration}, which is not under way"
            )
        if now.asked.pop(header.slice_index, None) != rank:
            raise PeerError(f"answered slice {header.slice_index}, which was not pushed to it")
        values = self._slice(now, header.slice_index)
        if header.dtype != values.dtype.name:
            raise PeerError(f"answered slice {header.slice_index} of {values.dtype.name} in {header.dtype}")
        return values

    def answered(self, header: SliceHeader, frame: zmq.Frame | None) -> None:
        """A slice's sum is in its place."""
        now, index = self._iteration, header.slice_index
        now.progress.under_way_bytes -= now.cut.size_bytes[index]
        if self._others_here and self._leader(now.plan, self._own_site, index) == self._rank:
            payload = self._slice(now, index).data if frame is None else frame.buffer
            self._links.answer(self._others_here, header, payload, now.plan.measure)
        self._note_answer(now, index)

    # ---- sums

    def _add_within(self, rank: int, iteration: int, index: int, values: Values) -> None:
        if not self._others_here:
            total: Values | None = values
        else:
            total = self._within.add(iteration, index, self._place_here[rank], values)
        if total is None:
            return
        now = self._iteration  # this rank's own part is in the sum
        owner = now.plan.server_of_slice[index]
        if owner == self._rank:
            self._add_between(self._rank, iteration, index, total)
        else:
            self._push_to(owner, now, index, total)

    def _add_between(self, rank: int, iteration: int, index: int, values: Values) -> None:
        total = self._between.add(iteration, index, self._site_of_rank[rank], values)
        if total is None:
            return
        now = self._iteration
        leaders = [self._leader(now.plan, site, index) for site in range(len(self._sites)) if site != self._own_site]
        header, payload, codec = self._coded(now, index, total, now.cut.precision)
        self._links.answer([*leaders, *self._others_here], header, payload, now.plan.measure)
        own = self._slice(now, index)
        if codec is None:
            own[:] = total
        else:
            codec.decode_into(payload, own)
        self._note_answer(now, index)

    def _push_to(self, rank: int, now: _UnderWay, index: int, values: Values) -> None:
        header, payload, _ = self._coded(now, index, values, now.pushes_in)
        now.asked[index] = rank
        self._links.push(rank, header, payload, now.plan.measure)

    def _coded(
        self, now: _UnderWay, index: int, values: Values, precision: str
    ) -> tuple[SliceHeader, memoryview, Codec | None]:
        """The slice as it travels, and by which codec; what a precision takes from it is kept.

        push() has added what was kept of the slice before, and nothing of it is left.
        """
        tensor = now.cut.tensor[index]
        dtype, script_dtype = now.cut.dtype[tensor], now.cut.script_dtype[tensor]
        keeps = wire_dtype(script_dtype, precision) != script_dtype
        codec = codec_of(precision, script_dtype)
        if codec is None or (frame := codec.encode(values, self._residual(now, index) if keeps else None)) is None:
            return SliceHeader(now.number, index, dtype, 0), values.data, None
        if now.signs is not None and not keeps:
            self._count_out(now, index, values - codec.decode(frame))
        return SliceHeader(now.number, index, dtype, codec.number), frame, codec

    def _residual(self, now: _UnderWay, index: int) -> Values | None:
        """What this rank keeps of a slice; None where nothing of it is rounded."""
        is_float32 = now.cut.dtype[now.cut.tensor[index]] == "float32"
        return self.residuals.of(now.cut, index) if self.residuals is not None and is_float32 else None

    def _note_answer(self, now: _UnderWay, index: int) -> None:
        if now.signs is not None:
            now.received[index] = digest(self._slice(now, index), now.signs)
            if (residual := self._residual(now, index)) is not None:
                self._count_out(now, index, residual)
        if (elements := now.progress.note_answer(index)) is not None:
            self._tell(now.cut.tensor[index], elements)

    def _count_out(self, now: _UnderWay, index: int, values: Values) -> None:
        """Take what this rank's rounding has taken out of what it says to have sent: no answer has it."""
        assert now.signs is not None
        taken, sent = digest(values, now.signs), now.sent[index]
        now.sent[index] = m.SliceSum(
            sent.plain - taken.plain, sent.signed - taken.signed, sent.magnitude + taken.magnitude
        )

    def _leader(self, plan: m.Plan, site: int, index: int) -> int:
        """The rank that sums a slice within a site."""
        ranks = self._sites[site]
        return ranks[0] if len(ranks) == 1 else plan.leaders[site].server_of_slice[index]

    def _slice(self, now: _UnderWay, index: int) -> Values:
        return now.tensors[now.cut.tensor[index]][now.cut.start[index] : now.cut.stop[index]]

    @property
    def _iteration(self) -> _UnderWay:
        if self._now is None:
            raise PeerError("has taken part in an iteration that is not under way here")
        return self._now
