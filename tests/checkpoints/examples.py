"""Checkpoints to test with."""

from typing import Any

import numpy as np
import numpy.typing as npt

from nalb.checkpoints.file import Checkpoint, OptimizerState, Progress


def example(iteration: int = 40, size: int = 100) -> Checkpoint:
    """One of a small training."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "weight/0.weight": np.arange(size, dtype=np.float32).reshape(-1, 5),
        "state/0.weight/0": np.zeros(3, np.float64),
    }
    optimizer = OptimizerState("Adam", iteration, {"0.weight": iteration}, {"lr": 0.1, "m_schedule": None})
    return Checkpoint(Progress(iteration, 1, 3, {"total": 2.5}), {"seed": 1, "model": "cnn"}, optimizer, arrays)
