from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bitbench.util.units import (
    LONGEST_WAIT_S,
    format_exact_seconds,
    parse_bytes,
    parse_fraction,
    parse_seconds,
    show_about,
    show_bytes,
    show_duration,
    show_percent,
    show_seconds,
    show_significant,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("250ms", 0.25), ("30s", 30), ("10m", 600), ("1.5 h", 5400), (2, 2), ("0", 0), ("20µs", 2e-5)],
)
def test_seconds(text: object, seconds: float) -> None:
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "count"), [("4GiB", 2**32), ("500 MB", 500_000_000), (1024, 1024), ("1.5kib", 1536)]
)
def test_bytes(text: object, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.005, "5ms"), (600.0, "600s"), (0.0125, "12.5ms"), (0.0, "0.0s"), (1 / 3, f"{1 / 3!r}s")],
)
def test_seconds_are_written_as_they_are_read(seconds: float, text: str) -> None:
    assert format_exact_seconds(seconds) == text
    assert parse_seconds(text) == seconds


@given(st.floats(min_value=1e-9, max_value=LONGEST_WAIT_S))
def test_any_time_can_be_written(seconds: float) -> None:
    assert parse_seconds(format_exact_seconds(seconds)) == seconds


@pytest.mark.parametrize("parse", [parse_seconds, parse_bytes])
def test_a_text_without_a_unit_shows_how_it_can_be_written(
    parse: Callable[[object], float],
) -> None:
    with pytest.raises(ValueError, match=r"^200 needs a unit; write 200\w+, 200\w+ or 200\w+$"):
        parse("200")
    assert parse(200) == 200
    assert parse("0") == 0


def test_fractions() -> None:
    with pytest.raises(ValueError, match="3 needs a percent sign; write 3% or 300%"):
        parse_fraction("3")
    assert parse_fraction("2%") == pytest.approx(0.02)
    assert parse_fraction(0.02) == pytest.approx(0.02)


@pytest.mark.parametrize("wrong", ["soon", "-1s", True, None, [], "1 parsec", ""])
def test_what_is_no_quantity_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="expected a duration such as"):
        parse_seconds(wrong)


def test_the_unknown_prints_as_a_dash_and_never_as_zero() -> None:
    assert {
        show_seconds(None),
        show_bytes(None),
        show_percent(None),
        show_significant(None),
        show_duration(None),
    } == {"–"}


def test_shown_quantities() -> None:
    assert show_seconds(0.0123) == "12.3 ms"
    assert show_seconds(1.239) == "1.24 s"
    assert show_duration(125) == "2 min 05 s"
    assert show_duration(7500) == "2 h 05 min"


def test_an_estimate_is_shown_no_finer_than_it_is() -> None:
    assert show_about(45.2) == "45 s"
    assert show_about(747, 1046) == "12 to 17 min"
    assert show_about(50, 190) == "50 s to 3 min"
    assert show_about(3600 * 5.31) == "5.3 h"
    assert show_about(3600 * 7265) == "303 days"
    assert show_bytes(269_000_000) == "257 MiB"
    assert show_percent(0.034, signed=True) == "+3.4 %"
    assert show_significant(4153.2) == "4,153"
    assert show_significant(0.00123456) == "0.00123"


@given(st.floats(min_value=1e-6, max_value=LONGEST_WAIT_S))
def test_significant_digits_keep_the_value(value: float) -> None:
    assert float(show_significant(value, 4).replace(",", "")) == pytest.approx(value, rel=1e-3)
