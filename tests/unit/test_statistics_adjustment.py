import numpy as np
import pytest

from bitbench.analysis.pairs import Floats, LogSpeeds
from bitbench.analysis.sequential import adjust_for_machine_speed, machine_speed
from bitbench.study.plan import Config

NAMES = tuple(Config(variant="none", engine=name) for name in "abcd")
SHAPE = (4, 3, 6)


def figures(slopes: list[float], noise: float, seed: int = 1) -> tuple[LogSpeeds, Floats]:
    rng = np.random.default_rng(seed)
    machine = rng.normal(0.5, 0.2, SHAPE)
    starts = rng.normal(0, 0.1, (4, 3, 1))
    values = starts + np.array(slopes)[:, None, None] * machine + rng.normal(0, noise, SHAPE)
    return LogSpeeds(NAMES, values), machine


def slopes_of(before: LogSpeeds, after: LogSpeeds, machine: Floats) -> list[float]:
    """What was taken out, by config: y − y' = γ·(x − x̄)."""
    return [
        float(np.polyfit(machine[c].ravel(), (before.values - after.values)[c].ravel(), 1)[0])
        for c in range(len(NAMES))
    ]


def test_one_config_at_a_time_by_the_formulas() -> None:
    speeds, machine = figures([0.5, 0.8, 1.1, 1.4], noise=0.2)
    sxy, sxx, residuals = [], [], []
    centred = []
    for c in range(4):
        x = np.concatenate([machine[c, b] - machine[c, b].mean() for b in range(3)])
        y = np.concatenate([speeds.values[c, b] - speeds.values[c, b].mean() for b in range(3)])
        centred.append((x, y))
        sxy.append(float(x @ y))
        sxx.append(float(x @ x))
    common = sum(sxy) / sum(sxx)
    residuals = [((y - common * x) ** 2).sum() for x, y in centred]
    variance = sum(residuals) / (4 * 3 * 6 - 4 * 3 - 1)
    weights = [one / (one + variance / 0.35**2) for one in sxx]
    expected = [k * own / squares + (1 - k) * common for k, own, squares in zip(weights, sxy, sxx, strict=True)]
    adjusted = adjust_for_machine_speed(speeds, machine)
    assert slopes_of(speeds, adjusted.speeds, machine) == pytest.approx(expected)
    assert 0 < min(weights) < max(weights) < 1
    left = sum(((y - slope * x) ** 2).sum() for slope, (x, y) in zip(expected, centred, strict=True))
    assert adjusted.explained == pytest.approx(1 - left / sum((y**2).sum() for _, y in centred))


def test_what_the_probe_saw_is_gone() -> None:
    speeds, machine = figures([0.5, 0.8, 1.1, 1.4], noise=0.0)
    made = adjust_for_machine_speed(speeds, machine)
    assert made.explained is not None
    assert made.explained > 0.95
    assert made.speeds.values.std(2).max() < 0.2 * speeds.values.std(2).max()


def test_ratios_are_those_at_the_mean_speed() -> None:
    """Each config's figures still go through its value at the mean reading."""
    speeds, machine = figures([1.0, 1.0, 1.0, 1.0], noise=0.0)
    made = adjust_for_machine_speed(speeds, machine)
    np.testing.assert_allclose(made.speeds.values, speeds.values - (machine - machine.mean()), atol=1e-9)


def test_too_few_rounds_stay_as_they_are() -> None:
    speeds, machine = figures([1.0] * 4, noise=0.01)
    few = LogSpeeds(NAMES, speeds.values[:, :, :2])
    made = adjust_for_machine_speed(few, machine[:, :, :2])
    assert made.speeds is few
    assert made.explained is None


def test_a_machine_that_is_always_alike() -> None:
    speeds, _ = figures([1.0] * 4, noise=0.01)
    assert adjust_for_machine_speed(speeds, np.ones(SHAPE)).speeds is speeds


def test_a_missing_reading_drops_no_trial() -> None:
    speeds, machine = figures([1.0] * 4, noise=0.01)
    gaps = machine.copy()
    gaps[1, 1, 2] = gaps[2, 0, :] = np.nan
    assert np.isfinite(adjust_for_machine_speed(speeds, gaps).speeds.values).all()
    assert adjust_for_machine_speed(speeds, np.full(SHAPE, np.nan)).speeds is speeds


def test_a_missing_trial_stays_missing() -> None:
    speeds, machine = figures([1.0] * 4, noise=0.01)
    values = speeds.values.copy()
    values[0, 0, 0] = np.nan
    made = adjust_for_machine_speed(LogSpeeds(NAMES, values), machine).speeds.values
    assert np.isnan(made).sum() == 1


def test_readings_before_and_after() -> None:
    rng = np.random.default_rng(2)
    before, after = (np.exp(rng.normal(-3, 0.1, SHAPE)) for _ in range(2))
    np.testing.assert_allclose(machine_speed(before, after), -np.log(np.sqrt(before * after)))


def test_a_config_that_slows_the_probe_after_it() -> None:
    rng = np.random.default_rng(2)
    before, after = (np.exp(rng.normal(-3, 0.1, SHAPE)) for _ in range(2))
    after[2] *= 1.3
    np.testing.assert_allclose(machine_speed(before, after), -np.log(before))


def test_the_guard_seldom_takes_chance_for_a_config() -> None:
    taken = 0
    for seed in range(400):
        rng = np.random.default_rng(seed)
        drift = rng.normal(0, 0.3, (1, 3, 6))
        before, after = (np.exp(drift + rng.normal(-3, 0.1, SHAPE)) for _ in range(2))
        taken += bool(np.allclose(machine_speed(before, after), -np.log(before)))
    assert taken <= 11  # 1 % of 400, and three standard errors


@pytest.mark.parametrize("shape", [(1, 3, 6), (4, 1, 1)])
def test_one_config_or_one_round_cannot_be_guarded(shape: tuple[int, int, int]) -> None:
    ones = np.ones(shape)
    np.testing.assert_allclose(machine_speed(ones, 2 * ones), -np.log(np.sqrt(2)))
