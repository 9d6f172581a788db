import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitbench.core.cell import Contender
from bitbench.core.found.summary import Ranking
from bitbench.statistics.intervals import Resampler, sample
from bitbench.statistics.holm import holm, rank


def ranking(speeds: dict[str, list[float]], *, higher_is_better: bool = True, baseline: str | None = None) -> Ranking:
    """One instance for each value, of three equal trials."""
    return rank(
        "w",
        "output_throughput",
        {
            Contender(variant="none", engine=name): sample(
                [[mean] * 3 for mean in means], Resampler(np.random.default_rng(1))
            )
            for name, means in speeds.items()
        },
        higher_is_better=higher_is_better,
        baseline=Contender(variant="none", engine=baseline) if baseline else None,
        confidence=0.95,
    )


def ranks(of: Ranking) -> dict[str, tuple[int, int]]:
    return {entry.contender.name: (entry.rank_low, entry.rank_high) for entry in of.entries}


SPEEDS = {
    "slow": [50.0, 50.1, 49.9],
    "one": [99.0, 101.0, 100.0],
    "fast": [150.0, 150.2, 149.8],
    "other": [100.5, 99.5, 100.2],
}


def test_a_tie_between_a_winner_and_a_loser() -> None:
    made = ranking(SPEEDS)
    assert ranks(made) == {"fast": (1, 1), "one": (2, 3), "other": (2, 3), "slow": (4, 4)}
    assert {entry.contender.name: [one.name for one in entry.tied_with] for entry in made.entries} == {
        "fast": [],
        "one": ["other"],
        "other": ["one"],
        "slow": [],
    }
    assert made.entries[0].contender.name == "fast"


def test_less_is_better_turns_it_around() -> None:
    assert ranks(ranking(SPEEDS, higher_is_better=False)) == {
        "slow": (1, 1),
        "one": (2, 3),
        "other": (2, 3),
        "fast": (4, 4),
    }


def test_ratio_to_the_baseline() -> None:
    made = {entry.contender.name: entry.ratio_to_baseline for entry in ranking(SPEEDS, baseline="slow").entries}
    assert made["slow"] is None
    assert made["fast"] is not None
    assert made["fast"].value == pytest.approx(3.0)
    assert made["fast"].interval is not None
    assert 2.9 < made["fast"].interval.low < 3.0 < made["fast"].interval.high < 3.1


def test_a_baseline_without_a_result_gives_no_ratio() -> None:
    made = ranking(SPEEDS, baseline="gone")
    assert made.baseline is None
    assert all(entry.ratio_to_baseline is None for entry in made.entries)


def test_one_trial_ties_with_everyone() -> None:
    made = rank(
        "w",
        "m",
        {
            Contender(variant="none", engine=name): sample(groups, Resampler(np.random.default_rng(1)))
            for name, groups in {"one": [[10.0]], "sure": [[99.0, 100.0, 101.0]] * 3}.items()
        },
        higher_is_better=True,
        baseline=None,
        confidence=0.95,
    )
    assert ranks(made) == {"sure": (1, 2), "one": (1, 2)}


def test_nobody_and_one() -> None:
    assert ranking({}).entries == ()
    assert ranks(ranking({"alone": [1.0, 2.0]})) == {"alone": (1, 1)}


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_only_raises_and_keeps_the_order(p_values: list[float]) -> None:
    adjusted = holm(p_values)
    assert all(p <= new <= 1 for p, new in zip(p_values, adjusted, strict=True))
    in_order = [adjusted[place] for place in sorted(range(len(p_values)), key=p_values.__getitem__)]
    assert in_order == sorted(in_order)
