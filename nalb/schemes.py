"""The distribution schemes: one record for each scheme, which all other code asks. Pure.

A scheme gets a Situation and answers (shares, reason): bytes per node, or None to keep its present plan. A scheme without a
`decide` leaves routing to MXNet. To add a scheme, write its `decide` and its record here, or in a module of your own
(docs/your-scheme.md). Reasons carry names, not measured numbers, so that they change only when the kind of decision does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from nalb.errors import InputError, listed
from nalb.planning import shares as shares_of
from nalb.planning.distribution import DecisionKind, Distribution, Situation, build_plan
from nalb.planning.elastic import FIXED_SLICE_BYTES, elastic
from nalb.planning.nodes import Capacities, Floats

# Bytes of each node, shape (N,), or None to keep the present plan; and the reason, for people.
ChosenShares = tuple[Floats | None, str]
ChosenDistribution = tuple[Distribution | None, str]
Decide = Callable[[Situation], ChosenShares]

WHY_EQUAL = {  # for people
    DecisionKind.UNMEASURED: "equal shares until every node is measured",
    DecisionKind.DISTRUSTED: "equal shares: plans do not take what the links need",
}
FULL_PART = 0.95  # part of the plan's time from which cores count as full: a slice is a few hundredths of a share
SUM_PART = 1e-6  # part of the model by which shares may be off, as sums of floats and results of solvers are


@dataclass(frozen=True)
class Scheme:
    """A way to distribute the slices over the servers."""

    name: str  # of a user's own: replaced by the word that named it
    decide: Decide | None  # situation -> shares and reason; None: MXNet routes by itself
    meaning: str = ""  # for `nalb launch --help`
    measures: bool = True  # whether messages are announced and timed, which takes time
    follows_estimates: bool = False  # whether shares come from the estimated capacities
    learns_from_times: bool = False  # whether it learns each server's time; it has no window: that aligns times
    may_leave_routing: bool = (
        False  # whether iterations in which plans gain nothing may go the other way (other_way.py)
    )
    is_equal: bool = False  # whether shares are equal on purpose
    fixed_slice_bytes: float | None = None  # slice size; None: the size that alpha gives
    needs_configured: bool = False  # whether it plans on the rates of a network file
    sums_by_sites: bool = False  # whether it sums within each site first, where nodes name their sites
    sizes_batches: bool = False  # whether shares and batch sizes come from one plan
    ps_lite_kind: str | None = None  # DMLC_PS_VAN_TYPE of the ps-lite that it needs, and so a job of its own
    place: str = ""  # file and line of a user's own scheme

    @property
    def routes_itself(self) -> bool:
        """Whether the scheme makes no plans, so that MXNet routes by itself."""
        return self.decide is None

    @property
    def needs_forecasts(self) -> bool:
        """Whether the scheme plans on times that forecasts measure."""
        return self.follows_estimates or self.learns_from_times

    @property
    def is_simulated(self) -> bool:
        """Whether `nalb simulate` can run the scheme: it has true capacities, but no speeds and no other ps-lite."""
        return not (self.sizes_batches or self.needs_configured or self.ps_lite_kind)

    @property
    def _who(self) -> str:
        """The scheme's name in error messages."""
        return f"scheme {self.name} ({self.place})" if self.place else f"scheme {self.name}"

    def shares(self, situation: Situation) -> ChosenShares:
        """The decision in this situation, checked: bytes per node, shape (N,), or None for the present plan; and the reason.

        Raises InputError for shares that cannot be carried out, and for None without a present plan.
        """
        if self.decide is None:
            raise InputError(f"scheme {self.name} makes no plans: MXNet routes by itself")
        shares, reason = self.decide(situation)
        if shares is None and situation.present_bytes is None:
            raise InputError(f"{self._who} keeps a plan that it has not made yet ({reason})")
        return (None if shares is None else self._checked(shares, situation)), reason

    def plan(self, situation: Situation) -> ChosenDistribution:
        """The decision in this situation as a plan, or None for the present plan; and the reason. Raises InputError as `shares`."""
        shares, reason = self.shares(situation)
        if shares is None:
            return None, reason
        known = situation.configured if self.needs_configured else situation.estimated
        kind = self._kind(shares, situation)
        plan = build_plan(self.name, situation, shares, known, reason, kind)
        if self.follows_estimates and kind is DecisionKind.PLANNED:
            plan = _with_full_cores(plan, situation)
        return plan, plan.reason

    def _kind(self, shares: Floats, situation: Situation) -> DecisionKind:
        """The kind of a decision, found from the situation and the shares, never from the words of the scheme's reason.

        Equal shares of a scheme that follows estimates but cannot follow them here count as equal by need. Other shares count as
        planned.
        """
        need, model_bytes = situation.equal_need, situation.layout.model_bytes
        if not self.follows_estimates or need is None:
            return DecisionKind.PLANNED
        distance_bytes = np.abs(shares - shares_of.average(situation.nodes, model_bytes)).max()
        return need if distance_bytes <= SUM_PART * model_bytes else DecisionKind.PLANNED

    def _checked(self, shares: Floats, situation: Situation) -> Floats:
        """The shares as an array, none negative. Raises InputError for shares that cannot be carried out."""
        checked = np.asarray(shares, dtype=np.float64)
        nodes, model_bytes = situation.nodes, situation.layout.model_bytes
        if checked.shape != (len(nodes),):
            raise InputError(
                f"{self._who} gave shares of shape {checked.shape} for {len(nodes)} nodes: give one per node"
            )
        slack_bytes = SUM_PART * model_bytes
        wrong = [
            node.name
            for node, share in zip(nodes, checked.tolist(), strict=True)
            if not (-slack_bytes <= share < np.inf) or (share > slack_bytes and not node.is_server)
        ]
        if wrong:
            raise InputError(
                f"{self._who} gave {listed(wrong)} a share that cannot be: give servers 0 bytes or more, others 0"
            )
        if abs(checked.sum() - model_bytes) > slack_bytes:
            raise InputError(
                f"{self._who} gave shares of {checked.sum():.0f} bytes in all: they must add up to the model's {model_bytes}"
            )
        return np.maximum(checked, 0.0)


