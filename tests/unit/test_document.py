"""One document, four renderers: the same figures in each, nothing of a name ever becomes markup."""

import io
import re
from html.parser import HTMLParser
from types import ModuleType

import pytest
from rich.console import Console

from bitbench.reports.document import data, html, markdown, terminal
from bitbench.reports.document.model import (
    Bullets,
    CodeBlock,
    Column,
    Details,
    Document,
    Emphasis,
    Heading,
    Mark,
    Name,
    Paragraph,
    Quantity,
    Row,
    Section,
    Strong,
    Table,
    Unit,
)
from bitbench.reports.document.numbers import format_quantity
from bitbench.reports.document.words import (
    build_table,
    format_count,
    format_list,
    list_names,
    make_number_column,
    make_ratio_column,
    make_words_column,
    paragraph,
    say,
)

TABLE = Table(
    (
        Column(say("Config"), is_words=True),
        Column(say("TTFT"), Unit.SECONDS),
        Column(say("vs. baseline"), Unit.RATIO, intervals_from=0),
        Column(say("Value"), shown_from=100),
    ),
    (
        Row(
            (
                say(Name("a|b")),
                Quantity(0.5, Unit.SECONDS, 0.4, 0.6),
                Quantity(1.5, Unit.RATIO, 1.4, 1.6),
                None,
            )
        ),
        Row(
            (say(Name("c")), Quantity(0.002, Unit.SECONDS), None, Quantity(12.5, "tok/s")),
            Mark.BEST,
        ),
    ),
)
DOCUMENT = Document(
    say("A ", Name("study")),
    (
        Paragraph(
            say(
                Strong(say("Use ", Name("c"), ".")),
                " It is ",
                Quantity(1.5, Unit.RATIO, 1.4, 1.6),
                " faster.",
            )
        ),
        Paragraph(say("How to read it: below."), is_small_print=True),
    ),
    (
        Section(
            say("The table"),
            (TABLE, Details("More", (paragraph("folded away"),))),
            in_terminal=True,
        ),
        Section(
            say("Words"),
            (
                Heading(say("Inner")),
                Bullets((say("one"), say(Emphasis(say("two"))))),
                CodeBlock(("$ ls ```",)),
            ),
        ),
    ),
    (("Machine", "two cores"),),
)


@pytest.mark.parametrize(
    ("quantity", "text"),
    [
        (Quantity(193.8, "tok/s", 186.9, 200.7), "194 [187, 201] tok/s"),
        (Quantity(1.4231, Unit.RATIO, 1.391, 1.4509), "1.42× [1.39, 1.45]"),
        (Quantity(1.4231, Unit.RATIO, 1.4201, 1.4261), "1.423× [1.420, 1.426]"),
        (Quantity(0.0123, Unit.SECONDS), "12.30 ms"),
        (Quantity(0.0123, Unit.SECONDS, digits=3), "12.3 ms"),
        (Quantity(0.412, Unit.SECONDS, 0.3, None), "412.0 [300.0, ∞) ms"),
        (Quantity(2**30, Unit.BYTES), "1,024 MiB"),
        (Quantity(0.0213, Unit.SHARE), "2.1 %"),
        (Quantity(0.0213, Unit.SHARE, 0.0201, 0.0225, is_signed=True), "+2.13 [+2.01, +2.25] %"),
        (Quantity(12.3, Unit.SECONDS, 11.9, 12.8, "extremes", digits=3), "12.3 (11.9 – 12.8) s"),
        (Quantity(12, Unit.SECONDS, 12, 12, "extremes", digits=3), "12.0 s"),
        (Quantity(1234567, Unit.COUNT), "1,234,567"),
        (Quantity(None, Unit.SECONDS, note="no result"), "– no result"),
        (Quantity(0.0, "tok/s"), "0.000 tok/s"),
        (Quantity(3e-12, "nats", -1e-12, 7e-12), "0 [0, 0] nats"),
        (Quantity(4153.26, "tok/s", 3000.0, 5306.5), "4,153 [3,000, 5,306] tok/s"),
        (Quantity(12.0, Unit.SECONDS, 12.0, 12.0), "12.00 [12.00, 12.00] s"),
        (Quantity(1.0012, Unit.RATIO, 0.9991, 1.0034), "1.001× [0.999, 1.003]"),
        (Quantity(2.0, Unit.RATIO), "2.00×"),
        (Quantity(2e-5, Unit.SECONDS), "20.00 µs"),
        (Quantity(20 * 2**30, Unit.BYTES), "20.00 GiB"),
        (Quantity(5.0, Unit.SECONDS, note="✓"), "5.000 s ✓"),
    ],
)
def test_numbers_become_text_in_one_place(quantity: Quantity, text: str) -> None:
    assert format_quantity(quantity) == text


