"""Which kernel each kind of layers runs on, as each engine tells it, and what is made of it."""

import importlib.util
import types
from pathlib import Path

import pytest

from bitbench.engines import llamacpp, vllm
from bitbench.engines import transformers as transformers_engine
from bitbench.engines.kernels import classify_kernel, read_choices
from bitbench.records.trial import InstanceFacts, InstanceRecord, KernelChoice, KernelPath
from bitbench.reports.document.markdown import render_markdown_section
from bitbench.reports.sections.conditions import build_configs_section
from bitbench.study.plan import Plan
from bitbench.study.variant import ModelFacts
from bitbench.study.workload import BUILT_IN_WORKLOADS
from tests.support.synthetic import make_instance, make_lock, make_plan, summarize

DATA = Path(__file__).parent / "data"
WORKER = Path(transformers_engine.__file__).parent / "workers" / "transformers_kernels.py"


def test_vllm_names_the_kernel_of_a_scheme_once() -> None:
    said = [
        "Using CPUWNA16LinearKernel for mixed-precision linear",
        "Using CPUWNA16LinearKernel for CompressedTensorsWNA16",
        "Using CPUWNA16LinearKernel for CompressedTensorsWNA16",
        "Using max model len 512",
        "Selected CPUInt8ScaledMMLinearKernel for CompressedTensorsW8A8Int8",
        "Using FLASH_ATTN attention backend out of potential backends: ['FLASH_ATTN'].",
    ]
    assert [(one.kind, one.kernel, one.path) for one in read_choices(said)] == [
        ("attention", "FLASH_ATTN", None),
        ("CompressedTensorsWNA16", "CPUWNA16LinearKernel", KernelPath.WEIGHT_ONLY),
        ("CompressedTensorsW8A8Int8", "CPUInt8ScaledMMLinearKernel", KernelPath.QUANTIZED),
    ]


@pytest.mark.parametrize(
    ("kernel", "path"),
    [
        ("MarlinLinearKernel", KernelPath.WEIGHT_ONLY),
        ("MarlinFP8ScaledMMLinearKernel", KernelPath.WEIGHT_ONLY),
        ("MacheteLinearKernel", KernelPath.WEIGHT_ONLY),
        ("CutlassInt8ScaledMMLinearKernel", KernelPath.QUANTIZED),
        ("CutlassFP8ScaledMMLinearKernel", KernelPath.QUANTIZED),
        ("EmulationNvFp4LinearKernel", KernelPath.DEQUANTIZED),
        ("SomethingNewLinearKernel", None),
    ],
)
def test_the_path_of_a_kernel_that_nobody_knows_is_not_guessed(
    kernel: str, path: KernelPath | None
) -> None:
    assert classify_kernel(kernel) is path


def test_vllm_without_quantization_is_dense() -> None:
    facts = vllm.read_vllm_facts((DATA / "vllm-0.32-eager.log").read_text(), ModelFacts())
    assert facts.kernel_choices == (
        KernelChoice(kind="linear", kernel="dense bfloat16", path=KernelPath.DENSE, source="log"),
    )


def test_llamacpp_names_types_and_buffers() -> None:
    facts = llamacpp.read_llamacpp_facts(
        (DATA / "llamacpp-q4_k_m.log").read_text(), prefix_caching=False
    )
    by_kind = {one.kind: one for one in facts.kernel_choices}
    assert "f32 tensors" not in by_kind
    assert all(one.path is KernelPath.QUANTIZED for one in by_kind.values())
    assert all("CPU_REPACK" in one.kernel for one in by_kind.values())
    dense = llamacpp.read_llamacpp_facts(
        (DATA / "llamacpp-bf16.log").read_text(), prefix_caching=False
    )
    assert [(one.kind, one.layers, one.path) for one in dense.kernel_choices] == [
        ("bf16 tensors", 211, KernelPath.DENSE)
    ]


