"""The types of a study file after it has been read and checked. The JSON Schema is made from
them.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
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

from bitbench.feature import collect_feature_study_keys, handle_feature_errors
from bitbench.study.base import RECORDED, Bytes, Fraction, Seconds, Spec
from bitbench.study.environment import find_venv_folder
from bitbench.study.metrics import PrimaryMetricName, find_metric
from bitbench.study.objective import Objectives
from bitbench.study.quality import Quality
from bitbench.study.workload import BUILT_IN_WORKLOADS, Workload

STUDY_FORMAT: Literal[1] = 1  # 1: first published form

Name = Annotated[str, Field(min_length=1, max_length=80, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.+-]*$")]


def _name_null_engine(value: object) -> object:
    """Return "null" for None: YAML reads a bare `null` as nothing, but it is an engine's name."""
    if value is None:
        return "null"
    return value


EngineName = Annotated[str, BeforeValidator(_name_null_engine)]
Argument = bool | int | float | str


def _check_full_path(value: str) -> str:
    if not Path(value).expanduser().is_absolute():
        raise ValueError(
            f"{value} is relative; give the full path of a virtual environment, or of its python"
        )
    return value


PythonPath = Annotated[str, AfterValidator(_check_full_path)]
KvCacheTypes = Annotated[tuple[str, ...], Field(min_length=1)]
MOST_POINTS = 2_000  # of a study: at five starts of a minute each they take a machine a week
MOST_SETUPS = 1_000  # of one engine, by the lists in its arguments


_PYTHON = (
    "a virtual environment that has the engine, or its python, instead of the one that bitbench "
    "made"
)


def _expand_name(value: object) -> object:
    """Expand a name to an engine, and add the default name: `vllm`, or `vllm old` for /opt/old."""
    if value is None or isinstance(value, str):
        value = {"engine": value}
    if isinstance(value, dict) and "name" not in value and "engine" in value:
        name = value["engine"]
        if folder := _find_folder_name(value.get("python")):
            name = f"{name} {folder}"
        value = {**value, "name": name}
    return value


def _find_folder_name(python: object) -> str | None:
    """Return the name of a virtual environment's folder, given its path or its Python."""
    if not isinstance(python, str):
        return None
    return find_venv_folder(Path(python)).name or None


# Types of a KV cache of 16 bits or more, as engines call them. All others are quantized.
_WHOLE_CACHES = frozenset({"auto", "f32", "f16", "bf16", "float16", "bfloat16"})
FEWEST_BLOCKS = 3  # two blocks cannot show which config varies more, so they support no claim


class EngineSetup(Spec):
    """An engine with its arguments. Two setups of one engine are compared like two engines."""

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

    _short_form = model_validator(mode="before")(_expand_name)

    @property
    def settings(self) -> dict[str, Argument]:
        """Return the arguments, and the type of the KV cache if one is chosen."""
        if self.kv_cache:
            return {"kv_cache": self.kv_cache, **self.args}
        return dict(self.args)

    @property
    def has_quantized_cache(self) -> bool:
        return self.kv_cache is not None and self.kv_cache not in _WHOLE_CACHES

    def environment(self, usual: str | None) -> str | None:
        """Return the path of the user's environment, or `usual`, the name of the engine's one."""
        if self.python is None:
            return usual
        return str(Path(self.python).expanduser())


class EngineAxes(Spec):
    """An engine as a study file writes it. Each list is an axis, each combination a setup.

    The name of a setup tells its position on the axes, such as `vllm kv=fp8`. null in a list
    means without that argument.
    """

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

    _short_form = model_validator(mode="before")(_expand_name)

    @model_validator(mode="after")
    def _check_combinations(self) -> "EngineAxes":
        axes = (self.kv_cache, *self.args.values())
        count = prod(len(values) for values in axes if isinstance(values, tuple))
        if count > MOST_SETUPS:
            raise ValueError(f"its lists have {count:,} combinations; at most {MOST_SETUPS:,}")
        return self

    def iter_setups(self) -> Iterator[EngineSetup]:
        """Yield a setup for each combination."""
        axes: dict[str, tuple[Argument | None, ...]] = {}
        for name, values in self.args.items():
            if isinstance(values, tuple):
                axes[name] = values
        types = self.kv_cache
        cache_types = types if isinstance(types, tuple) else (types,)
        for cache_type, values in product(cache_types, product(*axes.values())):
            yield self._make_setup(cache_type, dict(zip(axes, values, strict=True)))

    def _make_setup(
        self, cache_type: str | None, chosen: Mapping[str, Argument | None]
    ) -> EngineSetup:
        position = dict(chosen)
        if isinstance(self.kv_cache, tuple):
            position = {"kv": cache_type, **chosen}
        parts = [f"{name}={_format_setting(value)}" for name, value in position.items()]
        args: dict[str, Argument] = {}
        for name, value in self.args.items():
            argument = chosen.get(name, value)
            if argument is not None and not isinstance(argument, tuple):
                args[name] = argument
        return EngineSetup(
            name=" ".join([self.name, *parts]),
            engine=self.engine,
            args=args,
            env=self.env,
            kv_cache=cache_type,
            python=self.python,
        )


