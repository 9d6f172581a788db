"""A ratio of two speeds, estimated as a difference of logarithms: B against A is A against B with the sign turned."""

from dataclasses import dataclass
from functools import cached_property
from math import exp

from bitbench.analysis.distributions import t_p_value, t_reach
from bitbench.analysis.results.summary import Interval, Ratio


@dataclass(frozen=True, kw_only=True)
class LogRatio:
    """Student's t around `log_mean`."""

    log_mean: float
    standard_error: float
    degrees_of_freedom: float

    @cached_property
    def p_value(self) -> float:
        """Two-sided, of equal speeds."""
        if self.standard_error == 0:
            return float(self.log_mean == 0)
        return t_p_value(self.degrees_of_freedom, self.log_mean / self.standard_error)

    def half_width(self, confidence: float) -> float:
        """Of the interval, on the scale of logarithms."""
        return t_reach(self.degrees_of_freedom, confidence) * self.standard_error

    def ratio(self, confidence: float) -> Ratio:
        half = self.half_width(confidence)
        interval = Interval(low=exp(self.log_mean - half), high=exp(self.log_mean + half), confidence=confidence)
        return Ratio(value=exp(self.log_mean), interval=interval, p_value=self.p_value)
