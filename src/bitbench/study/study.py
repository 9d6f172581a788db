"""What a study file says, once it has been read and checked. The JSON Schema is made from these types."""

import json
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from functools import cache
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    TypeAdapter,
    ValidationInfo,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import CoreSchema

from bitbench.feature import feature_errors_as_warnings, study_keys_of_features
from bitbench.study.base import RECORDED, Bytes, Fraction, Seconds, Spec
from bitbench.study.environment import venv_folder
from bitbench.study.metrics import PrimaryMetricName, find_metric
from bitbench.study.objective import Objectives
from bitbench.study.quality import Quality
from bitbench.study.workload import BUILT_IN_WORKLOADS, Workload

STUDY_FORMAT: Literal[1] = 1  # 1: first published form

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]
# YAML reads a bare `null` as nothing; here it is the name of an engine.
EngineName = Annotated[str, BeforeValidator(lambda value: "null" if value is None else value)]
Argument = bool | int | float | str


def _full_path(value: str) -> str:
    if not Path(value).expanduser().is_absolute():
        raise ValueError(
            f"{value} is relative; give the full path of a virtual environment, or of its python"
        )
    return value


PythonPath = Annotated[str, AfterValidator(_full_path)]
KvCacheTypes = Annotated[tuple[str, ...], Field(min_length=1)]
MOST_POINTS = 2_000  # of a study: at five starts of a minute each they take a machine a week
MOST_SETUPS = 1_000  # of one engine, by the lists in its arguments


_PYTHON = "a virtual environment that has the engine, or its python, instead of the one that bitbench made"


def _named(value: object) -> object:
    """With a name: `vllm`, or `vllm old` of the environment /opt/old."""
    if value is None or isinstance(value, str):
        value = {"engine": value}
    if isinstance(value, dict) and "name" not in value and "engine" in value:
        which = _folder_name(value.get("python"))
        name = f"{value['engine']} {which}" if which else value["engine"]
        value = {**value, "name": name}
    return value


def _folder_name(python: object) -> str | None:
    """Of a virtual environment, by its path or that of its python."""
    return venv_folder(Path(python)).name or None if isinstance(python, str) else None


# Types of a KV cache that round nothing but to 16 bits, as engines call them; all others are quantized.
_WHOLE_CACHES = frozenset({"auto", "f32", "f16", "bf16", "float16", "bfloat16"})
FEWEST_BLOCKS = 3  # of two no data can say which config varies more, so nothing is claimed


class EngineSetup(Spec):
    """An engine with the arguments it is started with. Two setups of one engine are compared like two engines."""

    name: EngineName = Field(description="how reports call it; the engine's name unless given")
    engine: EngineName = Field(description="which engine it is: vllm, transformers, null, …")
    args: dict[str, Argument] = Field(
        default_factory=dict, description="arguments, as the engine spells them"
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables of its process"
    )
    kv_cache: str | None = Field(
        default=None, description="type of its KV cache; the engine's own choice unless given"
    )
    python: PythonPath | None = Field(default=None, description=_PYTHON)

    _short_form = model_validator(mode="before")(_named)

    @property
    def settings(self) -> dict[str, Argument]:
        """Its arguments, and the type of its KV cache where one is chosen."""
        return {"kv_cache": self.kv_cache, **self.args} if self.kv_cache else dict(self.args)

    @property
    def has_quantized_cache(self) -> bool:
        return self.kv_cache is not None and self.kv_cache not in _WHOLE_CACHES

    def environment(self, usual: str | None) -> str | None:
        """Name of the environment that it runs in, or path of somebody else's; `usual` is that of its engine."""
        return str(Path(self.python).expanduser()) if self.python is not None else usual


