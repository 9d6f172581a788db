"""From a study folder to its report: reads what it needs, and shortens this machine's paths."""

import re
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel

from bitbench.analysis.results.summary import StudySummary
from bitbench.analysis.summarize import summarize
from bitbench.records.folder import StudyFolder, StudyRecords
from bitbench.util.errors import ExitCode

if TYPE_CHECKING:
    from bitbench.reports.document.model import Document


Told = TypeVar("Told")


def path_shortener(folders: Iterable[Path]) -> Callable[[str], str]:
    """A function that writes `…/envs/vllm/x.py` for `FOLDER/envs/vllm/x.py`; the longest folder goes first."""
    known = sorted(
        {str(folder) for folder in folders if len(folder.parts) > 1}, key=len, reverse=True
    )
    if not known:
        return str
    pattern = re.compile(
        rf"(?<![\w.-])(?:{'|'.join(re.escape(folder) for folder in known)})(?![\w.-])"
    )
    return lambda text: pattern.sub("…", text)


# Where an engine's own words, or a command, stand in a summary; and what leads to them.
_TOLD = {"kernels", "commands", "notes", "reason", "cause", "log_lines"}
_LEADING = {"points", "failures", "failure", "configs", "refusals"}


def shorten_report_paths(told: Told, short: Callable[[str], str]) -> Told:
    """A summary, or a part of one, without the paths that `short` knows."""
    found: Any = told
    if isinstance(told, str):
        found = short(told)
    elif isinstance(told, tuple):
        found = tuple(shorten_report_paths(item, short) for item in told)
    elif isinstance(told, BaseModel):
        fields = (_TOLD | _LEADING) & type(told).model_fields.keys()
        found = told.model_copy(
            update={field: shorten_report_paths(getattr(told, field), short) for field in fields}
        )
    return found  # type: ignore[no-any-return]


class StudyReport:
    """Of a study folder, from its records alone: needs neither the engines nor the model. Without the paths of this
    machine. Each part is made when it is first asked for: the document takes a while, and not every form needs it."""

    def __init__(self, folder: StudyFolder, home: Path) -> None:
        self.folder, self._home = folder, home

    @cached_property
    def records(self) -> StudyRecords:
        return StudyFolder.existing(self.folder.path).read()

    @cached_property
    def summary(self) -> StudySummary:
        return shorten_report_paths(summarize(self.records), self._short)

    @cached_property
    def document(self) -> "Document":
        """For any of the renderers."""
        from bitbench.reports.study import (
            study_document,
        )  # brings the drawing of charts: a second to import

        return study_document(self.summary, self.records.lock)

    @property
    def page(self) -> Path:
        """Where `write` puts it."""
        return self.folder.report / "index.html"

    def write(self) -> Path:
        """Write report/; the path is that of report.md, and the page and figures/ lie beside it."""
        from bitbench.reports.files import make_report_files

        return make_report_files(self.document, self.folder.path)

    def exit_code(self, *, allow_inconclusive: bool = False) -> ExitCode:
        return self.summary.exit_code(allow_inconclusive=allow_inconclusive)

    @cached_property
    def _short(self) -> Callable[[str], str]:
        """For what lies in this home, in the study's folder, or in the home in which it was run."""
        paths = [variant.path for variant in self.records.plan.variants if variant.path is not None]
        homes = [
            up.parent for path in paths for up in path.parents if up.name in ("models", "variants")
        ]
        return path_shortener([self._home, self.folder.path.resolve(), Path.home(), *homes])
