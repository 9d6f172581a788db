"""bitbench: the workbench for quantized LLM inference.

    import bitbench

    results = bitbench.run("study.yaml", into="out")
    results                                   # in a notebook: the answer and its table
    results.summary.rankings                  # typed objects
    results.points.to_pandas()                # metrics with intervals; or .to_arrow()
    bitbench.compare("baseline", "out", fail_if=["output_throughput < -3%"]).exit_code

Everything else in this package is internal and may change.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from bitbench.util.version import __version__

__all__ = [
    "BitbenchError",
    "Comparison",
    "MadeVariant",
    "Plan",
    "Recommendation",
    "Results",
    "Study",
    "Workload",
    "__version__",
    "compare",
    "load_test",
    "measure_quality",
    "open",
    "plan",
    "quantize_model",
    "quick",
    "recommend",
    "report",
    "run",
]

if TYPE_CHECKING:
    from bitbench.analysis.results.comparison import Comparison
    from bitbench.analysis.results.recommendation import Recommendation
    from bitbench.api.compare import compare
    from bitbench.api.interface import load_test, open, plan, report, run
    from bitbench.api.recommend import recommend
    from bitbench.api.results import Results
    from bitbench.api.variants import measure_quality, quantize_model, quick
    from bitbench.feature import Offer
    from bitbench.quantize.variants import MadeVariant
    from bitbench.study.plan import Plan
    from bitbench.study.study import Study
    from bitbench.study.workload import Workload
    from bitbench.util.errors import BitbenchError

# Imported at the first use, so that `import bitbench` costs almost no time.
_MODULES = {
    "BitbenchError": "bitbench.util.errors",
    "Comparison": "bitbench.analysis.results.comparison",
    "MadeVariant": "bitbench.quantize.variants",
    "Plan": "bitbench.study.plan",
    "Recommendation": "bitbench.analysis.results.recommendation",
    "Results": "bitbench.api.results",
    "Study": "bitbench.study.study",
    "Workload": "bitbench.study.workload",
    "compare": "bitbench.api.compare",
    "recommend": "bitbench.api.recommend",
    **dict.fromkeys(("load_test", "open", "plan", "report", "run"), "bitbench.api.interface"),
    **dict.fromkeys(("measure_quality", "quantize_model", "quick"), "bitbench.api.variants"),
}


def __getattr__(name: str) -> Any:  # type checkers do not know what features add
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    if not name.startswith("_") and name in (offers := _collect_offers()):
        return offers[name].load()
    raise AttributeError(f"module 'bitbench' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_collect_offers()]


def _collect_offers() -> "dict[str, Offer]":
    """Return the names that features add, such as `bitbench.tune`."""
    from bitbench.feature import collect_offers

    return collect_offers("python")
