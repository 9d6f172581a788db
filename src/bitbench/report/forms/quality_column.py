"""One figure of quality beside speed, for tables that have room for one."""

from bitbench.core.cell import Contender
from bitbench.core.found.summary import QualityEstimate, StudySummary
from bitbench.ground.units import UNKNOWN
from bitbench.report.document.numbers import number

PREFERRED = ("perplexity_rise", "kl_mean", "perplexity")  # keys of a contender's quality estimates


class QualityColumn:
    """The first of PREFERRED that anybody has; `title` is None where nobody has any."""

    def __init__(self, summary: StudySummary) -> None:
        self._estimates = {one.contender: one.estimates for one in summary.quality}
        known = [key for key in (*PREFERRED, *summary.quality_definitions) if self._has(key)]
        self._key = known[0] if known else None
        definition = summary.quality_definitions.get(self._key) if self._key else None
        self._factor = 0.01 if definition and definition.unit == "%" else 1.0
        self._unit = definition.unit if definition else ""
        self.title = None if definition is None else f"{definition.label}{f' ({self._unit})' if self._unit else ''}"

    def _has(self, key: str) -> bool:
        return any(key in estimates for estimates in self._estimates.values())

    def of(self, contender: Contender) -> str:
        """`1.2 [0.9, 1.5]`"""
        found = self._estimates.get(contender, {}).get(self._key or "")
        return UNKNOWN if found is None else self._shown(found)

    def _shown(self, one: QualityEstimate) -> str:
        value = one.value / self._factor
        if one.interval is None:
            return number(value)
        low, high = one.interval.low / self._factor, one.interval.high / self._factor
        half = (high - low) / 2
        return f"{number(value, half)} [{number(low, half)}, {number(high, half)}]"