def _format_setting(value: Argument | None) -> str:
    """Return a value as a part of a setup's name.

    A JSON object, such as vLLM's speculative-config, is written by its values alone.
    """
    if value is None:
        return "unset"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, str) and value.startswith("{"):
        try:
            content = json.loads(value)
        except (ValueError, RecursionError):
            return value
        return ",".join(map(str, content.values()))
    return str(value)


_AXES = TypeAdapter(tuple[EngineAxes, ...])


def _expand_combinations(value: object, info: ValidationInfo) -> object:
    """Expand the lists of a study file, so that mistakes keep their position. Keep setups."""
    if isinstance(value, (list, tuple)) and all(isinstance(item, EngineSetup) for item in value):
        return value
    setups: list[EngineSetup] = []
    for axes in _AXES.validate_python(value, context=info.context):
        setups += axes.iter_setups()
    return setups


class Count(Spec):
    """A number of at least `min`, which grows up to `max`.

    It grows while the interval is too wide and the budget lasts.
    """

    min: int = Field(ge=1, le=1000)
    max: int = Field(ge=1, le=1000)

    @model_validator(mode="before")
    @classmethod
    def _expand_number(cls, value: object) -> object:
        if isinstance(value, int) and not isinstance(value, bool):
            return {"min": value, "max": value}
        return value

    @model_validator(mode="after")
    def _check_order(self) -> "Count":
        if self.max < self.min:
            raise ValueError(f"max ({self.max}) is smaller than min ({self.min})")
        return self


class Interleaving(StrEnum):
    AUTO = "auto"
    ROUNDS = "rounds"
    VISITS = "visits"


# Starts of each config if a study with a budget gives no number. One start has no variation.
STARTS_OF_A_BUDGET = Count(min=2, max=64)


