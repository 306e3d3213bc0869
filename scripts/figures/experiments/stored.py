"""Reads the results that are kept in docs/results/data."""

from pathlib import Path

import msgspec
import numpy as np

from nalb.reporting.batching_file import BatchingFile, BatchingResult

RESULTS = Path(__file__).resolve().parents[3] / "docs" / "results"
BEGUN_S = 15  # Chen et al.'s figure 10 counts updates from this time on: MXNet's first iterations are set-up


def stored(folder: str, name: str) -> Path | None:
    """A stored result of a script's runs; None where it is not there."""
    path = RESULTS / "data" / folder / f"{name}.json"
    return path if path.exists() else None


def batchings(folder: str, name: str) -> dict[str, BatchingResult]:
    """The results of a stored batching.json, by batching; empty where it is not there."""
    path = stored(folder, name)
    return {} if path is None else msgspec.json.decode(path.read_bytes(), type=BatchingFile).batchings


class Predictions(msgspec.Struct):
    """What the pages show of a prediction.json (lb_bsp_prediction.py)."""

    figure_11: dict[str, list[float]]  # speeds of one worker, samples per second, actual and by predictor
    predictors: dict[str, dict[str, list[float]]]  # figures of each by seed


def predictions() -> Predictions | None:
    """Chen et al.'s figure 11: predicted speeds; None where it was not run."""
    path = stored("lb-bsp-prediction", "figure-11")
    return None if path is None else msgspec.json.decode(path.read_bytes(), type=Predictions)


def updates_in_time(runs: dict[str, BatchingResult]) -> tuple[dict[str, float], float]:
    """Each scheme's updates over the same seconds of each run, from BEGUN_S on; and when these end. runs: results by scheme."""
    ends = {name: np.cumsum(one.period_s, axis=0) for name, one in runs.items()}  # columns are workers
    until_s = min((float(one[-1].min()) for one in ends.values()), default=0.0)
    made = {name: float(((one >= BEGUN_S) & (one < until_s)).sum(axis=0).mean()) for name, one in ends.items()}
    return made, until_s
