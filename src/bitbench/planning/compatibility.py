"""What runs where, as data: a recipe's form × engine × device, in `compatibility.yaml`."""

from collections.abc import Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from bitbench.quantize.catalog import built_in_recipes
from bitbench.study.base import Spec
from bitbench.study.environment import Device
from bitbench.study.hardware import Capability, CapabilityRange, parse_capability_range
from bitbench.study.plan import Support
from bitbench.study.study import Argument
from bitbench.study.variant import AtLoad, is_dense_variant_form
from bitbench.util import yaml_file

DOCUMENTATION = "documentation"
# Its own code was run to see what it chooses, and nothing was computed.
SELECTION = "vllm 0.32.0 asked without a GPU"
UNTESTED = (DOCUMENTATION, SELECTION)
_FOLLOWS = "follows from the recipe"
_WORDS = {
    Support.RUNS: "runs",
    Support.RUNS_WITHOUT_SPEEDUP: "no speed-up",
    Support.DOES_NOT_RUN: "does not run",
}
_FILE = Path(__file__).with_name("compatibility.yaml")


class CompatibilityRow(Spec):
    """One line of the table. It also holds for more special forms, unless they have a line of their own."""

    form: str
    engine: str
    device: Device
    capability: str | None = Field(
        default=None,
        description="compute capabilities that it holds for, such as `>=8.0 <8.9`; default: all",
    )
    verdict: Support
    why: str = Field(default="", description="a sentence; required unless it runs")
    refuse: bool = Field(
        default=False, description="its speed would be meaningless, or it is known to fail"
    )
    unless: str | None = Field(
        default=None,
        description="the engine's argument with which it is not refused, such as `linear-backend=triton`",
    )
    kernel: str | None = Field(
        default=None, description="the class that the engine computes it with, where known"
    )
    checked: str = Field(description="what it was tested with, or `documentation`")
    float32_without_bf16: bool = Field(
        default=False,
        description="of a CPU: what it computes in on a processor that would emulate bf16",
    )

    @property
    def capabilities(self) -> CapabilityRange | None:
        """None: it holds for every device of its kind."""
        return None if self.capability is None else parse_capability_range(self.capability)

    def holds_for(self, capability: Capability | None) -> bool:
        """Of a device whose capability is unknown, only what holds for all is known."""
        return self.capabilities is None or (
            capability is not None and capability in self.capabilities
        )

    def refuses(self, args: Mapping[str, Argument]) -> bool:
        """Whether a study does not run it with these arguments of its engine, however they are spelled."""
        return self.refuse and self.unless not in {
            f"{name.lstrip('-').replace('_', '-')}={value}" for name, value in args.items()
        }

    @property
    def is_of_a_version(self) -> bool:
        """Whether it was found with the version that bitbench pins; else it holds for every version."""
        return self.checked not in (DOCUMENTATION, _FOLLOWS)

    @property
    def word(self) -> str:
        """For a table."""
        return "not applicable" if self.refuse else _WORDS[self.verdict]

    @field_validator("capability")
    @classmethod
    def _is_a_range(cls, value: str | None) -> str | None:
        if value is not None:
            parse_capability_range(value)
        return value

    @model_validator(mode="after")
    def _says_why(self) -> "CompatibilityRow":
        if self.verdict is not Support.RUNS and not self.why:
            raise ValueError(f"{self.form} on {self.engine}: `why` is missing")
        if self.verdict is Support.RUNS and self.refuse:
            raise ValueError(f"{self.form} on {self.engine}: a form that runs cannot be refused")
        return self


class CompatibilityTable(Spec):
    rows: tuple[CompatibilityRow, ...]

    @model_validator(mode="after")
    def _one_row_for_one_question(self) -> "CompatibilityTable":
        alike: dict[tuple[str, str, str], list[CompatibilityRow]] = {}
        for row in self.rows:
            alike.setdefault((row.form, row.engine, row.device), []).append(row)
        repeated = sorted(
            ", ".join(key)
            for key, same in alike.items()
            if any(_meet(*two) for two in combinations(same, 2))
        )
        if repeated:
            raise ValueError(f"more than one row for {'; '.join(repeated)}")
        return self


@cache
def compatibility_rows() -> tuple[CompatibilityRow, ...]:
    text = _FILE.read_text(encoding="utf-8")
    return yaml_file.parse_yaml(
        text, CompatibilityTable, name=_FILE.name, outline="`rows:` and a list", error=ValueError
    ).rows


def look_up_compatibility(
    form: str,
    engine: str,
    device: Device,
    at_load: AtLoad | None = None,
    *,
    capability: Capability | None = None,
) -> CompatibilityRow | None:
    """The most special row that holds for a device of this compute capability (None: it has none, or it is unknown).
    Without such a row it is unknown whether it runs, so it is tried."""
    if at_load is not None and at_load.engine != engine:
        return CompatibilityRow(
            form=form,
            engine=engine,
            device=device,
            verdict=Support.DOES_NOT_RUN,
            why=f"Only {at_load.engine} compresses it at load; another engine would run the model unquantized.",
            refuse=True,
            checked=_FOLLOWS,
        )
    while form:  # from the special to the general
        for row in _rows_by_place().get((form, engine, device), ()):
            if row.holds_for(capability):
                return row
        form = form.rpartition("/")[0]
    return None


@cache
def _rows_by_place() -> dict[tuple[str, str, str], tuple[CompatibilityRow, ...]]:
    found: dict[tuple[str, str, str], tuple[CompatibilityRow, ...]] = {}
    for row in compatibility_rows():
        key = (row.form, row.engine, row.device)
        found[key] = (*found.get(key, ()), row)
    return found


def _meet(row: CompatibilityRow, other: CompatibilityRow) -> bool:
    """Whether both hold for some device."""
    here, there = row.capabilities, other.capabilities
    return here is None or there is None or here.overlaps(there)


def baseline_recipe(engine: str, device: Device) -> str:
    """The recipe that leaves a model unquantized in the kind of file that this engine reads."""
    dense = [recipe for recipe in built_in_recipes() if is_dense_variant_form(recipe.form)]
    rows = {recipe.name: look_up_compatibility(recipe.form, engine, device) for recipe in dense}
    return next(
        (name for name, row in rows.items() if row is None or not row.refuse), dense[0].name
    )