def test_a_column_has_one_unit_and_a_cell_of_another_names_its_own() -> None:
    text = markdown.render_markdown_table(TABLE)
    assert "TTFT (ms)" in text
    assert "500 [400, 600]" in text
    assert "2.000" in text
    assert "12.50 tok/s" in text
    assert text.count("–") == 2


def test_markdown_is_escaped() -> None:
    text = markdown.render_markdown(DOCUMENT)
    assert "**Use `c`.** It is 1.50× [1.40, 1.60] faster." in text
    assert "a\\|b" in text
    assert "````text\n$ ls ```\n````" in text
    assert "### Inner" in text


class Cells(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.sorts: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "td":
            self.sorts.append(dict(attrs).get("data-sort"))


def test_a_page_sorts_by_numbers() -> None:
    text = html.render_html(DOCUMENT, "0")
    assert Cells(text).sorts == [None, "0.5", "1.5", "", None, "0.002", "", "12.5"]
    assert '<span class="interval">[1.40, 1.60]</span>' in text
    assert '<tr class="best">' in text
    assert "<details><summary>More</summary>" in text


def test_a_terminal_shows_less_where_it_is_narrow_and_the_answer_last() -> None:
    def on(width: int) -> str:
        console = Console(file=io.StringIO(), width=width, color_system=None)
        terminal.render_in_terminal(DOCUMENT, console)
        return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    narrow, wide = on(60), on(140)
    assert "Value" not in narrow
    assert "1.50× [1.40, 1.60]" in narrow
    assert "[400, 600]" not in narrow
    assert "[400, 600]" in wide
    assert narrow.rstrip().endswith("faster.")
    assert "folded away" not in wide
    assert "Inner" not in wide


@pytest.mark.parametrize(
    "name", ["<script>alert(1)</script>", "`| x |`", "\x1b[31mred\x1b]52;c;aGk=\x07", "\u202egnp"]
)
def test_a_name_stays_a_name(name: str) -> None:
    hostile = Document(
        say(Name(name)), (paragraph(name, Name(name)),), (Section(say(name), (Details(name, ()),)),)
    )
    page = html.render_html(hostile, "0")
    assert "<script>alert" not in page
    console = Console(file=io.StringIO(), width=80, color_system=None)
    terminal.render_whole_in_terminal(hostile, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    for text in (page, markdown.render_markdown(hostile), printed):
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", text.replace("\n", ""))


@pytest.mark.parametrize("renderer", [data, html, markdown, terminal])
def test_no_renderer_reads_text_back(renderer: ModuleType) -> None:
    assert "re" not in vars(renderer)


def test_sentences() -> None:
    assert format_list(list_names(["a", "b", "c"])) == (
        Name("a"),
        ", ",
        Name("b"),
        " and ",
        Name("c"),
    )
    assert format_count(1, "cell") == "1 cell"
    assert format_count(2, "cell") == "2 cells"
    assert Section(say("What failed, and why"), ()).anchor == "what-failed-and-why"
    assert Column(say("x")).is_words is False


def test_a_table_is_a_list_of_columns_and_drops_those_that_nobody_knows() -> None:
    items = [("a", 0.5, None), ("b", 0.25, None)]
    made = build_table(
        items,
        make_words_column("Name", lambda item: Name(item[0])),
        make_number_column("Time", Unit.SECONDS, lambda item: item[1]),
        make_ratio_column("Ratio", lambda item: item[2]),
        mark=lambda item: Mark.BEST if item[0] == "b" else None,
        drop_empty=True,
    )
    assert [column.title for column in made.columns] == [("Name",), ("Time",)]
    assert made.rows[1] == Row(((Name("b"),), Quantity(0.25, Unit.SECONDS, digits=3)), Mark.BEST)


def test_what_is_not_known_is_said_so_in_a_sentence() -> None:
    assert say("It takes ", None, ".") == ("It takes ", "–", ".")
    assert (
        markdown.render_markdown_phrase(format_list(["a", "b", "c", "d"], most=2))
        == "a, b and 2 more"
    )
