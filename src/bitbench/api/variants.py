"""Variants of a model from Python: creating one, a quick comparison, and the quality they lose.

`bitbench.quantize` and `bitbench.quality` are packages, so two functions have longer names than
their commands.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from bitbench.api.inputs import PathInput, parse_items
from bitbench.api.results import Results
from bitbench.endpoint.endpoint_run import (
    choose_endpoint_folder,
    choose_servers,
    is_server_url,
    measure_endpoint_study,
    prepare_running_server,
)
from bitbench.loadgen.workers import LoadWorkers
from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.models import library
from bitbench.planning.quick_study import MissingPart, create_missing_part, prepare_quick_study
from bitbench.planning.variants import make_ordered_variant, order_variant
from bitbench.ports import Observer
from bitbench.quantize import catalog
from bitbench.quantize.backends import QuantizeProgress
from bitbench.quantize.variants import MadeVariant
from bitbench.records.folder import StudyFolder
from bitbench.running import runner
from bitbench.running.offers import LogObserver
from bitbench.running.quality_study import QualityOptions, measure_quality_study
from bitbench.study.study_file import StudySource
from bitbench.util.errors import NotReadyError

_NAMES = TypeAdapter[tuple[str, ...]](tuple[str, ...])
_PATHS = TypeAdapter[tuple[Path, ...]](tuple[Path, ...])


def quantize_model(
    model: PathInput,
    recipe: PathInput,
    *,
    calibration: PathInput | None = None,
    seed: int = 0,
    observer: Observer | None = None,
) -> MadeVariant:
    """Create a quantized variant of a model, or return the existing one.

    Args:
        model: A name from `bitbench model list`, or a folder.
        recipe: A name from `bitbench recipes`, or a recipe file.
        calibration: A text file, folder or JSONL file, by default the recipe's.
        seed: The seed that chooses the text samples.
        observer: An object that is told of the progress, by default the logger `bitbench`.

    Returns:
        The variant, with its `path`, `weight_bytes` and `manifest`.

    Raises:
        BitbenchError: The model or the environment is missing, or the checkpoint has a defect.

    Example:
        variant = bitbench.quantize_model("smollm2-135m", "w4a16-gptq")
        print(variant.path)
    """
    watcher = observer or LogObserver()
    home = get_default_home()
    order = order_variant(
        library.resolve(str(model), home),
        catalog.find_recipe(str(recipe)),
        home,
        calibration=None if calibration is None else Path(calibration),
        seed=seed,
    )

    def show_progress(progress: QuantizeProgress) -> None:
        watcher.note(f"creating {order.folder_name}: {progress.place}")

    return make_ordered_variant(order, home, show_progress)


def quick(
    *names: PathInput,
    into: PathInput | None = None,
    create: bool = False,
    observer: Observer | None = None,
) -> Results:
    """Measure a server, or compare variants of a model, in a few minutes.

    Args:
        *names: The URL of a server, or nothing for one on this machine. Or a model and recipes, or
            checkpoints, as for `bitbench quick`.
        into: The results folder, by default quick-DATE.
        create: Whether to create missing environments, models and variants.
        observer: An object that is told of the progress, by default the logger `bitbench`.

    Returns:
        The results.

    Raises:
        BitbenchError: A name is unknown, no server answers, or something is missing and `create`
            is False.

    Example:
        bitbench.quick("smollm2-135m", "gguf-q4_0", create=True)
    """
    words = [str(name) for name in names]
    folder = choose_endpoint_folder()
    if into is not None:
        folder = Path(into)
    watcher = observer or LogObserver()
    workplace = Workplace()
    if not words or is_server_url(words[0]):
        measured = _measure_server(words, folder, watcher, workplace)
    else:
        source = _prepare_comparison(words, folder, watcher, workplace, create=create)
        measured = runner.measure_study(source, folder, watcher, workplace)
    return Results(measured, workplace.home)


def _measure_server(
    urls: Sequence[str], folder: Path, observer: Observer, workplace: Workplace
) -> StudyFolder:
    server = choose_servers(urls)[0]
    observer.note(f"measuring {server.url}")
    with LoadWorkers() as client:
        prepared = prepare_running_server(server, client, folder)
        return measure_endpoint_study(prepared, observer, client, workplace)


def _prepare_comparison(
    names: Sequence[str], folder: Path, observer: Observer, workplace: Workplace, *, create: bool
) -> StudySource:
    def confirm(missing: Sequence[MissingPart]) -> None:
        parts = ", ".join(f"{part.kind} {part.name}" for part in missing)
        if not create:
            raise NotReadyError(f"missing: {parts}; to create it, call quick with create=True")
        observer.note(f"creating {parts}")

    def create_part(part: MissingPart) -> None:
        create_missing_part(part, workplace, on_step=observer.note)

    return prepare_quick_study(names, workplace, folder, confirm=confirm, create=create_part)


def measure_quality(
    model: PathInput,
    recipes: PathInput | Sequence[str],
    into: PathInput | None = None,
    *,
    engine: str = "transformers",
    corpus: PathInput | Sequence[PathInput] = (),
    windows: int | None = None,
    window_tokens: int | None = None,
    tasks: str | Sequence[str] = (),
    seed: int = 0,
    observer: Observer | None = None,
) -> Results:
    """Measure the quality that recipes lose, without timing.

    Args:
        model: A name from `bitbench model list`, or a folder.
        recipes: One recipe or several, compared with bf16 (gguf-bf16 on llamacpp), which is added.
        into: The results folder, new or to resume, by default quality-MODEL.
        engine: The engine: transformers, vllm, sglang, llamacpp or openvino.
        corpus: Text or JSONL files to score, by default Python's own docs and code.
        windows: The windows of the corpus, by default 32.
        window_tokens: The tokens of a window, by default 256.
        tasks: "builtin", or tasks of lm-eval: names or YAML files.
        seed: The seed of the order.
        observer: An object that is told of the progress, by default the logger `bitbench`.

    Returns:
        The results, with a record of each variant in `quality`.

    Raises:
        BitbenchError: The engine or the model is missing, or quality cannot be measured.

    Example:
        results = bitbench.measure_quality("smollm2-135m", ["w8a8-rtn", "w4a16-gptq"])
        results.quality.to_pandas()
    """
    options = QualityOptions(
        model=str(model),
        recipes=parse_items(recipes, _NAMES, about="recipes"),
        engine=engine,
        corpus=parse_items(corpus, _PATHS, about="corpus"),
        windows=windows,
        window_tokens=window_tokens,
        tasks=parse_items(tasks, _NAMES, about="tasks"),
        seed=seed,
    )
    folder = None if into is None else Path(into)
    workplace = Workplace()
    measured = measure_quality_study(workplace, options, folder, observer or LogObserver())
    return Results(measured, workplace.home)
