"""One figure of quality beside speed, for tables that have room for one."""

from bitbench.analysis.results.summary import StudySummary
from bitbench.reports.document.model import Quantity, Unit
from bitbench.reports.quantities import estimated, unit_of
from bitbench.study.plan import Config

PREFERRED = ("perplexity_rise", "kl_mean", "perplexity")  # keys of a config's quality estimates


class QualityColumn:
    """The first of PREFERRED that any config has; `title` is None where none has any."""

    def __init__(self, summary: StudySummary) -> None:
        self._estimates = {row.config: row.estimates for row in summary.quality}
        keys = dict.fromkeys((*PREFERRED, *summary.quality_definitions))
        self._key = next((key for key in keys if any(key in known for known in self._estimates.values())), None)
        self._definition = summary.quality_definitions[self._key] if self._key else None
        self.title = self._definition.label if self._definition else None
        self.unit = unit_of(self._definition) if self._definition else Unit.NONE

    def of(self, config: Config) -> Quantity | None:
        if self._key is None or self._definition is None:
            return None
        return estimated(self._estimates.get(config, {}).get(self._key), self._definition)
