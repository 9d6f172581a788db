"""optimum-intel and nncf, in the environment that was made for OpenVINO."""

from pathlib import Path

from bitbench.quantize.backends.worker import run_worker
from bitbench.quantize.manifest import WorkerFacts
from bitbench.quantize.work import OnProgress, QuantizeProgress, Work

_WORKER = Path(__file__).parents[1] / "workers" / "openvino_worker.py"


def compress(work: Work, on_progress: OnProgress) -> WorkerFacts:
    """Leaves `openvino_model.xml` and `.bin`, beside the files of the model's tokenizer."""
    on_progress(QuantizeProgress("converting to OpenVINO"))
    job = {
        "model": str(work.model),
        "target": str(work.checkpoint),
        "type": work.recipe.openvino_type,
        "group_size": work.recipe.options.get("group_size"),
    }
    return run_worker(_WORKER, work, job, maker="OpenVINO", on_event=lambda _: None)
