"""What can be chosen on the command line; without further imports, so that --help stays quick."""

from enum import StrEnum

from bitbench.feature import offered


class Form(StrEnum):
    """As `bitbench report --format` spells it."""

    HTML = "html"  # one page with figures; also report/index.html of each report
    CSV = "csv"  # one row per trial
    JSON = "json"  # the summary with its definitions, and one object per trial


def formats() -> list[str]:
    """Those of the core, and those that features offer."""
    return [*(form.value for form in Form), *offered("formats")]
