"""Conversations until the first invalid JSON or tool call: verdicts, and what a report says of them."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from bitbench.analysis.results.summary import StudySummary
from bitbench.features.behaviour.computing import compare_conversations
from bitbench.features.behaviour.types import Conversations, ConversationShare
from bitbench.features.behaviour.words import turn_behaviour_section, turn_behaviour_sentences
from bitbench.records.folder import StudyFolder
from bitbench.records.quality import ConversationRecord, Script, TurnAnswer, TurnPrompt
from bitbench.reports.document.markdown import (
    render_markdown,
    render_markdown_phrase,
    render_markdown_section,
)
from bitbench.reports.study import build_study_report
from tests.support.quality_server import QualityServer
from tests.support.synthetic import make_lock, summarize
from tests.unit import test_quality
from tests.unit.test_quality import MATERIAL, server  # noqa: F401
from tests.unit.test_statistics_quality import config, logits, plan, record, rows

VALID = '{"name": "Ada", "city": "Rome", "age": 36}'
TURNS, COUNT = 6, 24


def talks(lives: Sequence[int]) -> tuple[ConversationRecord, ...]:
    """Each breaks in this turn; 0: never."""
    fine, broken = (
        TurnAnswer(text=VALID),
        TurnAnswer(text="{", fault="it is not JSON (Expecting value)"),
    )
    return tuple(
        ConversationRecord(
            name=f"talk {number}",
            task="person",
            turns=TURNS,
            answers=(fine,) * (life - 1) + (broken,) if life else (fine,) * TURNS,
        )
        for number, life in enumerate(lives)
    )


def broken_with(hazard: float, rng: np.random.Generator, count: int = COUNT) -> list[int]:
    """In each turn with this chance."""
    return [int(life) if (life := rng.geometric(hazard)) <= TURNS else 0 for _ in range(count)]


def found_in(**lives: Sequence[int]) -> StudySummary:
    records = [
        record(name).model_copy(update={"conversations": talks(own)}) for name, own in lives.items()
    ]
    return summarize(plan(*lives), [], [], quality=records, scores_of=lambda _: rows(logits(1)))


def rows_of(summary: StudySummary) -> Conversations:
    found = summary.part(Conversations)
    assert found is not None
    return found


def conversations_of(summary: StudySummary) -> dict[str, ConversationShare]:
    return {row.config.variant.partition("/")[2]: row for row in rows_of(summary).rows}


def said_of(summary: StudySummary) -> list[str]:
    return [
        render_markdown_phrase(sentence)
        for sentence in turn_behaviour_sentences(rows_of(summary), summary)
    ]


def measured() -> StudySummary:
    rng = np.random.default_rng(8)
    good = broken_with(0.04, rng)
    alike = [life if number % 8 else 5 for number, life in enumerate(good)]
    return found_in(bf16=good, w8=alike, w4=broken_with(0.45, rng))


def test_variants_that_are_the_same_are_seldom_told_apart() -> None:
    """Two variants, 100 studies: any false claim in 5 % of them and two standard deviations."""
    rng, false, recipes = np.random.default_rng(2), 0, ("bf16", "w8", "w4")
    for _ in range(100):
        found = compare_conversations(
            {config(one): talks(broken_with(0.1, rng)) for one in recipes}, plan(*recipes)
        )
        verdicts = {one.against.verdict for one in found if one.against}
        false += not verdicts.isdisjoint({"more", "fewer"})
    assert false <= 9


def test_a_variant_that_breaks_more_conversations_is_told_from_one_that_does_not() -> None:
    found = conversations_of(
        found_in(bf16=[0] * 20 + [3] * 4, w8=[0] * 19 + [3] * 5, w4=[2] * 18 + [0] * 6)
    )
    alike, worse = found["w8"].against, found["w4"].against
    assert alike is not None
    assert worse is not None
    assert alike.verdict == "no difference found"
    assert worse.verdict == "more"
    assert (worse.flips.lost, worse.flips.gained) == (18, 4)
    assert (found["w4"].valid, found["w4"].conversations, found["bf16"].valid) == (6, 24, 20)
    assert found["bf16"].against is None


def test_where_the_unquantized_model_breaks_by_itself_nothing_is_said() -> None:
    summary = found_in(bf16=[1] * 20 + [0] * 4, w4=[1] * 24)
    against = conversations_of(summary)["w4"].against
    assert against is not None
    assert against.verdict == "inconclusive"


def test_a_variant_may_break_fewer() -> None:
    against = conversations_of(found_in(bf16=[2] * 12 + [0] * 12, w8=[0] * 24))["w8"].against
    assert against is not None
    assert against.verdict == "fewer"


def test_the_report_answers_first() -> None:
    summary = measured()
    assert len(said_of(summary)) == 2
    text = "\n".join(render_markdown_section(turn_behaviour_section(rows_of(summary), summary)))
    assert text.index(said_of(summary)[0]) < text.index("Never broke")
    whole = render_markdown(build_study_report(summary, make_lock(plan("bf16", "w8", "w4"))))
    assert whole.index(said_of(summary)[0]) < whole.index("## Quality")


def test_other_scripts_are_not_compared() -> None:
    records = [
        record(name).model_copy(update={"conversations": talks([0] * COUNT)})
        for name in ("bf16", "w8")
    ]
    fewer = records[1].model_copy(update={"conversations": talks([0] * 12)})
    summary = summarize(
        plan("bf16", "w8"), [], [], quality=[records[0], fewer], scores_of=lambda _: rows(logits(1))
    )
    assert all(one.against is None for one in conversations_of(summary).values())


def test_a_study_without_conversations_has_no_such_section() -> None:
    assert found_in(bf16=[], w8=[]).part(Conversations) is None


def test_conversations_are_on_disk_and_in_the_report(
    server: QualityServer,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """From the plan to the report. Both variants are the same server, so they break alike: every second in turn 3."""
    server.text_of = lambda body: (
        "no" if body["prompt"][-1] == 2 and body["prompt"][0] % 2 else VALID
    )
    scripts = tuple(
        Script(
            name=f"{n}",
            task="person",
            turns=tuple(TurnPrompt(kept=0, tokens=(n, turn)) for turn in range(3)),
        )
        for n in range(8)
    )
    monkeypatch.setattr(test_quality, "MATERIAL", MATERIAL.model_copy(update={"scripts": scripts}))
    asked = test_quality.planned(
        "bf16", "w8a8-rtn", top_tokens=3, answer_tokens=0, turns={"conversations": 8, "turns": 3}
    )
    study, folder = test_quality.PaperStudy(asked), StudyFolder(tmp_path / "s")
    with folder.open_writer() as writer:
        while (group := study.next_group()) is not None:
            for draft in test_quality.drafts(asked, group, server, tmp_path):
                study.add([writer.append_quality(draft.record, draft.scores)])
    kept = folder.read_quality_records()
    assert [[one.broke_at for one in record.conversations] for record in kept] == [
        [None, 3] * 4
    ] * 2
    summary = summarize(asked, [], [], quality=kept, scores_of=folder.scores_of)
    (said,) = said_of(summary)
    assert "4 of 8 valid to the end" in said
