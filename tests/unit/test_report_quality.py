"""Quality in the report: beside speed and memory, flags first, answers side by side, whatever a model wrote."""

from io import StringIO

import pyarrow as pa
from rich.console import Console

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.quality import Answer, QualityRecord, TaskFailure, TaskResult
from bitbench.records.trial import Outcome
from bitbench.reports.document.markdown import render_markdown_phrase, render_markdown_section
from bitbench.reports.document.model import Document, Mark, Quantity, Table, Unit
from bitbench.reports.document.terminal import render_in_terminal
from bitbench.reports.document.words import bullets, say
from bitbench.reports.sections.quality import build_quality_section, iter_quality_sentences
from bitbench.study.plan import Plan, QualityRefusal
from bitbench.study.variant import ModelFacts
from tests.support.synthetic import summarize
from tests.unit.test_statistics_quality import config, logits, noisy, plan, record, rows


def quality_study() -> tuple[Plan, list[tuple[QualityRecord, pa.Table | None]]]:
    """A baseline, a variant as good, one that is flagged, one without a result and one that cannot be asked."""
    refusal = QualityRefusal(config=config("gguf"), reason="It reads no GGUF files.")
    asked: Plan = plan("bf16", "w8", "w4", "w2").model_copy(update={"quality_refusals": (refusal,)})
    tables = [rows(logits(1)), rows(noisy(0.1)), rows(noisy(1.5)), None]
    same = Answer(prompt="Why?", text="Because.", tokens=(1, 2, 3))
    other = Answer(prompt="Why?", text="<b>no|no</b>", tokens=(1, *[9] * 20))
    task = TaskResult(
        task="capitals", metric="acc,none", value=0.75, standard_error=0.09, samples=24
    )
    records = [
        record("bf16").model_copy(update={"answers": (same,), "tasks": (task,)}),
        record("w8").model_copy(
            update={
                "answers": (same,),
                "tasks": (task.model_copy(update={"value": 0.5}),),
                "task_failures": (TaskFailure(task="mmlu", cause="no data"),),
            }
        ),
        record("w4").model_copy(update={"answers": (other,)}),
        record("w2", Outcome.OOM).model_copy(update={"cause": "Too large."}),
    ]
    return asked, list(zip(records, tables, strict=True))


def summary(rounded_before: str | None = None) -> StudySummary:
    asked, measured = quality_study()
    facts = ModelFacts(rounded_before=rounded_before)
    variants = tuple(variant.model_copy(update={"facts": facts}) for variant in asked.variants)
    asked = asked.model_copy(update={"variants": variants})
    tables = {record.id: table for record, table in measured}
    records = [record for record, _ in measured]
    return summarize(asked, [], [], quality=records, scores_of=lambda record: tables[record.id])


def section_text() -> str:
    section = build_quality_section(summary())
    assert section is not None
    return "\n\n".join(render_markdown_section(section))


def test_that_weights_were_rounded_before_is_said_before_any_figure() -> None:
    found = summary("4 bits (Q4_1)")
    sentence = (
        "The linear layers of `m` had been rounded to 4 bits (Q4_1) before they were written as bf16: its figures of "
        "quality show what a variant loses against those rounded weights, not against the original model."
    )
    assert render_markdown_phrase(next(iter_quality_sentences(found))) == sentence


def test_nothing_is_said_of_rounded_weights_where_no_quality_was_measured() -> None:
    found = summary("4 bits (Q4_1)").model_copy(update={"quality": ()})
    assert not list(iter_quality_sentences(found))


def test_the_answer_says_what_lost_too_much() -> None:
    said = [render_markdown_phrase(sentence) for sentence in iter_quality_sentences(summary())]
    assert said[0].startswith("Quality: `w4` is flagged: its mean KL divergence is at least")
    assert said[1] == "Quality: `w2` has no result (oom): Too large."
    assert said[2].startswith("Quality: `w8` is within the limits (mean KL divergence")


