"""Whatever bitbench reads of others' files: an honest one of each kind, and how it is read."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from bitbench.features.interop.files import import_files
from bitbench.features.interop.readers.reading import ImportedStarts, Tool
from bitbench.models.folder import read_model_facts
from bitbench.quantize.checkpoint import read_gguf_tensors, refuse_unsuitable_checkpoint
from bitbench.util.errors import BitbenchError
from bitbench.util.model_files import read_safetensors_header
from tests.in_memory import MEMORY
from tests.support.quantize_stand_in import write_model, write_tensors
from tests.unit.test_models import CONFIG
from tests.unit.test_quantize_gguf import gguf

DATA = Path(__file__).parents[1] / "unit" / "data" / "imports"
TOOLS = {
    "aiperf.json": Tool.AIPERF,
    "guidellm.json": Tool.GUIDELLM,
    "llama-bench.json": Tool.LLAMA_BENCH,
    "sglang-serving.jsonl": Tool.SGLANG,
    "vllm-serve-1.json": Tool.VLLM,
    "published-backends.md": Tool.PUBLISHED_TABLE,
    "published-grids.rst": Tool.PUBLISHED_TABLE,
    "published-runs.md": Tool.PUBLISHED_TABLE,
}
TENSORS = {
    "model.layers.0.up.weight": ("BF16", (8, 6)),
    "norm": ("I32", (3,)),
    "scalar": ("I8", ()),
}
MOST_SECONDS = 5.0  # of the processor


@dataclass(frozen=True)
class Input:
    honest: bytes
    read: Callable[[Path], object]
    name: str = "file"


def _importing(tool: Tool) -> Callable[[Path], object]:
    return lambda path: import_files([path], tool, ImportedStarts.PER_FILE, path.parent / "out")


def _in_a_model(path: Path) -> object:
    """The file is one of a model's folder."""
    folder = write_model(path.parent / "model")
    (folder / path.name).write_bytes(path.read_bytes())
    facts = read_model_facts(folder)
    refuse_unsuitable_checkpoint(folder)
    return facts


def _honest_safetensors() -> bytes:
    with TemporaryDirectory() as folder:
        write_tensors(Path(folder) / "x", TENSORS)
        return (Path(folder) / "x").read_bytes()


TOKENIZER = {
    "added_tokens": [{"id": 0, "special": True}, {"id": 9, "special": False}],
    "model": {"vocab": {"a": 1}},
}
DECODER = {
    "added_tokens_decoder": {"0": {"content": "<s>", "special": True}, "7": {"special": True}}
}
NESTED = {
    "architectures": ["MForCausalLM"],
    "text_config": {**CONFIG, "layer_types": ["full_attention"], "head_dim": 8},
}
INPUTS: dict[str, Input] = {
    **{
        name: Input((DATA / name).read_bytes(), _importing(tool), name)
        for name, tool in TOOLS.items()
    },
    "safetensors": Input(_honest_safetensors(), read_safetensors_header),
    "gguf": Input(gguf(("blk.0.up.weight", (64, 32), 2), ("norm", (64,), 0)), read_gguf_tensors),
    "config": Input(json.dumps(NESTED).encode(), _in_a_model, "config.json"),
    "generation config": Input(
        b'{"eos_token_id": [1, 2], "bos_token_id": 0}', _in_a_model, "generation_config.json"
    ),
    "tokenizer": Input(json.dumps(TOKENIZER).encode(), _in_a_model, "tokenizer.json"),
    "tokenizer config": Input(json.dumps(DECODER).encode(), _in_a_model, "tokenizer_config.json"),
}


def is_read(kind: str, content: bytes) -> bool:
    """False where it is refused, in one sentence; any other error is the test's."""
    with TemporaryDirectory(dir=MEMORY) as folder:
        path = Path(folder) / INPUTS[kind].name
        path.write_bytes(content)
        began = process_time()
        try:
            INPUTS[kind].read(path)
        except BitbenchError as error:
            said = str(error)
            assert "\n" not in said
            assert len(said) < 1_500
            return False
        finally:
            assert process_time() - began < MOST_SECONDS
        return True
