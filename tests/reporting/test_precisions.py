"""What a report says of precisions."""

from nalb.events import Rounded
from nalb.reporting.precisions import precision_lines
from nalb.reporting.step_costs import LimitKind, Thing, needs
from tests.reporting.paced import MB, NODES, rates, step

ROUNDED = Rounded(
    answers="float16",
    pushes=dict(zip(NODES, ["float32", "float32", "float32", "float16"], strict=True)),
    push_parts=dict(zip(NODES, [2.0, 2.0, 2.0, 1.0], strict=True)),
    saved_bytes=dict.fromkeys(NODES, 4 * MB),
    whole_bound_s=2.0,
    worth_s=dict(zip(NODES, [0.0, 0.0, 0.0, 1.25], strict=True)),
)


def test_whole_values_need_no_words():
    assert precision_lines({"exact": [step()]}) == []


def test_each_node_is_explained():
    lines = precision_lines({"exact": [step()], "exact+auto": [step(), step(1, rounded=ROUNDED, bound_s=1.0)]})
    assert [line.removeprefix("exact+auto: ") for line in lines] == [
        "all sums are answered in float16, since all ranks need the same bits. Pushes: n0, n1, n2 float32; n3 float16.",
        "an iteration carries fewer MB than with float32, out and in: n0 4.0, n1 4.0, n2 4.0, n3 4.0.",
        "bound 1.000 s; with float32 alone 2.000 s.",
        "why: n3 pushes float16: with float32 the exchange would take 1.250 s longer; "
        "fewer bytes of n0, n1, n2 would save too little.",
    ]


def test_links_need_what_travels_out_and_in():
    """12 MB of answers, of which each of four nodes sums 3 MB: n0 pushes 2 x 9 MB and answers 9; it gets 9 and 3 x 5."""
    found = needs(step(rounded=ROUNDED, exchange_s=9.0, estimate=rates([9.0] * 4)))
    assert found[Thing(LimitKind.LINK, "n0", "up")][0] == (2 * 9 + 9) / 9
    assert found[Thing(LimitKind.LINK, "n0", "down")][0] == (9 + 3 * 5) / 9
    assert found[Thing(LimitKind.LINK, "n3", "up")][0] == (9 + 9) / 9
    assert found[Thing(LimitKind.LINK, "n3", "down")][0] == (9 + 3 * 6) / 9