class EngineAxes(Spec):
    """An engine as a study file names it. Each list is an axis: every combination is a setup of its own, whose name
    says where on the axes it is, such as `vllm kv=fp8`. Nothing in a list (null) means without that argument."""

    name: EngineName = Field(description="how reports call it; the engine's name unless given")
    engine: EngineName = Field(description="which engine it is: vllm, transformers, null, …")
    args: dict[str, Argument | Annotated[tuple[Argument | None, ...], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="arguments, as the engine spells them; with a list, a setup for each value",
    )
    env: dict[str, str] = Field(
        default_factory=dict, description="environment variables of its process"
    )
    kv_cache: str | KvCacheTypes | None = Field(
        default=None,
        description="type of its KV cache, as the engine spells it; with a list, a setup for each",
    )
    python: PythonPath | None = Field(default=None, description=_PYTHON)

    _short_form = model_validator(mode="before")(_named)

    @model_validator(mode="after")
    def _are_few(self) -> "EngineAxes":
        axes = (self.kv_cache, *self.args.values())
        count = prod(len(values) for values in axes if isinstance(values, tuple))
        if count > MOST_SETUPS:
            raise ValueError(f"its lists have {count:,} combinations; at most {MOST_SETUPS:,}")
        return self

    def setups(self) -> Iterator[EngineSetup]:
        """Each combination."""
        types = self.kv_cache
        axes = {name: values for name, values in self.args.items() if isinstance(values, tuple)}
        for type, *values in product(
            types if isinstance(types, tuple) else (types,), *axes.values()
        ):
            chosen = dict(zip(axes, values, strict=True))
            place = {"kv": type, **chosen} if isinstance(types, tuple) else chosen
            args = {name: chosen.get(name, value) for name, value in self.args.items()}
            yield EngineSetup(
                name=" ".join(
                    [self.name, *(f"{name}={_shown(value)}" for name, value in place.items())]
                ),
                engine=self.engine,
                args={
                    name: value
                    for name, value in args.items()
                    if not (value is None or isinstance(value, tuple))
                },
                env=self.env,
                kv_cache=type,
                python=self.python,
            )


def _shown(value: Argument | None) -> str:
    """As a part of a setup's name: an object in JSON, as vLLM's speculative-config is one, by its values alone."""
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    try:
        content = json.loads(value) if isinstance(value, str) and value.startswith("{") else None
    except (ValueError, RecursionError):
        content = None
    return ",".join(map(str, content.values())) if isinstance(content, dict) else str(value)


_AXES = TypeAdapter(tuple[EngineAxes, ...])


def _each_combination(value: object, info: ValidationInfo) -> object:
    """The lists of a study file, expanded; its mistakes keep their place in the file. Setups are left as they are."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, EngineSetup) for item in value):
        return value
    return [
        setup
        for axes in _AXES.validate_python(value, context=info.context)
        for setup in axes.setups()
    ]


class Count(Spec):
    """At least `min`; more, up to `max`, while the interval is wider than the target and the budget lasts."""

    min: int = Field(ge=1, le=1000)
    max: int = Field(ge=1, le=1000)

    @model_validator(mode="before")
    @classmethod
    def _one_number_means_exactly(cls, value: object) -> object:
        return (
            {"min": value, "max": value}
            if isinstance(value, int) and not isinstance(value, bool)
            else value
        )

    @model_validator(mode="after")
    def _ordered(self) -> "Count":
        if self.max < self.min:
            raise ValueError(f"max ({self.max}) is smaller than min ({self.min})")
        return self


class Interleaving(StrEnum):
    AUTO = "auto"
    ROUNDS = "rounds"
    VISITS = "visits"


# Of each config, where a study asks for no number: one start has no variation.
STARTS_OF_A_BUDGET = Count(min=2, max=64)


class Measure(Spec):
    """How often, or how long: with a budget, starts and rounds are planned from it."""

    budget: Seconds | None = Field(
        default=None, gt=0, description="wall time for speed; starts and rounds are planned from it"
    )
    starts: Count = Field(
        default=Count(min=3, max=12),
        description="starts of each config, one per block; a number or {min, max}; more than min while it decides",
    )
    trials: Count = Field(
        default=Count(min=3, max=10),
        description="trials of each workload per start; a number or {min, max} for a budget to choose from",
    )
    schedule: Interleaving = Field(
        default=Interleaving.AUTO,
        description="rounds: all configs resident, trials alternate; visits: one config after the other; "
        "auto: rounds where memory and the engines allow it",
    )
    equal_within: Fraction | None = Field(
        default=None,
        gt=0,
        lt=1,
        description="a ratio known to lie within this of 1 is decided: equal",
    )
    confidence: Fraction = Field(default=0.95, gt=0.5, lt=1)
    metric: PrimaryMetricName = Field(
        default="output_throughput",
        description="the metric that is ranked and whose interval decides",
    )

    @model_validator(mode="before")
    @classmethod
    def _a_budget_counts_starts(cls, value: object) -> object:
        """Unless the study does."""
        if isinstance(value, dict) and value.get("budget") is not None:
            return {"starts": STARTS_OF_A_BUDGET} | value
        return value

    def with_budget(self, budget_s: float) -> "Measure":
        return Measure.model_validate(self.model_dump(exclude_unset=True) | {"budget": budget_s})

    @field_validator("metric", mode="before")
    @classmethod
    def _any_spelling(cls, value: object) -> object:
        metric = find_metric(value) if isinstance(value, str) else None
        return metric.name if metric is not None else value


class Timeouts(Spec):
    """What a point may take before it becomes a typed outcome."""

    start: Seconds = Field(default=600.0, gt=0, description="from start to ready")
    request: Seconds = Field(default=600.0, gt=0, description="for one request")
    stall: Seconds = Field(
        default=120.0, gt=0, description="between two tokens of one stream, or before the first"
    )
    memory: Bytes | None = Field(default=None, gt=0, description="resident memory of one instance")


class Checkpoint(Spec):
    """A variant that somebody else made: it stands beside those that recipes make of its model."""

    of: str = Field(
        description="the model that it was made from, as `models` spells it; its quality is compared to it"
    )
    checkpoint: str = Field(
        description="a hub id (ORG/NAME@REVISION, ORG/NAME:TYPE for GGUF), or a folder"
    )
    name: Name | None = Field(
        default=None, description="how reports call it; by what it holds unless given"
    )


class StudySection(Spec):
    """What a study file says to a feature, under the feature's own key."""

    description: ClassVar[str]  # of the key, in the JSON Schema of study files
    run_by: ClassVar[str | None] = (
        None  # the command that such a file is for, instead of `bitbench run`
    )
    may_change: ClassVar[bool] = False  # between two runs into the same folder
    on_one_machine: ClassVar[str | None] = None  # why it cannot be run on several, where that is so

    def refuse(self, study: "Study") -> str | None:  # noqa: ARG002
        """Say why it does not go with the rest of the file; None where it does."""
        return None


S = TypeVar("S", bound=StudySection)


@cache
def feature_keys() -> type[Spec]:
    """Make a model with a field for each key that a feature reads."""
    fields: dict[str, Any] = {}
    for key, offer in study_keys_of_features().items():
        with feature_errors_as_warnings(offer.feature):
            kind = offer.load()
            fields[key] = (kind | None, Field(default=None, description=kind.description))
    return create_model("FeatureKeys", __base__=Spec, **fields)


class Study(Spec):
    """One question, asked of models × recipes × engines × workloads. Features add keys, each a `StudySection`."""

    model_config = ConfigDict(extra="allow")  # what belongs to no feature is refused before

    bitbench: Literal[1] = Field(default=STUDY_FORMAT, description="version of this file's format")
    name: Name
    description: str = ""
    models: tuple[str, ...] = Field(
        default=(),
        description="a name from `bitbench model list`, a hub id (ORG/NAME@REVISION), or a folder",
    )
    recipes: tuple[str, ...] = Field(
        default=("bf16",), min_length=1, description="how each model is compressed"
    )
    variants: tuple[Checkpoint, ...] = Field(
        default=(), description="quantized checkpoints of others"
    )
    engines: Annotated[
        tuple[EngineSetup, ...],
        BeforeValidator(_each_combination, json_schema_input_type=tuple[EngineAxes, ...]),
    ] = Field(min_length=1, description="a name, or `{engine, name, args, kv_cache, env, python}`")
    workloads: tuple[Workload, ...] = Field(
        default=(),
        description="built-in names, or a shape of your own; none where only quality is asked for",
    )
    objectives: Objectives = Field(
        default=(), description="what each trial is held against, and goodput counts"
    )
    quality: Quality | None = Field(
        default=None, description="what compression costs in quality; {} for the defaults"
    )
    measure: Measure = Measure()
    limits: Timeouts = Timeouts()
    baseline: str | None = Field(
        default=None,
        description="what the others are compared to: an engine, or `variant @ engine`",
    )
    seed: int = Field(default=0, ge=0, description="order and prompts follow from it")

    @field_validator("workloads", mode="before")
    @classmethod
    def _names_of_built_ins(cls, value: object) -> object:
        if not isinstance(value, (list, tuple)):
            return value
        return [_built_in(item) if isinstance(item, str) else item for item in value]

    @field_validator("models", "recipes", mode="before")
    @classmethod
    def _one_is_a_list_of_one(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _asks_something(self) -> "Study":
        if not self.workloads and self.quality is None:
            raise ValueError("it asks nothing: give `workloads`, `quality`, or both")
        return self

    @model_validator(mode="after")
    def _can_be_planned(self) -> "Study":
        variants = max(len(self.models), 1) * len(self.recipes) + len(self.variants)
        points = variants * len(self.engines) * max(len(self.workloads), 1)
        if points > MOST_POINTS:
            raise ValueError(
                f"models × recipes × engines × workloads are {points:,} points; at most {MOST_POINTS:,}, which take "
                "one machine a week: make several studies of it"
            )
        return self

    @model_validator(mode="after")
    def _names_are_unique(self) -> "Study":
        for field, names in (
            ("engines", [setup.name for setup in self.engines]),
            ("workloads", [workload.name for workload in self.workloads]),
            ("models", list(self.models)),
            ("recipes", list(self.recipes)),
            ("variants", [variant.checkpoint for variant in self.variants]),
        ):
            repeated = sorted(name for name, count in Counter(names).items() if count > 1)
            if repeated:
                raise ValueError(
                    f"{field}: {', '.join(repeated)} appears more than once; give each its own name"
                )
        return self

    @model_validator(mode="after")
    def _variants_have_their_model(self) -> "Study":
        for variant in self.variants:
            if variant.of not in self.models:
                raise ValueError(
                    f"variants: {variant.checkpoint} is of {variant.of}, which `models` must name, too"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _keys_of_features(cls, value: object, info: ValidationInfo) -> object:
        """Whatever is no field here belongs to a feature, or is a mistake; what a record has of a feature that is not
        installed is left alone."""
        if not isinstance(value, dict):
            return value
        own = {key: content for key, content in value.items() if key in cls.model_fields}
        others = {
            key: content for key, content in value.items() if key not in own and content is not None
        }
        model = feature_keys()
        known = {
            key: others[key]
            for key in others
            if key in model.model_fields or info.context is not RECORDED
        }
        sections = model.model_validate(known, context=info.context)
        return {**own, **others, **{key: getattr(sections, key) for key in known}}

    @model_validator(mode="after")
    def _suits_its_features(self) -> "Study":
        for key, section in self.sections.items():
            if reason := section.refuse(self):
                raise ValueError(f"{key}: {reason}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(schema)
        own = handler.resolve_ref_schema(json_schema)
        own["additionalProperties"] = False
        for key, field in feature_keys().model_fields.items():
            kind = study_keys_of_features()[key].load()
            own["properties"][key] = {
                **handler(kind.__pydantic_core_schema__),
                "description": field.description,
            }
        return json_schema

    @property
    def sections(self) -> dict[str, StudySection]:
        """Those of features that are installed, by key."""
        return {
            key: content
            for key, content in (self.model_extra or {}).items()
            if isinstance(content, StudySection)
        }

    def section(self, kind: type[S]) -> S | None:
        """Return what the file says to a feature; None where it says nothing."""
        return next(
            (content for content in self.sections.values() if isinstance(content, kind)), None
        )

    def workload(self, name: str) -> Workload:
        return next(workload for workload in self.workloads if workload.name == name)

    def engine(self, name: str) -> EngineSetup:
        return next(setup for setup in self.engines if setup.name == name)


def _built_in(name: str) -> Workload:
    if name not in BUILT_IN_WORKLOADS:
        raise ValueError(
            f"no built-in workload is called {name!r}; "
            f"built in are {', '.join(BUILT_IN_WORKLOADS)}, or write out name, concurrency, input_tokens, output_tokens"
        )
    return BUILT_IN_WORKLOADS[name]
