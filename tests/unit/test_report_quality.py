"""Quality in the report: beside speed and memory, flags first, answers side by side, whatever a model wrote."""

from io import StringIO

from rich.console import Console

from bitbench.core.cell import Plan, QualityRefusal
from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.quality import Answer, TaskFailure, TaskResult
from bitbench.core.recorded.trial import Outcome
from bitbench.report.document.markdown import markdown
from bitbench.report.document.terminal import render
from tests.unit.synthetic import summarize
from tests.unit.test_statistics_quality import contender, logits, noisy, plan, record, rows


def summary() -> StudySummary:
    refusal = QualityRefusal(contender=contender("gguf"), reason="It reads no GGUF files.")
    asked: Plan = plan("bf16", "w8", "w4", "w2").model_copy(update={"quality_refusals": (refusal,)})
    tables = {"bf16": rows(logits(1)), "w8": rows(noisy(0.1)), "w4": rows(noisy(1.5))}
    same = Answer(prompt="Why?", text="Because.", tokens=(1, 2, 3))
    other = Answer(prompt="Why?", text="<b>no|no</b>", tokens=(1, *[9] * 20))
    task = TaskResult(task="capitals", metric="acc,none", value=0.75, standard_error=0.09, samples=24)
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
    return summarize(asked, [], [], quality=records, scores_of=lambda record: tables[record.id])


def test_markdown_says_who_lost_too_much_before_any_table() -> None:
    text = markdown(summary(), {})
    opening = text.partition("## ")[0]
    assert "`m/w4 @ vllm` is flagged: its mean KL divergence is at least" in opening
    assert "`m/w2 @ vllm` has no result (oom): Too large." in opening
    assert "`m/w8 @ vllm` is not surely beyond the limits" in opening
    section = text.partition("## Quality")[2].partition("\n## ")[0]
    table = {line.split("|")[1].strip(): line for line in section.splitlines() if line.startswith("| `")}
    assert "12 windows, 480 scored tokens" in section
    assert "from the 8 likeliest tokens" in section
    assert "| baseline |" in next(line for line in section.splitlines() if line.startswith("| `bf16`"))
    assert "oom" in next(line for line in section.splitlines() if line.startswith("| `w2`"))
    assert set(table) >= {"`bf16`", "`w8`", "`w4`"}
    assert "\nAll are of m on vllm.\n" in section
    assert "- Not measured: `m/gguf @ vllm`: It reads no GGUF files." in section


def test_answers_and_tasks_stand_beside_the_baselines() -> None:
    section = markdown(summary(), {}).partition("## Quality")[2]
    assert "*as the baseline*" in section
    assert "&lt;b&gt;no\\|no&lt;/b&gt;" in section
    assert "from token 1, in a loop" in section
    assert "-0.2500 ± 0.1273" in section
    assert "`m/w8 @ vllm`, `mmlu`: no data" in section


def test_a_variant_against_itself_shows_zero() -> None:
    section = markdown(summary(), {}).partition("## Quality")[2]
    cells = [
        cell.strip() for cell in next(line for line in section.splitlines() if line.startswith("| `bf16`")).split("|")
    ]
    assert cells[5:9] == ["0 [0, 0] %", "0 [0, 0]", "0 [0, 0]", "100 [100, 100] %"]


def test_the_terminal_has_the_same_and_stays_within_its_width() -> None:
    for width in (80, 160):
        console = Console(file=StringIO(), width=width)
        render(summary(), console)
        assert isinstance(console.file, StringIO)
        text = console.file.getvalue()
        assert "flagged" in text
        assert "KL mean" in text
        assert max(map(len, text.splitlines())) <= width
