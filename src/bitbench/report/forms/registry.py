"""Which function writes which form of a study's records. A form of its own is one line here and one in `choices`."""

from collections.abc import Callable

from bitbench.core.found.summary import StudySummary
from bitbench.core.recorded.study import StudyRecords
from bitbench.report.forms.backend_md import backend_markdown
from bitbench.report.forms.choices import Form
from bitbench.report.forms.tidy import csv_text
from bitbench.report.forms.vendor_md import vendor_markdown
from bitbench.report.forms.vendor_rst import vendor_rst

STUDY_FORMS: dict[Form, Callable[[StudySummary, StudyRecords], str]] = {
    Form.VENDOR_MD: lambda summary, records: vendor_markdown(summary, records.lock),
    Form.VENDOR_RST: lambda summary, records: vendor_rst(summary, records.lock),
    Form.BACKEND_MD: lambda summary, _: backend_markdown(summary),
    Form.CSV: lambda summary, records: csv_text(summary, records.trials),
}
