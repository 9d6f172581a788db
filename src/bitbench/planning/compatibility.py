"""The table of recipe form × engine × device in `compatibility.yaml`, and lookups in it."""

from collections.abc import Mapping
from functools import cache
from itertools import combinations
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from bitbench.quantize.catalog import list_built_in_recipes
from bitbench.study.base import Spec
from bitbench.study.environment import Device
from bitbench.study.hardware import Capability, CapabilityRange, parse_capability_range
from bitbench.study.plan import Support
from bitbench.study.study import Argument
from bitbench.study.variant import AtLoad, is_dense_variant_form
from bitbench.util import yaml_file

DOCUMENTATION = "documentation"
# vLLM's own code was run to see which kernel it selects, without computing anything.
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
    """A line of the table. It also holds for more special forms that have no line themselves."""

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
        description="the engine's argument with which it is not refused, "
        "such as `linear-backend=triton`",
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
        """The GPUs that it holds for. None if it holds for every device of its kind."""
        return None if self.capability is None else parse_capability_range(self.capability)

    def is_valid_for(self, capability: Capability | None) -> bool:
        """Return True if the row holds for a device with this capability. If the capability is
        None, only rows for all devices hold."""
        if self.capabilities is None:
            return True
        return capability is not None and capability in self.capabilities

    def refuses(self, args: Mapping[str, Argument]) -> bool:
        """Return True if a study must not run this form with these engine arguments, in any
        spelling."""
        if not self.refuse:
            return False
        arguments = {f"{name.lstrip('-').replace('_', '-')}={args[name]}" for name in args}
        return self.unless not in arguments

    @property
    def is_of_a_version(self) -> bool:
        """Whether it was tested with the pinned version only. Otherwise it holds for every
        version."""
        return self.checked not in (DOCUMENTATION, _FOLLOWS)

    @property
    def word(self) -> str:
        """The verdict as a table shows it."""
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
    """The compatibility file. Two rows of one form, engine and device must not hold for one GPU."""

    rows: tuple[CompatibilityRow, ...]

    @model_validator(mode="after")
    def _one_row_for_one_question(self) -> "CompatibilityTable":
        alike: dict[tuple[str, str, str], list[CompatibilityRow]] = {}
        for row in self.rows:
            alike.setdefault((row.form, row.engine, row.device), []).append(row)
        repeated: list[str] = []
        for key, rows in alike.items():
            if any(_has_common_device(*pair) for pair in combinations(rows, 2)):
                repeated.append(", ".join(key))
        if repeated:
            raise ValueError(f"more than one row for {'; '.join(sorted(repeated))}")
        return self


@cache
def load_compatibility_rows() -> tuple[CompatibilityRow, ...]:
    """Return all rows of the table."""
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
    """Return the most special row for a device, or None. Without a row a study tries the form.

    `capability` is the GPU's compute capability, or None without a GPU or if it is unknown.
    """
    if at_load is not None and at_load.engine != engine:
        return CompatibilityRow(
            form=form,
            engine=engine,
            device=device,
            verdict=Support.DOES_NOT_RUN,
            why=f"Only {at_load.engine} compresses it at load; "
            "another engine would run the model unquantized.",
            refuse=True,
            checked=_FOLLOWS,
        )
    while form:  # from the special to the general
        for row in _group_rows_by_key().get((form, engine, device), ()):
            if row.is_valid_for(capability):
                return row
        form = form.rpartition("/")[0]
    return None


@cache
def _group_rows_by_key() -> dict[tuple[str, str, str], tuple[CompatibilityRow, ...]]:
    """Return the rows of each form, engine and device."""
    by_key: dict[tuple[str, str, str], tuple[CompatibilityRow, ...]] = {}
    for row in load_compatibility_rows():
        key = (row.form, row.engine, row.device)
        by_key[key] = (*by_key.get(key, ()), row)
    return by_key


def _has_common_device(row: CompatibilityRow, other: CompatibilityRow) -> bool:
    """Return True if there is a device that both rows hold for."""
    capabilities = row.capabilities
    others = other.capabilities
    return capabilities is None or others is None or capabilities.overlaps(others)


def find_baseline_recipe(engine: str, device: Device) -> str:
    """Return the recipe that leaves a model unquantized in a file format that this engine reads."""
    dense = [recipe for recipe in list_built_in_recipes() if is_dense_variant_form(recipe.form)]
    for recipe in dense:
        row = look_up_compatibility(recipe.form, engine, device)
        if row is None or not row.refuse:
            return recipe.name
    return dense[0].name
