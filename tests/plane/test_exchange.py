"""The agents' exchanges with codecs that change, in one process: same bits for all, and nothing is lost."""

import numpy as np
import pytest

from experiments.plane_in_process import PlaneInProcess
from nalb.errors import PeerError
from nalb.plane.links import SliceHeader
from nalb.plane.pushing import Cut
from nalb.planning.precisions import STEPS
from nalb.planning.slices import HALVES, PRECISIONS
from nalb.protocol.wire import Levels
from nalb.services.exchange import messages as m
from tests.plane.halves import rounded_to

SIZES = [2_600, 1, 300]
WORST_STEP = 1 / 13  # of the largest value of a block: int4's


class Rounds:
    """Rounds of random numbers: replicas must stay equal to the bit; how far the sums of all rounds are off."""

    def __init__(self, job, seed=0):
        self.job, self.random = job, np.random.default_rng(seed)
        self.given = [np.zeros(size) for size in SIZES]
        self.arrived = [np.zeros(size) for size in SIZES]
        self.largest = 0.0

    def run(self, servers, pushes=(), leaders=(), scale=1.0):
        """One iteration; returns its digests."""
        for row in self.job.values:
            for values, given in zip(row, self.given, strict=True):
                values[:] = scale * self.random.standard_normal(len(values))
                given += values
        sums = self.job.sum(
            servers,
            pushes,
            leaders,
            inflight_bytes=[20_000, 5_000, 40_000, 20_000, 5_000, 40_000][: len(self.job.exchanges)],
        )
        for k, first in enumerate(self.job.values[0]):
            assert {row[k].tobytes() for row in self.job.values} == {first.tobytes()}
            self.arrived[k] += first
            self.largest = max(self.largest, float(np.abs(first).max(initial=0)))
        return sums

    def any_servers(self):
        return self.random.integers(0, self.job.size, len(self.job.layout.slices)).tolist()

    @property
    def off(self):
        """The largest difference of what was given and what arrived, in parts of the largest sum."""
        return max(np.abs(g - a).max() for g, a in zip(self.given, self.arrived, strict=True)) / self.largest


def test_replicas_stay_equal_and_nothing_is_lost_whatever_changes():
    """200 iterations in which owners, codecs of pushes and answers, and the cut change."""
    job = PlaneInProcess(4, SIZES)
    rounds = Rounds(job)
    for number in range(200):
        if number % 7 == 0:
            job.cut(str(rounds.random.choice(PRECISIONS)), float(rounds.random.integers(1_500, 9_000)))
        rounds.run(rounds.any_servers(), rounds.random.choice(PRECISIONS, job.size).tolist())
    assert rounds.off <= (job.size + 1) * WORST_STEP  # one rounding of each rank's, and one of the answer: not 200


@pytest.mark.parametrize("before", ["float16", "int8", "int4"])
def test_what_was_kept_arrives_once_all_is_whole_again(before):
    job = PlaneInProcess(3, SIZES)
    rounds = Rounds(job)
    job.cut(before)
    for _ in range(5):
        rounds.run(rounds.any_servers())
    assert rounds.off > 1e-5  # in units of a float32's precision: much was kept
    job.cut("float32")
    for _ in range(2):
        rounds.run(rounds.any_servers())
    assert rounds.off < 1e-5
    assert not any(exchange.residuals for exchange in job.exchanges)  # float32 costs nothing more


