import pytest

from bitbench.core.found.summary import Estimate, Interval, Ratio
from bitbench.report.document.numbers import Scale, mean_and_interval, number, percent, scale_for, times
from bitbench.statistics.trial import DEFINITIONS


def estimate(mean: float, low: float | None = None, high: float | None = None) -> Estimate:
    interval = None if low is None or high is None else Interval(low=low, high=high, confidence=0.95)
    return Estimate(
        mean=mean,
        interval=interval,
        relative_half_width=None,
        n_instances=3,
        n_trials=9,
        trial_sd=None,
        standard_error=None,
        degrees_of_freedom=None,
        covers_starts=True,
    )


@pytest.mark.parametrize(
    ("known", "shown"),
    [
        (estimate(193.82, 186.96, 200.69), "193.8 [187.0, 200.7]"),
        (estimate(4153.26, 3000.0, 5306.5), "4,153 [3,000, 5,306]"),
        (estimate(0.01234, 0.01222, 0.01246), "0.01234 [0.01222, 0.01246]"),
        (estimate(12.0, 12.0, 12.0), "12.00 [12.00, 12.00]"),
        (estimate(1526.74), "1,527"),
        (None, "–"),
    ],
)
def test_digits_follow_the_interval(known: Estimate | None, shown: str) -> None:
    assert mean_and_interval(known, Scale("x")) == shown


@pytest.mark.parametrize(
    ("metric", "values", "scale"),
    [
        ("latency_s", [0.02, 3.0], Scale("ms", 1e-3)),
        ("latency_s", [2.0, 3.0], Scale("s", 1.0)),
        ("tpot_s", [2e-5], Scale("µs", 1e-6)),
        ("tpot_s", [1e-9], Scale("µs", 1e-6)),
        ("peak_bytes", [2**30], Scale("MiB", 2**20)),
        ("peak_bytes", [20 * 2**30], Scale("GiB", 2**30)),
        ("output_throughput", [5.0], Scale("tok/s")),
        ("latency_s", [], Scale("s", 1.0)),
    ],
)
def test_one_unit_for_a_column(metric: str, values: list[float], scale: Scale) -> None:
    assert scale_for(DEFINITIONS[metric], values) == scale


def test_ratios() -> None:
    def ratio(value: float, low: float, high: float) -> Ratio:
        return Ratio(value=value, interval=Interval(low=low, high=high, confidence=0.95), p_value=0.01)

    assert times(ratio(1.421, 1.392, 1.449)) == "1.42× [1.39, 1.45]"
    assert times(ratio(1.0012, 0.9991, 1.0034)) == "1.001× [0.999, 1.003]"
    assert times(Ratio(value=2.0, interval=None, p_value=None)) == "2.00×"
    assert times(None) == "–"


def test_zero_and_percent() -> None:
    assert number(0.0) == "0.000"
    assert (percent(0.95), percent(0.999), percent(0.02)) == ("95 %", "99.9 %", "2 %")
