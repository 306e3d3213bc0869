"""Predicts a worker's speed in the coming iteration (Chen et al., 3.2.2 and Table 3).

This module has the statistical predictors. Predictors that are networks (simple RNN, LSTM, NARX) need Gluon and are in
kvstore_patch/roles/speed_networks.py; they follow the same protocol. One predictor serves one worker. After `observe_speed` of
iteration k-1, `predict` is about iteration k.

The observed resources are the present ones, reported after iteration k-1: Eq. 4's c^k and m^k. The paper calls them usage in one
place and availability in another; a controller passes on the worker's report as it is.
"""

from collections import deque
from typing import Any, Protocol

import numpy as np

from nalb.errors import InputError
from nalb.extras import require
from nalb.planning.nodes import Floats

EMA_WEIGHT = 0.2  # weight of the newest speed; Chen et al., Table 3
NETWORK_AFTER = 500  # observations before a network's prediction counts; Chen et al., section 4

ARIMA_ORDER = (2, 2, 1)  # (p, d, q); Chen et al., Table 3
ARIMA_FIRST = 20  # speeds before the first fit: with fewer, the fit of three parameters to differences fails (ours)
ARIMA_WINDOW = 200  # speeds that a fit uses: older ones belong to another load (ours)
ARIMA_REFIT = 100  # speeds between fits: a fit takes about 0.1 s, a forecast 0.3 ms (ours)
FLAT = 1e-9  # part of the mean speed: smaller second differences are rounding, and nothing is fitted
UNFIT = (ValueError, ArithmeticError, np.linalg.LinAlgError)  # statsmodels' errors for speeds of which one is far off


class Predictor(Protocol):
    """Learns one worker's speeds."""

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:
        """Learn the last iteration's speed, samples per second, and the present shares, 0 to 1, of CPU left and memory in use."""
        ...

    def predict(self) -> float | None:
        """Samples per second of the coming iteration; None while too little is known."""
        ...


class Memoryless:
    """Predicts the last speed again."""

    def __init__(self) -> None:
        self._speed: float | None = None

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:  # noqa: ARG002 - Predictor's
        self._speed = speed

    def predict(self) -> float | None:
        return self._speed


class Ema:
    """Predicts an exponential moving average, v' = weight v + (1 - weight) v', from the first speed on.

    Raises InputError for a weight that is not in (0, 1].
    """

    def __init__(self, weight: float = EMA_WEIGHT) -> None:
        if not 0 < weight <= 1:
            raise InputError(f"EMA weight {weight:g} is not in (0, 1]: it is the newest speed's part, e.g. 0.2")
        self._weight = weight
        self._speed: float | None = None

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:  # noqa: ARG002 - Predictor's
        last = speed if self._speed is None else self._speed
        self._speed = self._weight * speed + (1 - self._weight) * last

    def predict(self) -> float | None:
        return self._speed


def require_library(predictor: str | None) -> None:
    """Raise MachineError where the library that the predictor of this name needs is not installed."""
    if predictor == "arima":
        require("statsmodels", "predictor arima", ", or choose another --predictor")


class Arima:
    """ARIMA(2, 2, 1): w = second differences of v, w_k = phi_1 w_(k-1) + phi_2 w_(k-2) + e_k + theta e_(k-1).

    It predicts v_(k+1) = 2 v_k - v_(k-1) + E[w_(k+1) | w]. statsmodels fits the last ARIMA_WINDOW speeds by maximum likelihood with
    exact innovations, anew every ARIMA_REFIT speeds. late: delays the first fit by so many speeds, so that not all workers fit in
    the same iteration. Where a fit fails, the forecast of w is 0 until the next one. The order is the paper's, which gives neither
    window nor interval. A forecast from twice differenced noise may be negative; the controller judges that, not the model.
    """

    def __init__(self, late: int = 0) -> None:
        require_library("arima")
        self._speeds: deque[float] = deque(maxlen=ARIMA_WINDOW)
        self._until_fit = ARIMA_FIRST + late
        self.model: Any = None  # statsmodels' SARIMAXParams; None before the first fit
        self._fitted = False

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:  # noqa: ARG002 - Predictor's
        self._speeds.append(speed)
        self._until_fit -= 1
        if self._until_fit <= 0:
            self._until_fit = ARIMA_REFIT
            self._fitted = True
            self.model = _fit_arma(np.array(self._speeds))

    def predict(self) -> float | None:
        if not self._fitted:
            return None
        line = 2 * self._speeds[-1] - self._speeds[-2]
        if self.model is None:
            return line
        # statsmodels takes half a second to import, and few jobs forecast with it
        from statsmodels.tsa.innovations.arma_innovations import arma_innovations

        # the innovation of a value 0 is 0 less its forecast
        differences = np.append(np.diff(np.array(self._speeds), ARIMA_ORDER[1]), 0.0)
        model = self.model
        try:
            innovations, _ = arma_innovations(differences, ar_params=model.ar_params, ma_params=model.ma_params)
        except UNFIT:
            return line
        return float(line - innovations[-1])


def _fit_arma(speeds: Floats) -> Any:
    """The fitted ARMA(2, 1) of the second differences; None where these are only rounding or unfit: their forecast is 0."""
    differences = np.diff(speeds, ARIMA_ORDER[1])
    if float(np.abs(differences).max()) <= FLAT * float(speeds.mean()):
        return None
    from statsmodels.tsa.arima.estimators.innovations import innovations_mle

    order = (ARIMA_ORDER[0], 0, ARIMA_ORDER[2])
    try:
        return innovations_mle(differences, order=order, demean=False)[0]
    except UNFIT:
        return None


class Deferred:
    """Predicts by `early`, and after `after` observations by `late`, as soon as `late` gives a prediction.

    Both learn from the first observation on.
    """

    def __init__(self, early: Predictor, late: Predictor, after: int = NETWORK_AFTER) -> None:
        self._early, self._late, self._left = early, late, after

    def observe_speed(self, speed: float, cpu_share: float, memory_share: float) -> None:
        self._early.observe_speed(speed, cpu_share, memory_share)
        self._late.observe_speed(speed, cpu_share, memory_share)
        self._left -= 1

    def predict(self) -> float | None:
        prediction = self._late.predict() if self._left <= 0 else None
        return self._early.predict() if prediction is None else prediction
