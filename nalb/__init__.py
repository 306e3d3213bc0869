"""Network-aware load balancing for data-parallel training with PyTorch or MXNet.

The names below are what schemes, estimators and tools import: `from nalb import Scheme, Situation`. Each one is loaded when it is
first asked for, so that `import nalb` costs nothing. A training script imports `nalb.mxnet`. All other modules are nalb's own, and
may change.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nalb.errors import CheckpointError as CheckpointError
    from nalb.errors import InputError as InputError
    from nalb.errors import JobError as JobError
    from nalb.errors import MachineError as MachineError
    from nalb.errors import NalbError as NalbError
    from nalb.errors import PeerError as PeerError
    from nalb.errors import StoreError as StoreError
    from nalb.measurement.estimates import Estimate as Estimate
    from nalb.measurement.estimates import UplinkRates as UplinkRates
    from nalb.measurement.estimators import Estimator as Estimator
    from nalb.measurement.traffic import Traffic as Traffic
    from nalb.planning.distribution import Distribution as Distribution
    from nalb.planning.distribution import Situation as Situation
    from nalb.planning.elastic import ServerObservation as ServerObservation
    from nalb.planning.nodes import Capacities as Capacities
    from nalb.planning.nodes import CoreTimes as CoreTimes
    from nalb.planning.nodes import Node as Node
    from nalb.planning.sites import Sites as Sites
    from nalb.planning.sites import Uplinks as Uplinks
    from nalb.planning.slices import Layout as Layout
    from nalb.reporting.run_file import read_events as read_events
    from nalb.schemes import SCHEMES as SCHEMES
    from nalb.schemes import ChosenShares as ChosenShares
    from nalb.schemes import Scheme as Scheme
    from nalb.schemes import equal_by_need as equal_by_need

__version__ = "0.1.0"  # pyproject.toml takes it from here

_HOME = {  # name -> the module that has it
    **dict.fromkeys(("SCHEMES", "ChosenShares", "Scheme", "equal_by_need"), "nalb.schemes"),
    **dict.fromkeys(("Distribution", "Situation"), "nalb.planning.distribution"),
    **dict.fromkeys(("Capacities", "CoreTimes", "Node"), "nalb.planning.nodes"),
    **dict.fromkeys(("Sites", "Uplinks"), "nalb.planning.sites"),
    "Layout": "nalb.planning.slices",
    "ServerObservation": "nalb.planning.elastic",
    **dict.fromkeys(("Estimate", "UplinkRates"), "nalb.measurement.estimates"),
    "Estimator": "nalb.measurement.estimators",
    "Traffic": "nalb.measurement.traffic",
    "read_events": "nalb.reporting.run_file",
    **dict.fromkeys(
        ("CheckpointError", "InputError", "JobError", "MachineError", "NalbError", "PeerError", "StoreError"),
        "nalb.errors",
    ),
}
__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> object:
    """The public name, loaded from its module. AttributeError for any other."""
    if name not in _HOME:
        raise AttributeError(f"module 'nalb' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return [*globals(), *_HOME]
