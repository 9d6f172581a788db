"""What a terminal would obey or hide is spelled out; everything else stays as it is."""

import io
import sys

import pytest
from rich.text import Text

from bitbench.cli import visible_streams
from bitbench.cli.terminal import Terminal
from bitbench.util.text import escape_hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]52;c;aGk=\x07", r"\x1b]52;c;aGk=\x07"),
        ("a\rb\bc\x7f", r"a\x0db\x08c\x7f"),
        ("\x9b31m\x85", r"\x9b31m\x85"),
        ("right\u202eto left\u2066\u200f", r"right\u202eto left\u2066\u200f"),
        ("zero\u200bwidth\ufeff\u3164", r"zero\u200bwidth\ufeff\u3164"),
        ("\U000e0041\U000e0101\ue000", r"\U000e0041\U000e0101\ue000"),
        ("\ud800\udcff", r"\ud800\udcff"),
        ("line\u2028and\u2029paragraph", r"line\u2028and\u2029paragraph"),
    ],
)
def test_hidden_characters_are_spelled_out(text: str, shown: str) -> None:
    assert escape_hidden(text) == shown
    assert escape_hidden(shown) == shown


@pytest.mark.parametrize(
    "text", ["two\nlines\tand a tab", "1 ± 2 µs – 3 × 4", "漢字 ñ 👍 नि", "thin\u202fspace\u00a0"]
)
def test_what_people_write_stays(text: str) -> None:
    assert escape_hidden(text) == text


def test_a_terminal_draws_our_styles_and_takes_no_word_for_markup(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    Terminal().print("[red]x[/] :smile:", Text.assemble(("ours", "bold"), "\x1b[31mtheirs"))
    assert isinstance(sys.stdout, io.StringIO)
    assert sys.stdout.getvalue() == "[red]x[/] :smile: \x1b[1mours\x1b[0m\\x1b[31mtheirs\n"


def test_data_that_is_not_for_a_terminal_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    with visible_streams():
        print("\x1b[31mdata")
        print("\x1b[31merror", file=sys.stderr)
    written = capsys.readouterr()
    assert written.out == "\x1b[31mdata\n"
    assert written.err == "\\x1b[31merror\n"
