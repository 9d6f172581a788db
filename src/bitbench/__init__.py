"""bitbench: the workbench for quantized LLM inference.

    import bitbench

    results = bitbench.run("study.yaml", into="out")
    results.summary.rankings                 # typed objects
    results.cells.to_pandas()                # figures with intervals; .to_arrow() needs no pandas
    bitbench.compare("baseline", "out", fail_if=["output_throughput < -3%"]).exit_code

Everything else in this package is an inner part that may change.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

__version__ = "0.1.0"

__all__ = [
    "BitbenchError",
    "Comparison",
    "Explanation",
    "Plan",
    "Recommendation",
    "Results",
    "Study",
    "Tuning",
    "Workload",
    "__version__",
    "compare",
    "explain",
    "load",
    "plan",
    "read",
    "recommend",
    "report",
    "run",
    "tune",
]

if TYPE_CHECKING:
    from bitbench.core.asked.study import Study
    from bitbench.core.asked.workload import Workload
    from bitbench.core.cell import Plan
    from bitbench.core.found.comparison import Comparison
    from bitbench.core.found.explanation import Explanation
    from bitbench.core.found.recommendation import Recommendation
    from bitbench.core.found.tuning import Tuning
    from bitbench.ground.errors import BitbenchError
    from bitbench.lab.interface import compare, explain, load, plan, read, recommend, report, run, tune
    from bitbench.lab.results import Results

# Looked up when they are first used: `import bitbench` costs no more than Python itself.
_PLACES = {
    "BitbenchError": "bitbench.ground.errors",
    "Comparison": "bitbench.core.found.comparison",
    "Explanation": "bitbench.core.found.explanation",
    "Plan": "bitbench.core.cell",
    "Recommendation": "bitbench.core.found.recommendation",
    "Results": "bitbench.lab.results",
    "Study": "bitbench.core.asked.study",
    "Tuning": "bitbench.core.found.tuning",
    "Workload": "bitbench.core.asked.workload",
    **dict.fromkeys(
        ("compare", "explain", "load", "plan", "read", "recommend", "report", "run", "tune"), "bitbench.lab.interface"
    ),
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module 'bitbench' has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return __all__


class _Face(ModuleType):
    """Two functions are called as the packages behind them, `load` and `report`. Importing such a package would put it
    in the function's place; here the function stays. Parts of it are imported by `from bitbench.load import …`."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PLACES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Face
