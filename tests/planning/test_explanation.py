from nalb.planning.distribution import Situation
from nalb.planning.explanation import explain
from nalb.planning.nodes import Capacities, Node
from nalb.planning.slices import Tensor, build_layout
from nalb.schemes import decide

NODES = [Node("n0"), Node("n1"), Node("n2"), Node("n3")]
LAYOUT = build_layout(
    [Tensor("first", 600_000, "float32"), Tensor("none", 0, "float32"), Tensor("last", 10, "float32")],
    num_nodes=4,
    num_servers=4,
    alpha_bytes=4000.0,
)


def lines_of(rates, scheme="exact", nodes=NODES):
    capacities = Capacities.from_lists(rates, rates) if rates else None
    plan, _ = decide(scheme, Situation(0, nodes, LAYOUT, capacities))
    return explain(LAYOUT, plan, nodes, capacities)


def test_the_slow_node_is_told_why_it_has_no_share():
    lines = lines_of([2e7, 2e7, 2e7, 1e6])
    (slow,) = [line for line in lines if line.startswith("n3:")]
    assert "no share: its own gradients alone take it 2.400 s" in slow
    assert "sets the pace" in slow
    assert not any("no share" in line for line in lines if line.startswith(("n0:", "n1:", "n2:")))


def test_every_tensor_has_a_line_whose_parts_make_a_whole():
    lines = {line.split(" ")[0]: line for line in lines_of([2e7, 1e7, 2e7, 1e7])}
    parts = [int(word.strip("%,")) for word in lines["first"].split() if word.endswith(("%", "%,"))]
    assert abs(sum(parts) - 100) <= 2
    assert "100%" in lines["last"]
    assert "empty" in lines["none"]


def test_without_capacities_there_are_no_times():
    assert not any("Mbit/s" in line for line in lines_of(None, "average"))


def test_a_separate_server_that_is_not_needed():
    nodes = [Node("w0", is_server=False), Node("n1"), Node("n2"), Node("s3", is_worker=False)]
    lines = lines_of([2e7, 2e7, 2e7, 1.0], nodes=nodes)
    assert any("the others finish sooner without it" in line for line in lines if line.startswith("s3:"))


def test_a_capped_pair_that_sets_the_pace_is_named_and_no_link_is():
    rates, slow = [1e7] * 4, 1e6
    capacities = Capacities.from_lists(rates, rates, {(0, 1): slow, (1, 0): slow, (0, 2): slow, (0, 3): slow})
    plan, _ = decide("exact", Situation(0, NODES, LAYOUT, capacities))
    lines = explain(LAYOUT, plan, NODES, capacities)
    paced = [line for line in lines if "sets the pace" in line]
    assert paced
    assert all(line.startswith(("n0 -> ", "n1 -> n0")) for line in paced)
