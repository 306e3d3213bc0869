"""The rules by which nalb learns what links carry, and by which it decides when to plan on that: one record.

Whatever decides by a rule is handed the record, so an ablation is `dataclasses.replace(RULES, field=value)`. Each field says its
unit, where its value comes from, and what the rule is worth: the time without the rule over the time with it, mean and worst of
nine families of simulated networks, or the network that needs the rule (docs/simulation.md, "What each rule is worth"). A
"choice" was made by judgement: nobody has measured the values next to it. A constant that a single function uses stands beside
that function instead.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rules:
    """All rules of measurement and feedback that more than one function, or an ablation, needs."""

    # What one iteration proves: evidence.py, and the cells of shared_uplinks.py.

    # Cells of equal time that an iteration is cut into; the last ones show which end was slow to finish. Choice.
    cells: int = 20
    # Cells in a row whose mean counts as the best: bursts and late readers blur a single cell. Choice.
    best_cells: int = 4
    # Cells that must agree: one alone may show anything by chance. Choice.
    fewest_cells: int = 2
    # Part of a cell. A connection that sends for less than this waits for something else than links, and is no witness. Choice.
    witness_part: float = 0.9
    # Part of a cell. A connection that sends for less than this has no speed in that cell. Choice.
    speed_part: float = 0.5
    # Part of what an end carried at its best. An end that carries less has room; an uplink has room below the square of it. Choice.
    full_part: float = 0.85
    # Part of the speed of an end's fastest connection. A slower connection is held back elsewhere. Choice.
    # Worth 1.000, 1.007; recorded changes of rates: 1.065.
    fastest_part: float = 0.75
    # Part of an end's bytes in a cell. An end is not full where connections that send for less than `speed_part` carry more:
    # these wait for a window, and the end's other connections for other ends. With a window of 1 MB on wan6-static this leaves 3 of
    # 46 wrong proofs, and 47 right ones in place of 41 (measured on the plane of agents, 34 iterations).
    lasting_part: float = 0.5
    # Part of a pair's known cap. A pair that carries as much is held back by its cap, and is no witness of its ends. Choice.
    at_cap_part: float = 0.85
    # Part of what a pair carried at its best. A capped pair carries so much in every cell that counts for the cap. Choice.
    # Worth 1.000, 1.000; five caps that are none are found without it (tests/measurement/test_estimators.py).
    steady_part: float = 0.85
    # Part of a pair's bytes in a cell. A pair is held back there if connections that both ends have room for carry more. Choice.
    held_back_part: float = 0.5
    # Part of an end's bytes. The end became slower than in earlier iterations if pairs that are held back carry more. Choice.
    slower_part: float = 0.5
    # Part of the cells since an end last was at its best. A pair waits for that end if it is held back in more of them. Choice.
    waiting_part: float = 0.5
    # Part of an end's bytes since then. The end became slower within the iteration if pairs that are held back carry more. Choice.
    slowed_part: float = 0.5
    # Whether an end that carries less while more waits for it became slower. Networks that change within an iteration need it:
    # changing 560 to 577 with noise, 1.034.
    queues_show_slower: bool = True
    # Whether a full end is proven only by witnesses that no other end may explain. Worth 1.048, 1.737.
    proof_by_one_end: bool = True
    # Whether the fewest ends explain what is seen, where some became slower. Worth 1.000, 1.005; network changing 87050: 2.57.
    fewest_ends: bool = True

    # What is known of the network: capacity.py.

    # Times a rate. Rates nearer than this refute nothing: late readers and bursts make links look so much faster (6 to 18 %
    # measured on wan6-static). Uplinks of sites have the square of it. Worth 1.018, 1.103.
    noise: float = 1.15
    # Times a lower bound: what is not proven is planned on with so much, so a plan may be that wrong for one iteration. Choice.
    # Worth 1.000, 1.011; of all iterations 1.046 at worst.
    optimism: float = 1.1
    # Times a lower bound that an iteration exceeded by much: `optimism` alone needs six iterations where a rate has tripled. Of
    # 1.1, 1.3 and 1.5 this left the fewest plans behind on 50 simulated networks of family changing; 2 overshoots.
    growth: float = 1.5
    # Whether growth is multiplied where an iteration exceeds even what was hoped. Worth 1.000, 1.001; changing 84006, together with
    # `hope_refutes_nothing`: 1.05.
    growth_grows: bool = True
    # Whether a rate that is no higher than was hoped refutes nothing.
    hope_refutes_nothing: bool = True
    # Whether rates of a node with full cores refute nothing. Worth 1.000, 1.000; shared-cores 93007 and 93006: 1.08 and 1.06.
    full_cores_refute_nothing: bool = True
    # Part of the way from a proven rate to a new proof near it. Choice. Worth 1.000, 1.005; networks of family near, 95011: 1.022.
    proof_weight: float = 0.5
    # Iterations after which proof is asked for again, which costs up to `optimism` - 1 of one iteration. Choice.
    # Worth 1.000, 1.000; links with delay, where each iteration has a window, need it (tests/services/exchange/test_planner.py).
    doubt_iterations: int = 16
    # Whether evidence is judged beside what ends carried in earlier iterations. Worth 1.019, 1.333.
    knows_rates: bool = True
    # Whether evidence is judged beside the caps found in earlier iterations. Worth 1.000, 1.001; capped 95011 with noise: 1.067.
    knows_caps: bool = True
    # Whether caps of pairs are found. Worth 1.000, 1.001; caps that decide are in tests/services/exchange/test_planner.py.
    finds_caps: bool = True
    # Whether a cap goes when its pair carries more. Worth 1.000, 1.001.
    drops_caps: bool = True

    # When plans are trusted: trust.py.

    # Times what the estimates explain: an iteration that took longer is late. TCP's sharing, headers and acknowledgements explain
    # 1.05 to 1.2 (docs/results/close-to-the-bound.md).
    late_plan: float = 1.25
    # Whether a refuted estimate or a late iteration asks for an iteration without a window. Worth 1.011, 1.171.
    looks_again: bool = True
    # Iterations from one without a window to the next, at first: each costs up to 10 %, so every fifth costs 2 %.
    # Worth 1.001, 1.010; networks that become faster, while a window keeps nodes in step, need it.
    few_free: int = 5
    # Iterations from one without a window to the next, at most, where nothing changes. Choice.
    many_free: int = 40
    # Iterations of equal shares that plans may cost more than those. Choice. Worth 1.000, 1.001; false reports need it
    # (tests/protocol/test_lies.py).
    most_regret: float = 1.0
    # Iterations of equal shares that a single plan may add to that: the network may have changed within it. Choice.
    regret_of_one: float = 0.5
    # Iterations of equal shares in a row, at most, once plans have cost too much. Choice.
    max_patience: int = 32

    # When plans are made one iteration ahead: early_plans.py. Not simulated: the simulator has no wait for plans.

    # Iterations that the account holds at most: what was saved long ago says little of today's network. Choice.
    early_account: float = 2.0

    # When another way takes the place of plans: routing.py. Not simulated: what it is worth is in docs/results/cost.md for MXNet's
    # own routing, and in docs/results/delay.md for equal shares.

    # Plans whose medians ask for a trial: what another network taught is unlearnt by then (tests/simulation/test_learning.py).
    plans_to_trial: int = 8
    # Iterations that decide together: one may be late by chance, and one be the first after a pause of the script. Choice.
    look_iterations: int = 3
    # Iterations of a trial of MXNet's own routing; the first, which makes MXNet's buffers, is not counted. Choice.
    trial_iterations: int = 5
    # Part of the time that looking at the slower way may cost. Choice.
    look_price: float = 0.01
    # Iterations between two looks at the slower way, at least. Choice.
    shortest_rest: int = 8
    # Iterations between two looks at the slower way, at most, whatever a look costs: the network may have changed. Choice.
    longest_rest: int = 256
    # Iterations of either way whose medians are compared. Choice.
    compared_iterations: int = 9
    # Times the median of MXNet's own routing: iterations of it that take longer, or less by as much, tell that the network has
    # changed. Choice: as for late plans.
    off_own: float = 1.25
    # Iterations of MXNet's own routing that are chosen at once, at most: until then workers ask nobody, and nothing that they show
    # changes it. Choice.
    run_iterations: int = 8
    # Seconds that such a run takes, at most: longer iterations hardly notice that workers ask. Choice.
    run_s: float = 1.0


RULES = Rules()  # those that nalb follows