@pytest.fixture
def worker() -> types.ModuleType:
    spec = importlib.util.spec_from_file_location("transformers_kernels", WORKER)
    assert spec is not None
    assert spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


class Dtype:
    def __init__(self, name: str) -> None:
        self._name = name
        self.is_floating_point = "float" in name

    def __str__(self) -> str:
        return f"torch.{self._name}"


class Plain:
    def __init__(self, dtype: str) -> None:
        self.dtype = Dtype(dtype)


class Int8Tensor:
    """As torchao 0.18 has it: a tensor made of plain ones."""

    def __init__(self, *, rounds: bool) -> None:
        self.qdata, self.scale = Plain("int8"), Plain("bfloat16")
        self.act_quant_kwargs = "per row" if rounds else None

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["qdata", "scale"], None


class Linear:
    in_features = out_features = 64

    def __init__(self, weight: object, scheme: object = None) -> None:
        self.weight = weight
        if scheme is not None:
            self.quantization_scheme = scheme


class VQuantLinear:
    in_features = out_features = 64


def test_transformers_tells_layers_apart_by_what_they_are(worker: types.ModuleType) -> None:
    bits = types.SimpleNamespace(num_bits=4)
    scheme = types.SimpleNamespace(weights=bits, input_activations=None)
    layers = [
        *[Linear(Plain("bfloat16"))] * 2,
        Linear(Int8Tensor(rounds=False)),
        Linear(Int8Tensor(rounds=True)),
        Linear(Plain("bfloat16"), scheme),
        VQuantLinear(),
        object(),
    ]
    config = types.SimpleNamespace(_attn_implementation="sdpa", num_hidden_layers=30)
    model = types.SimpleNamespace(modules=lambda: layers, config=config)
    choices = [
        KernelChoice.model_validate(one) for one in worker.transformers_kernel_choices(model)
    ]
    assert [(one.kind, one.layers, one.path) for one in choices] == [
        ("attention", 30, None),
        ("linear", 2, KernelPath.DENSE),
        ("torchao", 1, KernelPath.DEQUANTIZED),
        ("torchao", 1, KernelPath.QUANTIZED),
        ("compressed-tensors W4A16", 1, KernelPath.DEQUANTIZED),
        ("VQuantLinear", 1, KernelPath.WEIGHT_ONLY),
    ]
    assert choices[4].kernel == "dequantized to dense bfloat16"


def marlin(kernel: str) -> InstanceFacts:
    chosen = KernelChoice(kind="AWQ", kernel=kernel, path=classify_kernel(kernel), source="log")
    return InstanceFacts(engine_version="0.32", kernel_choices=(chosen,))


def text_of(plan: Plan, instances: list[InstanceRecord]) -> str:
    return "\n".join(
        render_markdown_section(
            build_configs_section(summarize(plan, [], instances), make_lock(plan))
        )
    )


def test_two_configs_with_the_same_weights_are_told_apart_by_their_kernel() -> None:
    plan = make_plan(["first", "second"], [BUILT_IN_WORKLOADS["base"]])
    configs = plan.configs
    instances = [
        make_instance(configs[0], 0, facts=marlin("MarlinLinearKernel")),
        make_instance(configs[1], 0, facts=marlin("ConchLinearKernel")),
    ]
    text = text_of(plan, instances)
    assert (
        "kernel of AWQ: MarlinLinearKernel (low-bit weights, expanded inside the product)" in text
    )
    assert "kernel of AWQ: ConchLinearKernel (low-bit weights, expanded inside the product)" in text


def test_instances_of_one_config_that_differ_in_kernel_are_named() -> None:
    plan = make_plan(["only"], [BUILT_IN_WORKLOADS["base"]])
    config = plan.configs[0]
    instances = [
        make_instance(config, 0, facts=marlin("MarlinLinearKernel")),
        make_instance(config, 1, facts=marlin("ConchLinearKernel")),
    ]
    assert "its starts differ in kernel" in text_of(plan, instances)
