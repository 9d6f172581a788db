"""Which words the engine of each setup repeats: computed from a study's records, printed, and told in its report."""

from pathlib import Path
from typing import Annotated

import typer

from bitbench.analysis.results.summary import StudySummary
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.reports.document.model import Name, Section
from bitbench.reports.document.words import bullets, say
from bitbench.study.base import Record


class RepeatedWords(Record):
    by_engine: dict[str, str]


def repeated_words(of: StudyRecords) -> RepeatedWords | None:
    """Return them; None for a study without the engine."""
    setups = [setup for setup in of.study.engines if setup.engine == "example"]
    found = {setup.name: str(setup.args.get("word", "example")) for setup in setups}
    return RepeatedWords(by_engine=found) if found else None


def words_section(found: RepeatedWords, _: StudySummary) -> Section:
    lines = (
        say(Name(engine), " repeats ", Name(word), ".") for engine, word in found.by_engine.items()
    )
    return Section(say("Repeated words"), bullets(lines))


def words(
    folder: Annotated[Path, typer.Argument(help="The study folder.", metavar="STUDY_DIR")],
) -> None:
    """Print the words that the example engine repeats."""
    found = repeated_words(StudyFolder.existing(folder).read())
    for engine, word in (found.by_engine if found else {}).items():
        typer.echo(f"{engine}: {word}")
