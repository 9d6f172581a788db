import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bitbench.analysis.claims import (
    Claims,
    End,
    Look,
    end_by_claims,
    list_interim_analyses,
    list_undecided_configs,
    make_undecided_claims,
    update_claims,
)
from bitbench.analysis.pairs import LogSpeeds, PairedRatio, PairTable, collect_pair_tables
from bitbench.analysis.results.summary import AgainstBaseline
from bitbench.study.plan import Config

BASE, ONE, TWO, THREE = (
    Config(variant="none", engine=name) for name in ("base", "one", "two", "three")
)
EVERYONE = (BASE, ONE, TWO, THREE)


def pair(first: Config, second: Config, log_mean: float, p_value: float) -> PairedRatio:
    """With the standard error that gives this p-value."""
    error = abs(log_mean) / stats.t.isf(p_value / 2, 10)
    return PairedRatio(
        first=first,
        second=second,
        log_mean=log_mean,
        standard_error=error,
        degrees_of_freedom=10,
        blocks=3,
    )


def wide(first: Config, second: Config) -> PairedRatio:
    return pair(first, second, 0.01, 0.9)


def table(*known: PairedRatio) -> PairTable:
    named = {frozenset((one.first, one.second)) for one in known}
    rest = [wide(*two) for two in combinations(EVERYONE, 2) if frozenset(two) not in named]
    return PairTable(EVERYONE, (*known, *rest))


def test_holm_against_the_baseline() -> None:
    """0.01 · 3, then 0.02 · 2, then 0.04 · 1, each below 0.05; the sign says which way."""
    made = table(
        pair(ONE, BASE, 0.3, 0.01), pair(BASE, TWO, 0.3, 0.02), pair(THREE, BASE, 0.3, 0.04)
    )
    assert update_claims(made, BASE, 0.05).against_baseline == {
        ONE: AgainstBaseline.FASTER,
        TWO: AgainstBaseline.SLOWER,
        THREE: AgainstBaseline.FASTER,
    }
    assert set(update_claims(made, BASE, 0.029).against_baseline.values()) == {
        AgainstBaseline.UNDECIDED
    }


def test_possible_bests_at_a_one_sided_level() -> None:
    """Three others: out at a two-sided p below 2 · 0.05 / 3."""
    just = table(pair(ONE, TWO, 0.3, 0.033), pair(BASE, THREE, 0.3, 0.034))
    assert update_claims(just, BASE, 0.05).possible_bests == {BASE, ONE, THREE}


def test_the_only_possible_best_is_faster_than_each_other() -> None:
    """Out of the best at a two-sided p below 2 · 0.05 / 3, while all six pairs at once ask for 0.05 / 6."""
    made = update_claims(
        table(*(pair(ONE, other, 0.3, 0.03) for other in (BASE, TWO, THREE))), BASE, 0.05
    )
    assert made.possible_bests == {ONE}
    assert made.told_apart == frozenset()
    assert made.ordered == {(ONE, BASE), (ONE, TWO), (ONE, THREE)}
    several = update_claims(table(pair(ONE, TWO, 0.3, 0.03)), BASE, 0.05)
    assert several.ordered == several.told_apart


def test_a_pair_that_cannot_be_compared_counts_as_asked() -> None:
    only = PairTable(EVERYONE, (pair(ONE, BASE, 0.3, 0.02),))
    assert update_claims(only, BASE, 0.05).against_baseline[ONE] is AgainstBaseline.UNDECIDED
    assert update_claims(only, BASE, 0.0601).against_baseline[ONE] is AgainstBaseline.FASTER


def test_without_a_baseline_there_is_no_such_claim() -> None:
    gone = Config(variant="none", engine="gone")
    for missing in (None, gone):
        made = update_claims(table(pair(ONE, TWO, 0.3, 1e-9)), missing, 0.05)
        assert made.against_baseline == {}
        assert TWO not in made.possible_bests


def test_equal_within_a_margin() -> None:
    """An interval at 1 − 0.05/3 that ends inside ±10 %; Bonferroni for the others."""
    half = stats.t.isf(0.05 / 3 / 2, 10)
    inside, outside = ((math.log(1.1) - 0.02) / half * factor for factor in (0.999, 1.001))
    made = PairTable(
        EVERYONE,
        (
            PairedRatio(
                first=ONE,
                second=BASE,
                log_mean=0.02,
                standard_error=inside,
                degrees_of_freedom=10,
                blocks=3,
            ),
            PairedRatio(
                first=TWO,
                second=BASE,
                log_mean=0.02,
                standard_error=outside,
                degrees_of_freedom=10,
                blocks=3,
            ),
            pair(THREE, BASE, 0.3, 0.0166),
        ),
    )
    assert update_claims(made, BASE, 0.05, equal_within=0.1).against_baseline == {
        ONE: AgainstBaseline.EQUAL,
        TWO: AgainstBaseline.UNDECIDED,
        THREE: AgainstBaseline.FASTER,
    }
    assert update_claims(made, BASE, 0.05).against_baseline[ONE] is AgainstBaseline.UNDECIDED


def test_a_claim_stays() -> None:
    first = update_claims(table(pair(ONE, BASE, 0.3, 1e-6), pair(ONE, TWO, 0.3, 1e-6)), BASE, 0.01)
    later = update_claims(
        table(pair(BASE, ONE, 0.3, 1e-6), pair(TWO, ONE, 0.3, 1e-6)), BASE, 0.04, earlier=first
    )
    assert later.against_baseline[ONE] is AgainstBaseline.FASTER
    assert (ONE, TWO) in later.told_apart
    assert (TWO, ONE) not in later.told_apart
    assert TWO not in later.possible_bests
    assert not any((slower, faster) in later.ordered for faster, slower in later.ordered)


