"""The report formats of the command line. It imports little, so that --help stays quick."""

from enum import StrEnum

from bitbench.feature import collect_offers


class Form(StrEnum):
    """A format, spelled as in `bitbench report --format`."""

    HTML = "html"  # one page with figures; also report/index.html of each report
    CSV = "csv"  # one row per trial
    JSON = "json"  # the summary with its definitions, and one object per trial


def list_formats() -> list[str]:
    """Return the formats of the core, followed by those of features."""
    return [*map(str, Form), *collect_offers("formats")]
