"""`bitbench quick`: what is here to be measured without a question, and the study that does it in two minutes.

A server that runs already goes first: it is what its owner wants to know about. Else it is the installed engines.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from bitbench.engines import registry
from bitbench.engines.endpoint import EndpointUnusable, key_from, offered_models
from bitbench.engines.environments.installed import list_environments
from bitbench.measure.compatibility import look_up
from bitbench.measure.endpoint_check import first_contact
from bitbench.measure.load_study import LoadOptions, PreparedLoad, endpoint_arguments, study_of, workloads_of
from bitbench.measure.readiness import readiness
from bitbench.models import library
from bitbench.models.fetch import ENVIRONMENT
from bitbench.ports import Endpoint, LoadClient
from bitbench.quantize.backends import MAKERS
from bitbench.quantize.catalog import built_in_recipes
from bitbench.study.environment import Device
from bitbench.study.study import EngineSetup, Measure, Study
from bitbench.study.variant import is_dense
from bitbench.study.workload import Workload
from bitbench.util.errors import LoadError, NotReadyError
from bitbench.util.linux import require_linux
from bitbench.util.safe_files import SafeFolder

# As vLLM, llama.cpp, Ollama, LM Studio and SGLang have them unless told otherwise.
PORTS = (8000, 8080, 11434, 1234, 30000)
HOST = "127.0.0.1"
ANSWER_LIMIT_S = 1.0  # for the list of models of a server on this machine
KEY_VARIABLE = "BITBENCH_QUICK_KEY"  # the user has not named the server, so the usual key is not sent to it
STREAMS = (1, 8)
TRIALS = 3
POINT_S = 12.0  # of one trial: with two points and three trials, 72 s and the first contact
SLOW_S = 4.0  # for one answer: from here on one trial per point is all that two minutes allow
FIRST_MODEL = "smollm2-135m"
BUDGET_S = 90.0
ANSWER_TOKENS = 32
_PROMPTS = tuple(
    f"Explain in about {count} words what a {topic} is, how it works and what people use it for."
    for count in (50, 100, 150, 200)
    for topic in ("compiler", "bicycle", "telescope", "bridge", "violin", "harbour", "battery", "greenhouse")
)


@dataclass(frozen=True)
class FoundServer:
    url: str
    models: tuple[str, ...]


def find_servers() -> tuple[FoundServer, ...]:
    """OpenAI-compatible ones on this machine that list a model; loopback only. Raises PlatformError where they could
    not be measured."""
    require_linux()
    found = []
    for port in PORTS:
        url = f"http://{HOST}:{port}"
        try:
            models = offered_models(Endpoint(url, "", key_from(KEY_VARIABLE)), ANSWER_LIMIT_S)
        except EndpointUnusable:
            continue
        if models:
            found.append(FoundServer(url, models))
    return tuple(found)


def prepare_server(server: FoundServer, client: LoadClient, folder: Path) -> PreparedLoad:
    """One and eight streams. Token ids of an exact length where the server takes them, as vLLM, SGLang and llama.cpp
    do; else chats, whose answers end where the model ends them. Raises LoadError where it answers neither."""
    exact = LoadOptions(output_tokens=ANSWER_TOKENS)
    try:
        return _prepare(server, exact, client, folder)
    except LoadError:
        prompts = SafeFolder(folder).write("prompts.txt", "\n\n".join(_PROMPTS) + "\n")
        chats = replace(exact, api="chat", text=prompts, output_forced=False)
        return _prepare(server, chats, client, folder)


def engine_study(home: Path, device: Device) -> Study:
    """The installed engines on the smallest model that is downloaded, unquantized. Raises NotReadyError with the
    commands that are missing."""
    installed = {found.name for found in list_environments(home) if found.complete}
    ready = {
        name: engine
        for name, engine in registry.engines().items()
        if engine.needs_model and (engine.environment is None or engine.environment in installed)
    }
    downloaded = [model for model in library.list_models(home) if model.path is not None]
    if not ready or not downloaded:
        raise NotReadyError(_nothing_here(home, has_engine=bool(ready), has_model=bool(downloaded)))
    smallest = min(downloaded, key=lambda model: model.size_bytes or 0)
    return Study(
        name="quick",
        description="A first look: which installed engine is the fastest, one request at a time.",
        models=(smallest.name,),
        recipes=tuple(_dense_recipes(list(ready), installed, device)),
        engines=tuple(EngineSetup(name=name, engine=name, args=dict(ready[name].quick_args)) for name in ready),
        workloads=(Workload(name="single", concurrency=1, input_tokens=128, output_tokens=ANSWER_TOKENS),),
        measure=Measure(budget=BUDGET_S),
    )


def new_folder() -> Path:
    return Path(f"quick-{datetime.now().astimezone():%Y%m%d-%H%M%S}")


def requests_of(streams: int, latency_s: float) -> int:
    """Of one trial, so that it ends in time also where eight streams take four times as long as one."""
    slowdown = 1.0 if streams == 1 else 4.0
    rounds = int(POINT_S / max(slowdown * latency_s, 1e-6))
    return streams * max(2 if streams == 1 else 1, min(rounds, 16))


def _prepare(server: FoundServer, options: LoadOptions, client: LoadClient, folder: Path) -> PreparedLoad:
    arguments = endpoint_arguments(
        url=server.url, model=server.models[0], api_key_env=KEY_VARIABLE, ignore_eos=options.output_forced
    )
    contact = first_contact(arguments, workloads_of(options)[0], client)
    options = replace(options, trials=TRIALS if contact.latency_s < SLOW_S else 1)
    points = tuple(
        point
        for streams in STREAMS
        for point in workloads_of(
            replace(options, concurrency=(streams,), requests=requests_of(streams, contact.latency_s)), folder
        )
    )
    return PreparedLoad(study_of(options, arguments, points), None, contact, folder)


def _dense_recipes(engines: Sequence[str], installed: set[str], device: Device) -> list[str]:
    """The model as it is, in each kind of file that one of the engines runs and that can be made here."""
    return [
        recipe.name
        for recipe in built_in_recipes()
        if is_dense(recipe.form)
        and (recipe.backend not in MAKERS or MAKERS[recipe.backend].environment in installed)
        and any((row := look_up(recipe.form, engine, device)) is None or not row.refuse for engine in engines)
    ]


def _nothing_here(home: Path, *, has_engine: bool, has_model: bool) -> str:
    needed = [] if has_engine else [ENVIRONMENT]
    commands = readiness(needed, [] if has_model else [FIRST_MODEL], home).commands
    return (
        f"nothing to measure here: no OpenAI-compatible server answers on {HOST} (ports "
        f"{', '.join(map(str, PORTS))}), and no engine with a model is installed; start a server, or: "
        f"{' && '.join(commands)}"
    )