def test_there_always_is_a_best() -> None:
    two = PairTable((BASE, ONE), (pair(ONE, BASE, 0.3, 1e-6),))
    turned = PairTable((BASE, ONE), (pair(BASE, ONE, 0.3, 1e-6),))
    first = update_claims(two, BASE, 0.01)
    assert first.possible_bests == {ONE}
    assert update_claims(turned, BASE, 0.04, earlier=first).possible_bests == {ONE}


@given(st.integers(0, 10_000), st.integers(2, 4), st.floats(0.001, 0.2))
def test_more_error_allowed_never_claims_less(seed: int, count: int, alpha: float) -> None:
    speeds = LogSpeeds(
        EVERYONE[:count],
        np.random.default_rng(seed).normal(0, 0.1, (count, 3, 2))
        + np.arange(count)[:, None, None] * 0.2,
    )
    made = collect_pair_tables({"w": speeds})["w"]
    strict, loose = (update_claims(made, BASE, level) for level in (alpha / 2, alpha))
    assert strict.told_apart <= loose.told_apart
    assert strict.possible_bests >= loose.possible_bests
    assert loose.possible_bests


def claims(
    said: dict[Config, AgainstBaseline], bests: set[Config], *equal: frozenset[Config]
) -> Claims:
    rest = dict.fromkeys((ONE, TWO, THREE), AgainstBaseline.SLOWER)
    return Claims(EVERYONE, rest | said, frozenset(bests), frozenset(), frozenset(equal))


def test_which_configs_continue() -> None:
    undecided = AgainstBaseline.UNDECIDED
    assert list_undecided_configs(make_undecided_claims(EVERYONE, BASE), BASE) == EVERYONE
    assert list_undecided_configs(claims({TWO: undecided}, {ONE}), BASE) == (BASE, TWO)
    assert list_undecided_configs(claims({}, {ONE, THREE}), BASE) == (ONE, THREE)
    assert list_undecided_configs(claims({}, {BASE, ONE}), BASE) == (BASE, ONE)
    assert list_undecided_configs(claims({}, {ONE}), BASE) == ()


def test_equal_bests_have_nothing_left_to_settle() -> None:
    equal = frozenset((ONE, TWO))
    assert list_undecided_configs(claims({}, {ONE, TWO}, equal), BASE) == ()
    assert list_undecided_configs(claims({}, {ONE, TWO, THREE}, equal), BASE) == (ONE, TWO, THREE)


def test_looks_spend_by_the_time() -> None:
    """Ten minutes, blocks of two and a half: after the fourth no other one fits."""
    made = list_interim_analyses([150, 300, 450, 600], 600, 0.05)
    assert [look.blocks for look in made] == [3, 4]
    assert [look.alpha for look in made] == pytest.approx([0.05 * 0.75**3, 0.05 * (1 - 0.75**3)])
    assert [look.is_last for look in made] == [False, True]


def test_two_blocks_claim_nothing_whatever_they_show() -> None:
    sure = replace(pair(ONE, BASE, 0.3, 1e-9), blocks=2)
    made = update_claims(table(sure), BASE, 0.05)
    assert set(made.against_baseline.values()) == {AgainstBaseline.UNDECIDED}
    assert made.possible_bests == frozenset(EVERYONE)
    assert made.ordered == frozenset()
    assert (
        update_claims(table(replace(sure, blocks=3)), BASE, 0.05).against_baseline[ONE]
        is AgainstBaseline.FASTER
    )


def test_there_is_no_look_before_the_blocks_that_are_run_in_any_case() -> None:
    """Else the last one could come before the last block."""
    made = list_interim_analyses([150, 300, 450, 600], 500, 0.05, fewest_blocks=4)
    assert made == [Look(blocks=4, alpha=0.05, is_last=True)]


def test_the_last_look_takes_what_is_left() -> None:
    made = list_interim_analyses([200, 400], 500, 0.05)
    assert made == [Look(blocks=2, alpha=0.05, is_last=True)]
    assert list_interim_analyses([200], 500, 0.05) == []


def test_the_look_after_the_most_blocks_is_the_last_whatever_the_budget_has_left() -> None:
    made = list_interim_analyses([10, 20, 30, 40], 600, 0.05, most_blocks=4)
    assert [look.is_last for look in made] == [False, True]
    assert sum(look.alpha for look in made) == pytest.approx(0.05)


@given(st.lists(st.floats(1, 1000), max_size=12), st.floats(1, 5000), st.floats(0.001, 0.2))
def test_looks_never_spend_more_than_is_allowed(
    blocks: list[float], budget_s: float, alpha: float
) -> None:
    made = list_interim_analyses(np.cumsum(blocks).tolist(), budget_s, alpha)
    assert all(look.alpha >= 0 for look in made)
    assert sum(look.alpha for look in made) <= alpha * (1 + 1e-9)
    assert [look.is_last for look in made[:-1]] == [False] * len(made[:-1])
    if made and made[-1].is_last:
        assert sum(look.alpha for look in made) == pytest.approx(alpha)


def test_when_a_study_ends() -> None:
    usual, last = (Look(blocks=2, alpha=0.01, is_last=is_last) for is_last in (False, True))
    still_open, done = make_undecided_claims(EVERYONE, BASE), claims({}, {ONE})
    assert end_by_claims({"w": done, "v": still_open}, BASE, usual) is None
    assert end_by_claims({"w": done, "v": still_open}, BASE, last) is End.BUDGET
    assert end_by_claims({"w": done}, BASE, usual) is End.DECIDED
