"""May two studies be compared? Every fact that moves figures must be the same, or be allowed by name."""

from collections.abc import Callable, Iterable, Iterator, Sequence

from bitbench.analysis.results.comparison import Difference
from bitbench.analysis.results.facts import Fact
from bitbench.records.host import TELLING_FACTS
from bitbench.records.study_records import StudyRecords
from bitbench.records.trial import InstanceRecord
from bitbench.study.plan import Config
from bitbench.study.secrets import is_secret

Shown = str | None  # None: not known


def differences(
    before: StudyRecords, after: StudyRecords, pairs: Iterable[tuple[Config, Config]]
) -> tuple[list[Difference], list[Fact]]:
    """What differs between the sides, for the configs that are compared; and what neither side knows."""
    found: list[Difference] = []
    unknown: dict[Fact, bool] = {}
    for fact, subject, first, second in _facts(before, after, list(pairs)):
        if first == second:
            unknown[fact] = unknown.get(fact, True) and first is None
            continue
        unknown[fact] = False
        found.append(Difference(fact=fact, subject=subject, before=first or "unknown", after=second or "unknown"))
    return found, [fact for fact, is_unknown in unknown.items() if is_unknown]


def _facts(
    before: StudyRecords, after: StudyRecords, pairs: Sequence[tuple[Config, Config]]
) -> Iterator[tuple[Fact, str, Shown, Shown]]:
    yield Fact.TOOL, "", tool_of(before), tool_of(after)
    for name in TELLING_FACTS:
        yield Fact.HOST, name, before.lock.host.shown(name), after.lock.host.shown(name)
    packages = [side.lock.environments for side in (before, after)]
    for environment in packages[0].keys() & packages[1].keys():
        for package in sorted(packages[0][environment].keys() | packages[1][environment].keys()):
            first, second = (side[environment].get(package) for side in packages)
            yield Fact.ENVIRONMENT, f"{environment}: {package}", first, second
    for config, other in pairs:
        yield Fact.KERNEL, other.name, kernels_of(before, config), kernels_of(after, other)
        for fact, read in CONFIG_FACTS.items():
            yield fact, other.name, read(before, config), read(after, other)


def tool_of(side: StudyRecords) -> str:
    """With our version: the client is part of what is measured."""
    origin = side.plan.imported_from
    return origin.tool if origin else f"bitbench {side.lock.bitbench or ''}".strip()


def _of_instances(read: Callable[[InstanceRecord], Iterable[str]]) -> Callable[[StudyRecords, Config], Shown]:
    """What the instances of a config say, each thing once."""

    def shown(side: StudyRecords, config: Config) -> Shown:
        said = (word for record in side.instances if record.config == config for word in read(record))
        return ", ".join(sorted(set(said))) or None

    return shown


def kernels_of(side: StudyRecords, config: Config) -> Shown:
    """The kernel of each kind of layers, or the engine's words where it does not tell them apart."""
    return _CHOICES(side, config) or _WORDS(side, config)


_CHOICES = _of_instances(lambda record: (choice.shown for choice in record.facts.kernel_choices))
_WORDS = _of_instances(lambda record: record.facts.kernels)


def _arguments(side: StudyRecords, config: Config) -> Shown:
    setup = side.plan.study.engine(config.engine)
    dtype = side.plan.chosen_dtypes.get(config)
    environment = {f"${name}": value for name, value in setup.env.items()}
    given = {**({"dtype": dtype} if dtype else {}), **setup.args, **environment}
    chosen = {name: value for name, value in given.items() if not is_secret(name)}  # a key changes no figure
    if side.was_running(config):
        chosen.pop("url", None)  # nor does the port that a server listens on
    if not chosen and side.plan.imported_from:
        return None
    return ", ".join(f"{name}={value}" for name, value in sorted(chosen.items())) or "none"


def _artifact(side: StudyRecords, config: Config) -> Shown:
    return side.plan.variant(config.variant).content_hash


CONFIG_FACTS: dict[Fact, Callable[[StudyRecords, Config], Shown]] = {
    Fact.ENGINE_VERSION: _of_instances(
        lambda record: [record.facts.engine_version] if record.facts.engine_version is not None else []
    ),
    Fact.ARGUMENTS: _arguments,
    Fact.PREFIX_CACHING: _of_instances(
        lambda record: [] if record.facts.prefix_caching is None else ["on" if record.facts.prefix_caching else "off"]
    ),
    Fact.ARTIFACT: _artifact,
}
