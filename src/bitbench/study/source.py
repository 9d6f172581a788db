"""A study as it was asked for: by a file, or made in Python."""

from dataclasses import dataclass, replace
from pathlib import Path

from bitbench.study.study import Study
from bitbench.study.study_file import read_study, with_line
from bitbench.study.write_study import study_text
from bitbench.util.errors import StudyFileError


@dataclass(frozen=True)
class StudySource:
    study: Study
    text: str  # what its folder keeps as study.yaml
    folder: Path  # what file names in it are relative to
    file: Path | None = None

    @classmethod
    def of(cls, study: "Path | Study | StudySource", folder: Path = Path()) -> "StudySource":
        """`folder` counts for a study that was made in Python; a file is its own place.

        A file is read here and no more: what is shown to a person, allowed, run and kept is one text.
        """
        if isinstance(study, StudySource):
            return study
        if isinstance(study, Study):
            return cls(study, study_text(study), folder)
        return cls(*read_study(study), study.parent, study)

    def with_budget(self, budget_s: float | None) -> "StudySource":
        """The same study with another budget; its file stays as it is."""
        if budget_s is None:
            return self
        measure = self.study.measure.with_budget(budget_s)
        return replace(self, study=self.study.model_copy(update={"measure": measure}))

    def located(self, error: StudyFileError) -> StudyFileError:
        """The same error, with the line of the file that it is about."""
        return error if self.file is None else with_line(error, self.file, self.text)
