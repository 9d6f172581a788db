"""The report of a study folder, made from its records without this machine's paths."""

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


Content = TypeVar("Content")


def make_path_shortener(folders: Iterable[Path]) -> Callable[[str], str]:
    """Return a function that writes `…/envs/vllm/x.py` for `FOLDER/envs/vllm/x.py`."""
    paths = {str(folder) for folder in folders if len(folder.parts) > 1}
    if not paths:
        return str
    # The longest comes first, since it may be inside another.
    longest_first = sorted(paths, key=len, reverse=True)
    alternatives = "|".join(map(re.escape, longest_first))
    pattern = re.compile(rf"(?<![\w.-])(?:{alternatives})(?![\w.-])")
    return lambda text: pattern.sub("…", text)


# Fields of a summary that hold an engine's own text or a command, and fields that lead to them.
_WITH_PATHS = {"kernels", "commands", "notes", "reason", "cause", "log_lines"}
_LEADING = {"points", "failures", "failure", "configs", "refusals"}


def strip_report_paths(content: Content, shorten: Callable[[str], str]) -> Content:
    """Return a summary, or a part of one, with the paths in its texts shortened."""
    result: Any = content
    if isinstance(content, str):
        result = shorten(content)
    elif isinstance(content, tuple):
        result = tuple(strip_report_paths(item, shorten) for item in content)
    elif isinstance(content, BaseModel):
        changes = {}
        for field in (_WITH_PATHS | _LEADING) & type(content).model_fields.keys():
            changes[field] = strip_report_paths(getattr(content, field), shorten)
        result = content.model_copy(update=changes)
    return result  # type: ignore[no-any-return]


class StudyReport:
    """A report of a study folder, made from its records alone.

    It needs neither the engines nor the model, and it contains no path of this machine. Each part
    is made on first use: the document takes a while, and not every format needs it.
    """

    def __init__(self, folder: StudyFolder, home: Path) -> None:
        self.folder = folder
        self._home = home

    @cached_property
    def records(self) -> StudyRecords:
        return StudyFolder.existing(self.folder.path).read()

    @cached_property
    def summary(self) -> StudySummary:
        return strip_report_paths(summarize(self.records), self._short)

    @cached_property
    def document(self) -> "Document":
        """The document, for any of the renderers."""
        # The drawing of charts takes a second to import.
        from bitbench.reports.study import build_study_report

        return build_study_report(self.summary, self.records.lock)

    @property
    def page(self) -> Path:
        """The path to which `write` writes the page."""
        return self.folder.report / "index.html"

    def write(self) -> Path:
        """Write report/ and return the path of report.md. The page and figures/ are next to it."""
        from bitbench.reports.files import make_report_files

        return make_report_files(self.document, self.folder.path)

    def exit_code(self, *, allow_inconclusive: bool = False) -> ExitCode:
        return self.summary.exit_code(allow_inconclusive=allow_inconclusive)

    @cached_property
    def _short(self) -> Callable[[str], str]:
        """Shortens paths below this home, the study's folder and the home that ran the study."""
        folders = [self._home, self.folder.path.resolve(), Path.home()]
        for variant in self.records.plan.variants:
            if variant.path is not None:
                parents = variant.path.parents
                folders += [up.parent for up in parents if up.name in ("models", "variants")]
        return make_path_shortener(folders)