def test_without_the_unquantized_model_no_variant_is_said_to_keep_its_quality() -> None:
    asked, measured = quality_study()
    tables = {record.id: table for record, table in measured}
    records = [record for record, _ in measured if record.config.variant != "m/bf16"]
    alone = summarize(asked, [], [], quality=records, scores_of=lambda record: tables[record.id])
    said = [render_markdown_phrase(sentence) for sentence in iter_quality_sentences(alone)]
    assert any(
        one.startswith("Quality: that of `w8` and `w4` is unknown: the unquantized model")
        for one in said
    )
    assert not any("within the limits" in one for one in said)


def test_the_table_has_every_config_and_what_became_of_it() -> None:
    section = section_text()
    lines = {
        line.split("|")[1].strip(): line for line in section.splitlines() if line.startswith("| `")
    }
    assert "12 windows, 480 scored tokens" in section
    assert "from the 8 likeliest tokens" in section
    assert "| baseline" in lines["`bf16`"]
    assert "oom" in lines["`w2`"]
    assert set(lines) >= {"`bf16`", "`w8`", "`w4`"}
    assert "\nModel: m. Engine: vllm.\n" in section
    assert "\nNot measured: `m/gguf @ vllm`: It reads no GGUF files." in section


def test_answers_and_tasks_stand_beside_the_baselines() -> None:
    section = section_text()
    assert "in a loop" in section
    assert "0.7500 ± 0.0900" in section
    assert "-0.2500 ± 0.1273" in section
    assert "`m/w8 @ vllm`, `mmlu`: no data" in section


def quality_rows() -> Table:
    section = build_quality_section(summary())
    assert section is not None
    return next(block for block in section.blocks if isinstance(block, Table))


def test_figures_are_numbers_and_a_loss_beyond_the_limits_is_an_alarm() -> None:
    table = quality_rows()
    titles = ["".join(map(str, column.title)) for column in table.columns]
    rise, divergence = titles.index("Rise"), titles.index("KL mean")
    flagged = next(row for row in table.rows if row.mark is Mark.ALARM)
    risen, diverged = flagged.cells[rise], flagged.cells[divergence]
    assert isinstance(risen, Quantity)
    assert (risen.unit, risen.is_signed) == (Unit.SHARE, True)
    assert isinstance(diverged, Quantity)
    assert diverged.low is not None
    assert diverged.value is not None
    assert diverged.low < diverged.value
    assert sum(row.mark is Mark.ALARM for row in table.rows) == 1


def test_a_variant_against_itself_shows_zero() -> None:
    line = next(line for line in section_text().splitlines() if line.startswith("| `bf16`"))
    points = [point.strip() for point in line.split("|")]
    assert [point for point in points if "[" in point][-4:] == [
        "0 [0, 0]",
        "0 [0, 0]",
        "0 [0, 0]",
        "100 [100, 100]",
    ]


def test_what_was_never_measured_has_no_column() -> None:
    titles = ["".join(map(str, column.title)) for column in quality_rows().columns]
    assert "Weights" not in titles
    assert "Perplexity" in titles


def test_a_study_without_quality_has_no_section() -> None:
    plain = summary().study.model_copy(update={"quality": None})
    assert build_quality_section(summary().model_copy(update={"study": plain})) is None


def test_the_terminal_has_the_same_and_stays_within_its_width() -> None:
    section = build_quality_section(summary())
    assert section is not None
    document = Document(say("x"), bullets(iter_quality_sentences(summary())), (section,))
    for width, is_wide in ((80, False), (160, True)):
        console = Console(file=StringIO(), width=width)
        render_in_terminal(document, console)
        assert isinstance(console.file, StringIO)
        text = console.file.getvalue()
        assert "flagged" in text
        assert "KL mean" in text
        assert ("KL p99.9" in text) is is_wide
        assert "as the baseline" not in text  # answers are long
        assert max(map(len, text.splitlines())) <= width