def _with_full_cores(plan: Distribution, situation: Situation) -> Distribution:
    """The plan, with a reason that also names the nodes whose cores take as long as the whole plan."""
    known = situation.estimated
    if known is None or known.cores is None or plan.predicted_s is None:
        return plan
    cores_s = known.cores.of_shares(plan.held_shares)
    full = [situation.nodes[i].name for i in np.flatnonzero(cores_s >= FULL_PART * plan.predicted_s).tolist()]
    limits = f"at their cores' limit: {listed(full)}"
    return replace(plan, reason="; ".join(filter(None, [plan.reason, limits]))) if full else plan


def equal_by_need(situation: Situation) -> ChosenShares | None:
    """Equal shares and the reason, where a scheme cannot follow the situation's estimates; None where it can."""
    if (need := situation.equal_need) is None:
        return None
    return shares_of.average(situation.nodes, situation.layout.model_bytes), WHY_EQUAL[need]


def _average(situation: Situation) -> ChosenShares:
    return shares_of.average(situation.nodes, situation.layout.model_bytes), "equal shares"


def _elastic(situation: Situation) -> ChosenShares:
    observations = situation.observations or [()] * len(situation.nodes)
    shares, reason = elastic(situation.nodes, situation.layout.model_bytes, observations)
    if shares is not None or situation.present_bytes is not None:
        return shares, reason
    equal = shares_of.average(situation.nodes, situation.layout.model_bytes)
    return equal, f"equal shares to begin with ({reason})"


def _aware(situation: Situation) -> ChosenShares:
    if (equal := equal_by_need(situation)) is not None:
        return equal
    assert situation.estimated is not None
    shares = shares_of.pairwise(situation.nodes, situation.layout.model_bytes, situation.estimated)
    return shares, "estimated times brought together pair by pair"


def _least_time(situation: Situation, capacities: Capacities) -> Floats:
    layout = situation.layout
    return shares_of.exact(situation.nodes, layout.model_bytes, capacities, layout.common_bytes)[0]


def _exact(situation: Situation) -> ChosenShares:
    if (equal := equal_by_need(situation)) is not None:
        return equal
    assert situation.estimated is not None
    return _least_time(situation, situation.estimated), "least time by estimated capacities"


def _joint(situation: Situation) -> ChosenShares:
    if situation.sites is not None and situation.sites.has_levels:
        raise InputError("scheme 'joint' knows no sites: choose another one, or leave out what site each machine is of")
    if situation.joint_shares is None or equal_by_need(situation) is not None:
        return _exact(situation)
    return situation.joint_shares, "least time of machines and links together"


def _oracle(situation: Situation) -> ChosenShares:
    if situation.configured is None:
        raise InputError("scheme 'oracle' needs configured rates: run it in a network file's network (--network)")
    return _least_time(situation, situation.configured), "least time by configured capacities"


STOCK = Scheme("stock", None, "MXNet alone", measures=False)
GLOO = Scheme("gloo", None, "PyTorch's gloo alone", measures=False)  # for PyTorch what STOCK is for MXNet
AVERAGE = Scheme("average", _average, "equal slices", measures=False, is_equal=True)
EXACT = Scheme(
    "exact", _exact, "least time by the measured links, sees capped pairs", follows_estimates=True, may_leave_routing=True,
    sums_by_sites=True,
)  # fmt: skip
AUTO = "auto"  # the best of the schemes that measure: docs/results/cai-2023.md, schemes and estimators
ORACLE = Scheme(
    "oracle", _oracle, "as exact, with the rates of the --network file", needs_configured=True, sums_by_sites=True
)
JOINT = Scheme("joint", _joint, "shares and batch sizes together", follows_estimates=True, sizes_batches=True)

# The schemes by the names that users choose from.
SCHEMES: Mapping[str, Scheme] = {AUTO: EXACT} | {
    scheme.name: scheme
    for scheme in (
        STOCK,
        Scheme("p3", None, "MXNet alone", measures=False, ps_lite_kind="p3"),
        AVERAGE,
        Scheme(
            "elastic", _elastic, "learns from each server's times alone",
            learns_from_times=True, fixed_slice_bytes=FIXED_SLICE_BYTES,
        ),  # Chen et al., SoCC 2020, whose slice size is chosen by experience
        Scheme(
            "aware", _aware, "Cai et al.'s pairwise method", follows_estimates=True, sums_by_sites=True
        ),  # Cai et al., Algorithm 1, which does not see caps of pairs
        EXACT,
        ORACLE,
        JOINT,
    )
}  # fmt: skip


def find_scheme(name: str, schemes: Mapping[str, Scheme] = SCHEMES) -> Scheme:
    """The scheme's record. Raises InputError, which names the known schemes, for an unknown name."""
    if name not in schemes:
        raise InputError(f"unknown scheme {name!r}: choose one of {', '.join(schemes)}")
    return schemes[name]


def by_name(name: str) -> Scheme:
    """A scheme's record, for any process. Only the coordinator loads a user's own scheme: here it is just one that makes plans."""
    return {**SCHEMES, GLOO.name: GLOO}.get(name) or Scheme(name, _average)


def decide(scheme: str, situation: Situation) -> ChosenDistribution:
    """The plan of one of nalb's own schemes, as Scheme.plan gives it. Raises InputError, also for an unknown scheme."""
    return find_scheme(scheme).plan(situation)
