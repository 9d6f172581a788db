"""What runs where, as data: a recipe's form × engine × device, in `compatibility.yaml`."""

from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pydantic import Field, model_validator

from bitbench.core.base import Spec
from bitbench.core.cell import Verdict
from bitbench.core.environment import Device
from bitbench.core.recorded.processor import Feature, Level
from bitbench.core.recorded.variant import AtLoad
from bitbench.ground import yaml_file

DOCUMENTATION = "documentation"
_WORDS = {Verdict.RUNS: "runs", Verdict.RUNS_WITHOUT_SPEEDUP: "no speed-up", Verdict.DOES_NOT_RUN: "does not run"}
_FILE = Path(__file__).with_name("compatibility.yaml")


class Lacking(Spec):
    """What a row means on a processor that lacks some instructions."""

    feature: Feature
    why: str = Field(description="a sentence: what the engine does without them, and what that costs")
    dtype: str | None = Field(default=None, description="what it computes in there, unless the study says otherwise")


class CompatibilityRow(Spec):
    """One line of the table. It also holds for more special forms, unless they have a line of their own."""

    form: str
    engine: str
    device: Device
    verdict: Verdict
    why: str = Field(default="", description="a sentence; required unless it runs")
    refuse: bool = Field(default=False, description="its speed would be meaningless, or it is known to fail")
    checked: str = Field(description="what it was tested with, or `documentation`")
    lacking: tuple[Lacking, ...] = Field(default=(), description="of a CPU: what changes on a lesser processor")

    @property
    def word(self) -> str:
        """For a table."""
        return "not applicable" if self.refuse else _WORDS[self.verdict]

    def on(self, level: Level | None) -> tuple[Lacking, ...]:
        """What a processor of this level lacks and this row needs."""
        return tuple(one for one in self.lacking if level is not None and one.feature in level.lacks)

    @model_validator(mode="after")
    def _says_why(self) -> "CompatibilityRow":
        if self.verdict is not Verdict.RUNS and not self.why:
            raise ValueError(f"{self.form} on {self.engine}: `why` is missing")
        if self.verdict is Verdict.RUNS and self.refuse:
            raise ValueError(f"{self.form} on {self.engine}: a form that runs cannot be refused")
        return self


class CompatibilityTable(Spec):
    rows: tuple[CompatibilityRow, ...]

    @model_validator(mode="after")
    def _one_row_for_one_question(self) -> "CompatibilityTable":
        keys = Counter((row.form, row.engine, row.device) for row in self.rows)
        repeated = sorted(", ".join(key) for key, count in keys.items() if count > 1)
        if repeated:
            raise ValueError(f"more than one row for {'; '.join(repeated)}")
        return self


@cache
def rows() -> tuple[CompatibilityRow, ...]:
    text = _FILE.read_text(encoding="utf-8")
    return yaml_file.parse(
        text, CompatibilityTable, name=_FILE.name, outline="`rows:` and a list", error=ValueError
    ).rows


def look_up(form: str, engine: str, device: Device, at_load: AtLoad | None = None) -> CompatibilityRow | None:
    """The most special row that holds. None: unknown, so it is tried."""
    if at_load is not None and at_load.engine != engine:
        return CompatibilityRow(
            form=form,
            engine=engine,
            device=device,
            verdict=Verdict.DOES_NOT_RUN,
            why=f"Only {at_load.engine} compresses it at load; another engine would run the model unquantized.",
            refuse=True,
            checked="follows from the recipe",
        )
    known = {row.form: row for row in rows() if (row.engine, row.device) == (engine, device)}
    return next((known[name] for name in _from_the_special_to_the_general(form) if name in known), None)


def on_processor(engine: str, level: Level | None) -> Iterator[str]:
    """What a processor of this level means for an engine, each thing once with its forms: `dense, in float32: …`."""
    forms: dict[Lacking, list[str]] = {}
    for row in rows():
        if (row.engine, row.device) == (engine, "cpu") and not row.refuse:
            for one in row.on(level):
                forms.setdefault(one, []).append(row.form)
    for one, alike in forms.items():
        yield f"{', '.join(alike)}{f', in {one.dtype}' if one.dtype else ''}: {one.why}"


def _from_the_special_to_the_general(form: str) -> Iterator[str]:
    while form:
        yield form
        form = form.rpartition("/")[0]