@pytest.mark.parametrize("answers", STEPS)
def test_the_mean_of_tiny_values_arrives(answers):
    """Values far below a step of their block's codes arrive in the mean, whatever precision each rank pushes in."""
    job = PlaneInProcess(3, SIZES)
    job.cut(answers)
    servers = [k % 3 for k in range(len(job.layout.slices))]
    total = np.zeros(SIZES[0])
    for number in range(100):
        for row in job.values:
            row[0][:] = 1e-4
            row[0][::256] = 1.0
            row[1][:], row[2][:] = 0, 0
        job.sum(servers, np.roll(["float32", "int8", "int4"], number // 5).tolist())
        total += job.values[0][0]
    kept = np.ones(SIZES[0], bool)
    kept[::256] = False
    bias = total[kept].mean() / (100 * 3e-4) - 1
    assert abs(bias) < 0.5 / 100 * 3 / 14 / 3e-4 * 3  # what three ranks may still keep: half a step each of int4's


@pytest.mark.parametrize("dtype", HALVES)
def test_sums_of_two_bytes_are_those_of_float32_in_order_of_ranks_rounded_once(dtype):
    """Whoever sums; int8 alone has fewer bytes, and keeps what it takes."""
    job, random = PlaneInProcess(4, SIZES, dtype=dtype, verify=True), np.random.default_rng(2)
    for precision in (*PRECISIONS[:3], "int8", "float32", "float16"):
        job.cut(precision, float(random.integers(1_500, 9_000)))
        slices = len(job.layout.slices)
        assert precision == "int8" or job.layout.model_bytes == 2 * sum(SIZES)
        has_kept = job.exchanges[0].residuals is not None
        for number in range(4):
            for row in job.values:
                for values in row:
                    sizes = 10.0 ** (np.arange(len(values)) % 11 - 8)
                    drawn = random.standard_normal(len(values)) * sizes
                    values[:] = rounded_to(dtype, drawn.astype(np.float32))
            parts = [[row[k].copy() for row in job.values] for k in range(len(SIZES))]
            sums = job.sum(random.integers(0, job.size, slices).tolist())
            for one, of_ranks in zip(sums[0].received, zip(*(rank.sent for rank in sums), strict=True), strict=True):
                given, magnitude = sum(rank.signed for rank in of_ranks), sum(rank.magnitude for rank in of_ranks)
                assert abs(one.signed - given) <= 4 * 2.0**-23 * magnitude + 1e-30
            for k, (p0, p1, p2, p3) in enumerate(parts):
                expected = rounded_to(dtype, ((p0 + p1) + p2) + p3)
                assert {row[k].tobytes() for row in job.values} == {job.values[0][k].tobytes()}
                if precision == "int8" or (has_kept and not number):
                    assert np.abs(job.values[0][k] - expected).max() <= np.abs(expected).max() / 20
                else:
                    assert job.values[0][k].tobytes() == expected.tobytes()
        assert (job.exchanges[0].residuals is not None) == (precision == "int8")


@pytest.mark.parametrize(("dtype", "most_off"), [("float32", 1e-5), ("bfloat16", 15 * 3 * 2.0**-9)])
def test_sums_by_sites_are_equal_and_their_digests_right(dtype, most_off):
    """Of bfloat16 each of 15 rounds may round parts, sums of sites and answers."""
    levels = Levels([0, 0, 1, 1, 2], [0, 1, 2, 3, 4], [])
    job = PlaneInProcess(5, SIZES, levels, verify=True, dtype=dtype)
    rounds = Rounds(job)
    for precision in ("int8", "float16", "float32", "int4", "float32"):
        job.cut(precision)
        slices = range(len(job.layout.slices))
        for _ in range(3):
            servers = rounds.any_servers()
            leaders = []
            for members in ([0, 1], [2, 3], [4]):
                turns = [members[k % len(members)] for k in slices]
                ranks = [owner if owner in members else turn for owner, turn in zip(servers, turns, strict=True)]
                leaders.append(m.SiteLeaders(ranks, []))
            sums = rounds.run(servers, leaders=leaders)
            sent = np.array([[tuple(x.plain for x in one.sent)] for one in sums]).sum(axis=0)
            received = np.array([x.plain for x in sums[0].received])
            assert np.allclose(sent, received, atol=1e-2)
    assert rounds.off < most_off


# Of each tensor, what ranks 0 to 3 have at one place: no codec takes a part, an answer or a site's sum, or several of these.
SPECIAL = (
    (np.nan, 1, 1, 1),
    (1, np.inf, 1, -np.inf),
    (1, 1, 1e38, 1),
    (1e38, 1, 1, -1e38),
    (6e37, 1, 1, 6e37),
    (6e37, 6e37, 1, 1),
    (3e38, 1, 1, 3e38),
    (6e4, 6e4, 1, 1),
)


@pytest.mark.parametrize("levels", [None, Levels([0, 0, 1, 1], [0, 1, 2, 3], [])], ids=["one level", "sites"])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("dtype", ["float32", *HALVES])
def test_slices_that_no_codec_takes_travel_as_they_are(dtype, precision, levels):
    """All ranks hold the same, with infinities and NaN where a loop over ranks has them. What was kept before arrives too."""
    job, random = PlaneInProcess(4, [600] * len(SPECIAL), levels, verify=True, dtype=dtype), np.random.default_rng(4)
    off, place = np.zeros((len(SPECIAL), 600)), 7
    for number, one in enumerate([precision] * 5 + ["float32"]):
        job.cut(one)
        parts = rounded_to(dtype, random.standard_normal((4, *off.shape)).astype(np.float32))
        if number == 3:
            parts[:, :, place] = rounded_to(dtype, np.array(SPECIAL, np.float32).T)
        for row, rank_parts in zip(job.values, parts, strict=True):
            for values, part in zip(row, rank_parts, strict=True):
                values[:] = part
        owners = random.integers(0, 4, len(job.layout.slices)).tolist()
        leaders = [m.SiteLeaders([one if one in site else site[0] for one in owners], []) for site in ([0, 1], [2, 3])]
        job.sum(owners, leaders=leaders if levels else ())
        sums = np.array(job.values[0])
        assert {np.array(row).tobytes() for row in job.values} == {sums.tobytes()}
        if number == 3:
            p0, p1, p2, p3 = parts[:, :, place]
            with np.errstate(all="ignore"):
                expected = (p0 + p1) + (p2 + p3) if levels else ((p0 + p1) + p2) + p3
            assert np.allclose(sums[:, place], expected, rtol=0.03, equal_nan=True)
        parts[:, :, place] = sums[:, place] = 0
        off += parts.sum(axis=0, dtype=np.float64) - sums
    assert np.abs(off).max() < (1e-5 if dtype == "float32" else 0.2)


@pytest.mark.parametrize(
    ("rank", "header", "text"),
    [
        (0, SliceHeader(0, 0, "float32", 0), "slice 0, which was not pushed to it"),  # the second one
        (2, SliceHeader(0, 1, "float32", 0), "slice 1, which was not pushed to it"),
        (0, SliceHeader(0, 1 << 40, "float32", 0), "slice 1099511627776, which was not pushed to it"),
        (0, SliceHeader(1, 1, "float32", 0), "slice 1 of iteration 1, which is not under way"),
        (0, SliceHeader(0, 1, "float64", 0), "slice 1 of float32 in float64"),
    ],
)
def test_answers_that_were_not_asked_for(rank, header, text):
    job = PlaneInProcess(3, SIZES)
    exchange, cut = job.exchanges[1], Cut(job.layout)
    plan = m.Plan(0, 0, 0, "average", False, [], [0] * len(job.layout.slices), [])
    progress = exchange.begin(0, plan, cut)
    for number, elements in enumerate(SIZES):
        exchange.add_tensor(np.ones(elements, np.float32))
        progress.make_ready(number, elements)
    exchange.push()
    first = SliceHeader(0, 0, "float32", 0)
    assert (exchange.room(0, first) == 1).all()
    exchange.answered(first, None)
    with pytest.raises(PeerError, match=text):
        exchange.room(rank, header)
