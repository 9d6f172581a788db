"""vLLM's CUDA wheel, asked by its own code for seven compute capabilities, against the compatibility data.

Installs the CUDA lock (8 GB, minutes) into `cuda-wheel` below the home folder, once, and compiles a stand-in for NVML
with the C compiler of this machine. No GPU is involved and nothing is computed: the wheel's parser, its configuration
and its selection of kernels are run.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bitbench.engines.environments import environment_python, make_environment
from bitbench.engines.kernels import make_toolkit_variables
from bitbench.engines.vllm import VllmEngine, command_line
from bitbench.machine.workplace import get_default_home
from bitbench.study.hardware import Capability
from bitbench.util.child_processes import collect_tool_variables
from tests.support.cuda_selection import disagreement, questions
from tests.unit.test_vllm_engine import launch

pytestmark = pytest.mark.timeout(3600)  # seconds for one test, with the installation

HERE = Path(__file__).parent / "cuda_stand_in"
RECORD = Path(__file__).parents[1] / "unit" / "data" / "vllm-0.32-cuda-selection.json"
ASK_LIMIT_S = 900
# Public: config.json of Qwen3-4B, which decides shapes and the attention that is asked for.
QWEN3_4B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2560,
    "initializer_range": 0.02, "intermediate_size": 9728, "max_position_embeddings": 40960, "max_window_layers": 36,
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


class Device(NamedTuple):
    name: str
    capability: Capability
    memory_mib: int

    @property
    def variable(self) -> str:
        """As the stand-in reads it."""
        return f"{self.name};{self.capability.major};{self.capability.minor};{self.memory_mib};1"


DEVICES = (
    Device("Tesla T4", Capability(7, 5), 15_360),
    Device("NVIDIA A100-SXM4-80GB", Capability(8, 0), 81_920),
    Device("NVIDIA A10G", Capability(8, 6), 23_028),
    Device("NVIDIA L4", Capability(8, 9), 23_034),
    Device("NVIDIA H100 80GB HBM3", Capability(9, 0), 81_559),
    Device("NVIDIA B200", Capability(10, 0), 183_359),
    Device("NVIDIA GeForce RTX 5090", Capability(12, 0), 32_607),
)
BY_CAPABILITY = pytest.mark.parametrize(
    "device", DEVICES, ids=lambda device: str(device.capability)
)


@pytest.fixture(scope="module")
def python() -> Path:
    """The wheel's interpreter; made once and kept, as its lock is what decides."""
    home = get_default_home() / "cuda-wheel"
    wanted = VllmEngine.own_environment
    assert wanted is not None
    make_environment(wanted, home, device="cuda")
    return environment_python(wanted.name, home)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the driver's two libraries, as far as vLLM asks them."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler (cc) for the stand-in for NVML")
    folder = tmp_path_factory.mktemp("driver")
    for source, library in (("nvml.c", "libnvidia-ml.so.1"), ("cuda.c", "libcuda.so.1")):
        command = [compiler, "-shared", "-fPIC", "-o", str(folder / library), str(HERE / source)]
        subprocess.run(command, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3-4b")
    (folder / "config.json").write_text(json.dumps(QWEN3_4B))
    return folder


def ask(
    python: Path, stand_in: Path, device: Device, answer: Path, *arguments: str
) -> Mapping[str, Any]:
    """In a process of its own for each device: vLLM asks for it once."""
    variables = collect_tool_variables(
        {
            **make_toolkit_variables(python),
            "LD_LIBRARY_PATH": str(stand_in),
            "FAKE_GPU": device.variable,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(answer.parent / "cache"),
        }
    )
    mode, *rest = arguments
    command = [str(python), "-I", str(HERE / "ask_wheel.py"), mode, rest[0], str(answer), *rest[1:]]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=ASK_LIMIT_S, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found: Mapping[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    return found


@BY_CAPABILITY
def test_the_wheel_chooses_what_the_data_says(
    device: Device, python: Path, stand_in: Path, model: Path, tmp_path: Path
) -> None:
    found = ask(python, stand_in, device, tmp_path / "kernels.json", "kernels", str(model))
    assert list(found["by_capability"]) == [str(device.capability)]
    assert found["has_flashinfer"], (
        "ninja or nvcc of the environment was not found; other kernels would be chosen"
    )
    asked = [*questions(found)]
    wrong = [one for one in map(disagreement, asked) if one is not None]
    print(f"{device.name}: {len(asked)} rows checked, {len(wrong)} wrong")
    assert wrong == []
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    assert found["min_capability"].items() >= recorded["min_capability"].items()


@BY_CAPABILITY
def test_the_wheel_accepts_our_command_line(
    device: Device, python: Path, stand_in: Path, model: Path, tmp_path: Path
) -> None:
    asked = launch({"kv-cache-memory-bytes": "8G"}, context_tokens=2080, concurrency=64)
    variant = asked.variant.model_copy(update={"path": model})
    words = command_line(replace(asked, variant=variant, capability=device.capability), 8123)
    options = words[words.index("vllm.entrypoints.openai.api_server") + 1 :]
    found = ask(
        python,
        stand_in,
        device,
        tmp_path / "command.json",
        "command",
        str(model),
        json.dumps(options),
    )
    assert found["dtype"] == (
        "torch.float16" if device.capability < Capability(8, 0) else "torch.bfloat16"
    )
    assert (found["max_model_len"], found["max_num_seqs"], found["prefix_caching"]) == (
        2096,
        64,
        False,
    )
    assert (
        found["kv_cache_memory_bytes"] == 8 * 2**30 or found["kv_cache_memory_bytes"] == 8 * 10**9
    )


def test_the_stand_in_is_what_bitbench_sees_too(stand_in: Path) -> None:
    """bitbench's own reader, through the same library as the wheel."""
    code = (
        "from bitbench.machine.gpus import has_nvml, survey_nvml; assert has_nvml(); "
        "found = survey_nvml({'CUDA_DEVICE_ORDER': 'PCI_BUS_ID'}, lambda: '0'); "
        "one, = found.accelerators; print(one.name, found.capability, one.driver, one.power_limit_w, one.uuid)"
    )
    variables = dict(os.environ) | {
        "LD_LIBRARY_PATH": str(stand_in),
        "FAKE_GPU": DEVICES[3].variable,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=variables
    )
    assert (
        done.stdout.strip()
        == "NVIDIA L4 8.9 580.95.05 None GPU-00000000-0000-0000-0000-000000000001"
    ), done.stderr
