"""Which function writes which form of a study. A form of its own is one line here and one in `choices`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bitbench.core.base import Json
from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.trial import TrialRecord
from bitbench.report.forms.backend_md import backend_markdown
from bitbench.report.forms.choices import Form
from bitbench.report.forms.tidy import csv_text, json_text
from bitbench.report.forms.vendor_md import seed_markdown
from bitbench.report.forms.vendor_rst import seed_rst


@dataclass(frozen=True)
class StudyRecords:
    """All that a form may be made from."""

    summary: StudySummary
    lock: Mapping[str, Json]
    trials: Sequence[TrialRecord]


STUDY_FORMS: dict[Form, Callable[[StudyRecords], str]] = {
    Form.SEED_MD: lambda study: seed_markdown(study.summary, study.lock),
    Form.SEED_RST: lambda study: seed_rst(study.summary, study.lock),
    Form.BACKEND_MD: lambda study: backend_markdown(study.summary),
    Form.CSV: lambda study: csv_text(study.summary, study.trials),
    Form.JSON: lambda study: json_text(study.summary, study.trials),
}
