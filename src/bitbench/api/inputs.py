"""Arguments of the Python functions, which accept more than one type."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from bitbench.api.results import Results
from bitbench.records.folder import StudyFolder
from bitbench.study.study import Study
from bitbench.study.study_file import check_input
from bitbench.util.errors import UsageError

PathInput = str | Path
StudyInput = str | Path | Study | Mapping[str, Any]
ResultsInput = str | Path | Results

T = TypeVar("T")


def parse_study_input(study: StudyInput) -> Path | Study:
    """Return the path of a study file, or the study. Raise UsageError for another type."""
    match study:
        case Study():
            return study
        case str() | Path():
            return Path(study)
        case Mapping():
            return check_input(lambda: Study.model_validate(study))
    raise UsageError(
        f"a study is a file, a dict or a bitbench.Study, but it is {type(study).__name__}"
    )


def open_study_folder(results: ResultsInput) -> StudyFolder:
    """Return the folder of results or at a path.

    Raise UsageError for another type, and StoreError if the path is not a study folder.
    """
    match results:
        case Results():
            return StudyFolder.existing(results.path)
        case str() | Path():
            return StudyFolder.existing(Path(results))
    raise UsageError(
        f"results are a study folder or bitbench.Results, but they are {type(results).__name__}"
    )


def parse_items(value: object, items: TypeAdapter[tuple[T, ...]], *, about: str) -> tuple[T, ...]:
    """Return one value or several as a tuple. Raise UsageError if a type is wrong."""
    values = value
    if isinstance(value, str | Path | int | float):
        values = (value,)
    return check_input(lambda: items.validate_python(values), about=about)