class Measure(Spec):
    """The number of starts and trials, or a budget that they are planned from."""

    budget: Seconds | None = Field(
        default=None, gt=0, description="wall time for speed; starts and rounds are planned from it"
    )
    starts: Count = Field(
        default=Count(min=3, max=12),
        description="starts of each config, one per block; a number or {min, max}; more than min "
        "while it decides",
    )
    trials: Count = Field(
        default=Count(min=3, max=10),
        description="trials of each workload per start; a number or {min, max} for a budget to "
        "choose from",
    )
    schedule: Interleaving = Field(
        default=Interleaving.AUTO,
        description="rounds: all configs resident, trials alternate; visits: one config after the "
        "other; auto: rounds where memory and the engines allow it",
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
    def _set_default_starts(cls, value: object) -> object:
        """Plan the starts from the budget, unless the study gives a number."""
        if isinstance(value, dict) and value.get("budget") is not None:
            return {"starts": STARTS_OF_A_BUDGET} | value
        return value

    def replace_budget(self, budget_s: float) -> "Measure":
        """Return the same settings with a budget in seconds."""
        return Measure.model_validate(self.model_dump(exclude_unset=True) | {"budget": budget_s})

    @field_validator("metric", mode="before")
    @classmethod
    def _normalize_metric(cls, value: object) -> object:
        if isinstance(value, str) and (metric := find_metric(value)):
            return metric.name
        return value


class Timeouts(Spec):
    """The limits of a point. Beyond them it ends with a typed outcome."""

    start: Seconds = Field(default=600.0, gt=0, description="from start to ready")
    request: Seconds = Field(default=600.0, gt=0, description="for one request")
    stall: Seconds = Field(
        default=120.0, gt=0, description="between two tokens of one stream, or before the first"
    )
    memory: Bytes | None = Field(default=None, gt=0, description="resident memory of one instance")


class Checkpoint(Spec):
    """A variant that somebody else made, compared with variants that recipes make."""

    of: str = Field(
        description="the model that it was made from, as `models` spells it; its quality is "
        "compared to it"
    )
    checkpoint: str = Field(
        description="a hub id (ORG/NAME@REVISION, ORG/NAME:TYPE for GGUF), or a folder"
    )
    name: Name | None = Field(
        default=None, description="how reports call it; by what it holds unless given"
    )


class StudySection(Spec):
    """The part of a study file that belongs to a feature, under the feature's key."""

    description: ClassVar[str]  # of the key, in the JSON Schema of study files
    # the command that such a file is for, instead of `bitbench run`
    run_by: ClassVar[str | None] = None
    may_change: ClassVar[bool] = False  # between two runs into the same folder
    on_one_machine: ClassVar[str | None] = None  # why it cannot run on several

    def refuse(self, study: "Study") -> str | None:  # noqa: ARG002
        """Return the reason why it does not go with the rest of the file, or None."""
        return None


S = TypeVar("S", bound=StudySection)


@cache
def make_feature_keys() -> type[Spec]:
    """Return a model with a field for each key that a feature reads."""
    fields: dict[str, Any] = {}
    for key, offer in collect_feature_study_keys().items():
        with handle_feature_errors(offer.feature):
            kind = offer.load()
            fields[key] = (kind | None, Field(default=None, description=kind.description))
    return create_model("FeatureKeys", __base__=Spec, **fields)


class Study(Spec):
    """One question about models × recipes × engines × workloads.

    Features add keys, each a `StudySection`.
    """

    model_config = ConfigDict(extra="allow")  # unknown keys are refused before

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
        BeforeValidator(_expand_combinations, json_schema_input_type=tuple[EngineAxes, ...]),
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
    def _expand_built_ins(cls, value: object) -> object:
        if not isinstance(value, (list, tuple)):
            return value
        return list(map(_find_built_in, value))

    @field_validator("models", "recipes", mode="before")
    @classmethod
    def _wrap_single(cls, value: object) -> object:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_question(self) -> "Study":
        if not self.workloads and self.quality is None:
            raise ValueError("it asks nothing: give `workloads`, `quality`, or both")
        return self

    @model_validator(mode="after")
    def _check_size(self) -> "Study":
        variants = max(len(self.models), 1) * len(self.recipes) + len(self.variants)
        points = variants * len(self.engines) * max(len(self.workloads), 1)
        if points > MOST_POINTS:
            raise ValueError(
                f"models × recipes × engines × workloads are {points:,} points; at most "
                f"{MOST_POINTS:,}, which take one machine a week: make several studies of it"
            )
        return self

    @model_validator(mode="after")
    def _check_names(self) -> "Study":
        names_by_field = (
            ("engines", [setup.name for setup in self.engines]),
            ("workloads", [workload.name for workload in self.workloads]),
            ("models", list(self.models)),
            ("recipes", list(self.recipes)),
            ("variants", [variant.checkpoint for variant in self.variants]),
        )
        for field, names in names_by_field:
            repeated = sorted(name for name, count in Counter(names).items() if count > 1)
            if repeated:
                raise ValueError(
                    f"{field}: {', '.join(repeated)} appears more than once; give each its own name"
                )
        return self

    @model_validator(mode="after")
    def _check_variants(self) -> "Study":
        for variant in self.variants:
            if variant.of not in self.models:
                raise ValueError(
                    f"variants: {variant.checkpoint} is of {variant.of}, which `models` must "
                    "name, too"
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _check_feature_keys(cls, value: object, info: ValidationInfo) -> object:
        """Check the keys of features. An unknown key is an error, but not in a record.

        A record may have keys of features that are not installed. They are kept as they are.
        """
        if not isinstance(value, dict):
            return value
        fields: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for key, content in value.items():
            if key in cls.model_fields:
                fields[key] = content
            elif content is not None:
                others[key] = content
        model = make_feature_keys()
        checked = others
        if info.context is RECORDED:
            checked = {key: others[key] for key in others if key in model.model_fields}
        sections = model.model_validate(checked, context=info.context)
        return {**fields, **others, **{key: getattr(sections, key) for key in checked}}

    @model_validator(mode="after")
    def _check_features(self) -> "Study":
        for key, section in self.sections.items():
            if reason := section.refuse(self):
                raise ValueError(f"{key}: {reason}")
        return self

    @classmethod
    def __get_pydantic_json_schema__(
        cls, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        json_schema = handler(schema)
        study_schema = handler.resolve_ref_schema(json_schema)
        study_schema["additionalProperties"] = False
        for key, field in make_feature_keys().model_fields.items():
            kind = collect_feature_study_keys()[key].load()
            study_schema["properties"][key] = {
                **handler(kind.__pydantic_core_schema__),
                "description": field.description,
            }
        return json_schema

    @property
    def sections(self) -> dict[str, StudySection]:
        """Return the sections of installed features by key."""
        extra = self.model_extra or {}
        return {key: part for key, part in extra.items() if isinstance(part, StudySection)}

    def section(self, kind: type[S]) -> S | None:
        """Return the section of a feature, or None if the file has none."""
        for content in self.sections.values():
            if isinstance(content, kind):
                return content
        return None

    def workload(self, name: str) -> Workload:
        return next(workload for workload in self.workloads if workload.name == name)

    def engine(self, name: str) -> EngineSetup:
        return next(setup for setup in self.engines if setup.name == name)


def _find_built_in(item: object) -> object:
    """Return the built-in workload of a name, and anything else as it is."""
    if not isinstance(item, str):
        return item
    if item not in BUILT_IN_WORKLOADS:
        raise ValueError(
            f"no built-in workload is called {item!r}; "
            f"built in are {', '.join(BUILT_IN_WORKLOADS)}, or write out name, concurrency, "
            "input_tokens, output_tokens"
        )
    return BUILT_IN_WORKLOADS[item]
