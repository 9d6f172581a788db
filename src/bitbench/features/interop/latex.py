"""The tables of a document as LaTeX, for a paper: booktabs, one float per table, its notes below it.

Nothing but the package booktabs is needed. Letters outside Latin alphabets need XeLaTeX or LuaLaTeX.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from bitbench.reports.document import model as doc
from bitbench.reports.document.numbers import cells_with_units, shown
from bitbench.reports.document.words import MAX_NAME, inline_words, plain_words
from bitbench.reports.write import StudyReport

HEAD = "% Tables of a bitbench report. They need \\usepackage{booktabs}; \\input this file, or copy a table out of it."
_WRITTEN = str.maketrans(
    {
        "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "_": r"\_", "%": r"\%",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": r"\textless{}", ">": r"\textgreater{}",
        "|": r"\textbar{}", '"': r"\char34{}", "`": r"\textasciigrave{}", "'": r"{'}", "-": "{-}",
        "–": "--", "—": "---", "−": "$-$", "×": r"$\times$", "±": r"$\pm$", "∞": r"$\infty$", "≥": r"$\geq$",
        "≤": r"$\leq$", "≈": r"$\approx$", "→": r"$\rightarrow$", "µ": r"$\mu$", "μ": r"$\mu$", "²": "$^2$",
        "★": r"$\star$", "✓": r"$\surd$", "✗": r"$\otimes$", "·": r"$\cdot$", "…": r"\dots{}", "•": r"$\bullet$",
        "§": r"\S{}",
    }
)  # fmt: skip
_READ_AS_OPTION = ("[", "*")  # behind a rule or the end of a row


def latex(of: StudyReport) -> str:
    return latex_tables(of.document)


def latex_tables(document: doc.Document) -> str:
    """Every table, under the title of its section; a section without one is left out."""
    parts = [HEAD]
    for section in document.sections:
        floats = list(_floats(section))
        parts += [_float_text(table, section.anchor, number) for number, table in enumerate(floats, start=1)]
    return "\n\n".join(parts) + "\n"


@dataclass
class _Float:
    caption: doc.Phrase
    table: doc.Table
    notes: list[doc.Phrase] = field(default_factory=list)


def _floats(section: doc.Section) -> Iterator[_Float]:
    """A heading inside the section belongs to the tables after it, small print to the table before it."""
    caption, current = section.title, None
    for block in _flat(section.blocks):
        match block:
            case doc.Heading(phrase):
                caption = (*section.title, ": ", *phrase)
            case doc.Table():
                if current is not None:
                    yield current
                current = _Float(caption, block)
            case doc.Paragraph(phrase, True) if current is not None:
                current.notes.append(phrase)
    if current is not None:
        yield current


def _flat(blocks: Sequence[doc.Block]) -> Iterator[doc.Block]:
    for block in blocks:
        if isinstance(block, doc.Details):
            yield doc.Heading((block.title,))
            yield from _flat(block.blocks)
        else:
            yield block


def _float_text(float_: _Float, anchor: str, number: int) -> str:
    titles, rows = cells_with_units(float_.table, _phrase_text, escape_latex)
    alignment = "".join("l" if column.is_words else "r" for column in float_.table.columns)
    notes = [r"  \par\smallskip", *(rf"  {{\footnotesize {_phrase_text(note)}\par}}" for note in float_.notes)]
    return "\n".join(
        [
            r"\begin{table}[htbp]",
            r"  \centering",
            rf"  \caption{{{_phrase_text(float_.caption)}}}",
            rf"  \label{{tab:{anchor}{f'-{number}' if number > 1 else ''}}}",
            rf"  \begin{{tabular}}{{{alignment}}}",
            r"    \toprule",
            _row(titles),
            r"    \midrule",
            *(_row(row) for row in rows),
            r"    \bottomrule",
            r"  \end{tabular}",
            *(notes if float_.notes else ()),
            r"\end{table}",
        ]
    )


def _row(cells: Sequence[str]) -> str:
    first = f"{{}}{cells[0]}" if cells[0].startswith(_READ_AS_OPTION) else cells[0]
    return f"    {' & '.join([first, *cells[1:]])} \\\\"


def escape_latex(text: str) -> str:
    """As it is, to a reader of the typeset page: no command, no ligature."""
    return inline_words(text).translate(_WRITTEN)


def _phrase_text(phrase: doc.Phrase) -> str:
    return "".join(_part(part) for part in phrase)


def _part(part: doc.Part) -> str:
    match part:
        case str():
            return escape_latex(part)
        case doc.Name(text):
            return rf"\texttt{{{plain_words(text, MAX_NAME).translate(_WRITTEN)}}}"
        case doc.Strong(inner):
            return rf"\textbf{{{_phrase_text(inner)}}}"
        case doc.Emphasis(inner):
            return rf"\emph{{{_phrase_text(inner)}}}"
        case doc.Link(text, _):
            return escape_latex(text)
        case doc.Quantity():
            return escape_latex(shown(part))
