import sys

import numpy as np
import pytest

from nalb.batching.speed import ARIMA_FIRST, Arima, Deferred, Ema, Memoryless
from nalb.errors import InputError, MachineError


def feed(predictor, speeds):
    for speed in speeds:
        predictor.observe_speed(speed, 1.0, 0.0)
    return predictor.predict()


def errors(predictor, speeds):
    """Root of the mean squared error of one-step predictions."""
    squares = []
    for speed in speeds:
        prediction = predictor.predict()
        if prediction is not None:
            squares.append((prediction - speed) ** 2)
        predictor.observe_speed(speed, 1.0, 0.0)
    return float(np.sqrt(np.mean(squares)))


@pytest.mark.parametrize("predictor", [Memoryless(), Ema(), Arima()])
def test_nothing_is_predicted_from_nothing(predictor):
    assert predictor.predict() is None


def test_memoryless_repeats_and_ema_weighs():
    assert feed(Memoryless(), [3.0, 7.0]) == 7.0
    assert feed(Ema(0.2), [10.0, 20.0, 0.0]) == pytest.approx(0.8 * (0.2 * 20 + 0.8 * 10))


def test_ema_withstands_spikes_better_than_memoryless_and_follows_a_level_shift():
    generator = np.random.default_rng(3)
    speeds = 100 + 5 * generator.normal(size=400)
    speeds[::20] -= 50
    assert errors(Ema(), speeds) < errors(Memoryless(), speeds)
    assert feed(Ema(), [100.0] * 50 + [50.0] * 25) == pytest.approx(50, rel=0.01)


def test_arima_forecasts_as_the_library_does():
    from statsmodels.tsa.arima.model import ARIMA

    generator = np.random.default_rng(5)
    speeds = 100 + np.cumsum(generator.normal(size=60))
    predictor = Arima()
    prediction = feed(predictor, speeds)
    fitted = predictor.model  # of the first ARIMA_FIRST speeds, which the library is given as they are
    model = ARIMA(speeds, order=(2, 2, 1), trend="n")
    expected = model.filter([*fitted.ar_params, *fitted.ma_params, fitted.sigma2]).forecast(1)[0]
    assert prediction == pytest.approx(expected, rel=1e-4)


def test_arima_without_its_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "statsmodels", None)  # as where it is not installed
    with pytest.raises(
        MachineError, match=r"arima needs the extra arima \(statsmodels\): pip install -e '.\[arima\]' "
    ):
        Arima()


def test_arima_extrapolates_a_line_and_a_constant():
    assert feed(Arima(), [10.0 + 2 * k for k in range(ARIMA_FIRST + 5)]) == pytest.approx(10 + 2 * (ARIMA_FIRST + 5))
    assert feed(Arima(), [4.0] * (ARIMA_FIRST + 5)) == pytest.approx(4.0)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of statsmodels, which also divides by zero
@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("factor", [0.01, 1e5, 1e6, 1e7])
def test_arima_goes_on_where_one_speed_is_far_off(factor, noise):
    for place in range(ARIMA_FIRST - 4):
        speeds = abs(100 + noise * np.random.default_rng(place).normal(size=ARIMA_FIRST + 2))
        speeds[place] *= factor
        assert np.isfinite(feed(Arima(), speeds.tolist()))


def test_arima_waits_for_its_first_fit():
    assert feed(Arima(late=3), [1.0, 2.0] * ((ARIMA_FIRST + 2) // 2)) is None
    assert feed(Arima(late=3), [1.0, 2.0, 2.5] * (ARIMA_FIRST // 2)) is not None


def test_deferred_changes_over_when_due_and_ready():
    assert feed(Deferred(Ema(), Memoryless(), after=3), [10.0, 20.0]) == pytest.approx(12)
    assert feed(Deferred(Ema(), Memoryless(), after=3), [10.0, 20.0, 30.0]) == 30
    assert feed(Deferred(Memoryless(), Arima(), after=0), [10.0, 20.0]) == 20


@pytest.mark.parametrize("weight", [0.0, 1.5, float("nan")])
def test_a_weight_outside_its_range_is_named(weight):
    with pytest.raises(InputError, match="EMA weight"):
        Ema(weight)
