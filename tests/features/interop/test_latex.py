"""Tables for a paper: escaped whatever a name holds, with intervals, units and notes, in an order that LaTeX takes."""

import re

import pytest

from bitbench.features.interop.latex import escape_latex, latex_tables
from bitbench.reports.document import model as doc
from bitbench.reports.study import study_document
from tests.unit.hostile import HOSTILE, hostile_study

COMMANDS = re.compile(r"\\(?:[a-zA-Z]+|.)")
OURS = {
    r"\begin", r"\end", r"\centering", r"\caption", r"\label", r"\toprule", r"\midrule", r"\bottomrule", r"\par",
    r"\smallskip", r"\footnotesize", r"\texttt", r"\textbf", r"\emph", r"\\", r"\textbackslash", r"\{", r"\}", r"\$",
    r"\&", r"\#", r"\_", r"\%", r"\textasciitilde", r"\textasciicircum", r"\textless", r"\textgreater", r"\textbar",
    r"\char", r"\textasciigrave", r"\times", r"\pm", r"\infty", r"\geq", r"\leq", r"\approx", r"\rightarrow", r"\mu",
    r"\cdot", r"\dots", r"\bullet", r"\S", r"\star", r"\surd", r"\otimes",
}  # fmt: skip


def table(*rows: doc.Row) -> doc.Document:
    columns = (doc.Column(("config",), is_words=True), doc.Column(("TTFT",), doc.Unit.SECONDS))
    blocks = (
        doc.Table(columns, rows),
        doc.Paragraph(("Means of 3 starts; 5 % of all.",), is_small_print=True),
        doc.Paragraph(("Not a note.",)),
    )
    return doc.Document(("x",), (), (doc.Section(("How quick & when",), blocks),))


def test_a_table_has_its_interval_its_unit_and_its_notes() -> None:
    quick = doc.Quantity(0.0123, doc.Unit.SECONDS, 0.0119, 0.0128)
    made = latex_tables(table(doc.Row(((doc.Name("w8a8_x"),), quick)), doc.Row((("[b]",), None))))
    assert made.partition("\n\n")[2] == "\n".join(
        [
            r"\begin{table}[htbp]",
            r"  \centering",
            r"  \caption{How quick \& when}",
            r"  \label{tab:how-quick-when}",
            r"  \begin{tabular}{lr}",
            r"    \toprule",
            r"    config & TTFT (ms) \\",
            r"    \midrule",
            r"    \texttt{w8a8\_x} & 12.3 [11.9, 12.8] \\",
            r"    {}[b] & -- \\",
            r"    \bottomrule",
            r"  \end{tabular}",
            r"  \par\smallskip",
            r"  {\footnotesize Means of 3 starts; 5 \% of all.\par}",
            r"\end{table}",
            "",
        ]
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("50 % of $x_1 & #2", r"50 \% of \$x\_1 \& \#2"),
        (r"\input{/etc/passwd}", r"\textbackslash{}input\{/etc/passwd\}"),
        ("a^b~c", r"a\textasciicircum{}b\textasciitilde{}c"),
        ("--flag", "{-}{-}flag"),
        ("``quoted\" 'x'", r"\textasciigrave{}\textasciigrave{}quoted\char34{} {'}x{'}"),
        ("<1 | 2>", r"\textless{}1 \textbar{} 2\textgreater{}"),
        ("1.3× ± 2 µs – ∞", r"1.3$\times$ $\pm$ 2 $\mu$s -- $\infty$"),
        ("two\nlines\x1b[31m", "two lines"),
    ],
)
def test_what_means_something_to_latex_is_written_as_it_is(text: str, expected: str) -> None:
    assert escape_latex(text) == expected


@pytest.mark.parametrize("name", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_study_brings_in_no_command_and_no_loose_brace(name: str) -> None:
    summary, _, instances, lock = hostile_study(name)
    made = latex_tables(study_document(summary, lock, instances=instances))
    body = made.partition("\n\n")[2]
    assert set(COMMANDS.findall(body)) <= OURS
    bare = COMMANDS.sub("", body)
    assert bare.count("{") == bare.count("}")
    assert not set(bare) & set('#%~<>|`"\x1b\x00\u202e')
    assert all(line.count("$") % 2 == 0 for line in bare.splitlines())
    assert body.count(r"\begin{tabular}") == body.count(r"\end{tabular}") == body.count(r"\bottomrule") > 0
    for tabular in re.findall(r"\\begin{tabular}{([lr]+)}(.*?)\\end{tabular}", body, re.DOTALL):
        rows = [line for line in tabular[1].splitlines() if line.endswith(r"\\")]
        assert {len(re.findall(r"(?<!\\)&", row)) + 1 for row in rows} == {len(tabular[0])}
