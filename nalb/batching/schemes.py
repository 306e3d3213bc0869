"""The ways to choose batch sizes, by name, and what each needs of the rest of the system.

off                 sizes stay as started
static              sizes are set once, in proportion to known power (cores) or to measured throughput (Tyagi and Sharma)
dynamic             sizes follow proportional control with dead-band and learnt bounds (Tyagi and Sharma)
lb-bsp              sizes are in proportion to predicted speeds in every iteration (Chen et al., Algorithm 1)
lb-bsp-gpu          a few samples at a time move from the slowest to the fastest worker (Chen et al., Algorithm 2)
lb-bsp-federated    sizes follow speeds in every round of FedAvg; steps, learning rate and weights stay equal (Chen et al., 3.5)
lbb                 sizes come from profiled curves, then from rapid and fine tuning (Yao et al.)
joint               sizes and the network's shares come from one plan; chosen by `--scheme joint`
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nalb.batching.decisions import Controller, Observation, SizeDecision, observed_sizes
from nalb.batching.dynamic import OpenLoop, ProportionalControl
from nalb.batching.joint_control import JointBalancer
from nalb.batching.lb_bsp import SLACK, SpeedBalancer, StepBalancer
from nalb.batching.lbb import ThresholdTuner
from nalb.batching.sizes import Bounds, Sizes, apportion
from nalb.batching.speed import Arima, Deferred, Ema, Memoryless, Predictor
from nalb.batching.time_models import Polynomial
from nalb.errors import InputError

# name -> maker of a worker's predictor from the worker's index; processes with Gluon have networks too (speed_networks.py)
PREDICTORS: dict[str, Callable[[int], Predictor]] = {
    "memoryless": lambda _: Memoryless(),
    "ema": lambda _: Ema(),
    "arima": lambda worker: Deferred(Ema(), Arima(late=worker), after=0),
}
DEFAULT_PREDICTOR = "memoryless"  # within 1 % of a trained network, and from the start: docs/speed-prediction.md


@dataclass(frozen=True)
class BatchJob:
    """All that a controller may know before the first iteration. Raises InputError where it does not fit together."""

    sizes: Sizes  # sizes with which the workers were started; their sum is the total that is kept
    most: Sizes | None = None  # per worker, e.g. from memory; None: no bound
    power: tuple[float, ...] | None = None  # per worker, in any one unit, e.g. CPU cores; None: not known
    curves: tuple[Polynomial, ...] | None = None  # per worker, from a profile; None: not profiled
    predictors: tuple[Predictor, ...] | None = None  # per worker; None: DEFAULT_PREDICTOR's

    def __post_init__(self) -> None:
        for name in ("most", "power", "curves", "predictors"):
            given = getattr(self, name)
            if given is not None and len(given) != len(self.sizes):
                raise InputError(f"batching: {len(given)} x {name} for {len(self.sizes)} workers: give one per worker")

    @property
    def bounds(self) -> Bounds:
        """The bounds that every decision keeps. Raises InputError where they contradict each other."""
        return Bounds.of(sum(self.sizes), len(self.sizes), self.most)

    @property
    def predictors_or_default(self) -> Sequence[Predictor]:
        """The speed predictors, per worker: those given, or DEFAULT_PREDICTOR's."""
        return self.predictors or [PREDICTORS[DEFAULT_PREDICTOR](worker) for worker in range(len(self.sizes))]


class Off:
    """A controller that keeps the sizes as started."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds

    def begin(self) -> SizeDecision:
        return SizeDecision(None, "sizes as started")

    def update(self, observations: Sequence[Observation]) -> SizeDecision:
        observed_sizes(observations, self._bounds)
        return SizeDecision(None, "sizes as started")


@dataclass(frozen=True)
class BatchScheme:
    """One way to choose batch sizes."""

    build: Callable[[Sizes, Bounds, BatchJob], Controller]
    waits: bool  # whether the next iteration waits for the decision; False: the decision holds as soon as it is made
    profiles: bool = False  # whether every worker makes a profile before training


FEDERATED = "lb-bsp-federated"  # of scripts that average models in place of gradients
SCHEMES: dict[str, BatchScheme] = {
    "off": BatchScheme(lambda _start, bounds, _job: Off(bounds), waits=False),
    "static": BatchScheme(lambda start, bounds, job: OpenLoop(start, bounds, job.power), waits=False),
    "dynamic": BatchScheme(lambda start, bounds, job: ProportionalControl(start, bounds, job.power), waits=False),
    "lb-bsp": BatchScheme(
        lambda _start, bounds, job: SpeedBalancer(bounds, job.predictors_or_default, SLACK), waits=True
    ),
    "lb-bsp-gpu": BatchScheme(lambda _start, bounds, _job: StepBalancer(bounds), waits=False),
    FEDERATED: BatchScheme(lambda start, bounds, _job: SpeedBalancer(bounds, [Ema() for _ in start]), waits=True),
    "lbb": BatchScheme(
        lambda start, bounds, job: ThresholdTuner(start, bounds, job.curves), waits=False, profiles=True
    ),
    "joint": BatchScheme(lambda _start, bounds, job: JointBalancer(bounds, job.predictors_or_default), waits=True),
}


@dataclass(frozen=True)
class Baseline:
    """A way to coordinate workers with which the papers compare; sizes stay equal."""

    kvstore: str  # MXNet's name of the store
    iterations_ahead: int | None  # iterations by which the fastest may lead the slowest; None: any number


BASELINES: dict[str, Baseline] = {
    "bsp": Baseline("dist_sync", 0),
    "asp": Baseline("dist_async", None),
    "ssp": Baseline("dist_async", 5),  # Chen et al., footnote 8
}


def build(scheme: str, job: BatchJob) -> tuple[Controller, Sizes]:
    """The controller of the named scheme, and the sizes of the first iteration.

    Starting sizes outside the bounds are brought within them, in proportion. Raises InputError for an unknown scheme, and for a
    job that contradicts itself.
    """
    if scheme not in SCHEMES:
        raise InputError(f"unknown batching {scheme!r}: choose one of {', '.join(SCHEMES)}")
    bounds = job.bounds
    start = tuple(job.sizes) if bounds.keeps(job.sizes) else apportion(job.sizes, bounds)
    controller = SCHEMES[scheme].build(start, bounds, job)
    return controller, controller.begin().sizes or start
