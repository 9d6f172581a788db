"""Levels of processors: what flags mean, and what plans, engines and reports make of one without bf16 instructions.

Every test says its level, so that it holds on any machine.
"""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from bitbench.analysis.configs import summarize_config_side
from bitbench.analysis.study_comparison import CONFIG_FACTS, Fact
from bitbench.analysis.summarize import summarize
from bitbench.cli.doctor import describe_processor
from bitbench.cli.plan import iter_plan_remarks, make_plan_labels
from bitbench.engines import transformers, vllm
from bitbench.features.explain.sentences import describe_roof
from bitbench.machine.host import TELLING_FLAGS, collect_host_facts, find_processor_level
from bitbench.planning.compatibility import load_compatibility_rows
from bitbench.planning.plan import plan_study_points
from bitbench.planning.variants import settle_variants
from bitbench.ports import Engine, Launch, Load
from bitbench.quantize import catalog
from bitbench.records.folder import StudyRecords
from bitbench.records.lock import HostFacts, Lock
from bitbench.records.roof import MachineRoof, Readings
from bitbench.reports.document.markdown import render_markdown_phrase
from bitbench.reports.document.model import format_plain_text
from bitbench.reports.sections.failures import iter_remarks as report_remarks
from bitbench.study.hardware import Level, find_hardware_level
from bitbench.study.plan import Config, Plan
from bitbench.study.study import EngineSetup, Study
from bitbench.study.variant import ModelFacts, Variant
from tests.features.explain.explain_records import PLAIN, QUANTIZED, evidence
from tests.unit.test_compatibility import AnyEngine
from tests.unit.test_model_cost import ROOF, SMOLLM2

SKYLAKE = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl")
CASCADE_LAKE = (*SKYLAKE, "avx512_vnni")
ZEN_4 = (*CASCADE_LAKE, "avx512_vbmi", "avx512_bf16")
SAPPHIRE_RAPIDS = (*ZEN_4, "avx_vnni", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16")


@pytest.mark.parametrize(
    ("flags", "level", "has_bf16"),
    [
        (SAPPHIRE_RAPIDS, Level.AMX, True),
        (ZEN_4, Level.AVX512_BF16, True),
        (CASCADE_LAKE, Level.AVX512_VNNI, False),
        (SKYLAKE, Level.AVX512, False),
        (("avx2", "fma", "f16c", "avx_vnni"), Level.AVX_VNNI, False),
        (("avx2", "fma", "f16c"), Level.AVX2, False),
        (("asimd", "asimddp", "i8mm", "bf16", "sve"), Level.NEON_BF16, True),
        (("asimd", "asimddp"), Level.NEON_DOT, False),
        (("asimd",), Level.NEON, False),
    ],
)
def test_flags_tell_the_level_and_whether_it_has_bf16(
    flags: tuple[str, ...], level: Level, has_bf16: bool
) -> None:
    assert set(flags) <= set(TELLING_FLAGS)
    assert find_hardware_level(flags) is HostFacts(cpu_flags=flags).level is level
    assert level.has_bf16 == has_bf16


def test_a_processor_that_is_not_known_has_no_level() -> None:
    assert HostFacts().level is None
    assert find_hardware_level(["f16c"]) is None


def test_a_level_says_in_words_what_it_lacks() -> None:
    assert Level.AVX512.shown == "avx512 (no bf16 instructions)"
    assert Level.AMX.shown == "amx"


def test_this_machine_has_the_level_of_its_flags() -> None:
    assert find_processor_level() is collect_host_facts().level


def plan_on(level: Level | None, *recipes: str, args: dict[str, str] | None = None) -> Plan:
    engines: dict[str, Engine] = {name: AnyEngine(name) for name in ("vllm", "transformers")}
    study = Study.model_validate(
        {
            "name": "x",
            "models": ["m"],
            "recipes": recipes or ("bf16",),
            "engines": [{"engine": name, "args": args or {}} for name in engines],
            "workloads": ["interactive"],
        }
    )

    def resolve(model: str, name: str) -> Variant:
        recipe = catalog.find_recipe(name)
        return Variant(
            name=f"{model}/{name}",
            model=model,
            recipe=name,
            form=recipe.form,
            at_load=recipe.at_load,
        )

    return plan_study_points(study, engines, resolve, "cpu", level=level)


def dtypes(plan: Plan) -> dict[str, str]:
    return {config.name: dtype for config, dtype in plan.chosen_dtypes.items()}


BOTH = {"m/bf16 @ vllm": "float32", "m/bf16 @ transformers": "float32"}


@pytest.mark.parametrize("level", list(Level))
def test_the_dense_model_computes_in_float32_exactly_where_bf16_is_emulated(level: Level) -> None:
    assert dtypes(plan_on(level)) == ({} if level.has_bf16 else BOTH)


def test_nothing_is_chosen_where_the_level_is_not_known_or_the_study_names_a_type() -> None:
    assert plan_on(None).in_float32 == ()
    assert plan_on(Level.AVX512, args={"dtype": "bfloat16"}).in_float32 == ()
    assert plan_on(Level.AVX512, args={"--dtype": "bfloat16"}).in_float32 == ()


def test_a_kernel_that_takes_16_bits_only_stays_in_bf16() -> None:
    plan = plan_on(Level.AVX512_VNNI, "bf16", "w8a8-rtn", "w4a16-rtn")
    assert dtypes(plan) == BOTH | {"m/w8a8-rtn @ vllm": "float32"}


def test_a_plan_shows_what_the_processor_changes(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(width=300, highlight=False)
    plan = plan_on(Level.AVX512_VNNI, "bf16", "w4a16-rtn")
    for remark in iter_plan_remarks(plan, make_plan_labels(plan)):
        console.print(remark)
    lines = capsys.readouterr().out.splitlines()
    (line,) = (
        number
        for number, line in enumerate(lines)
        if line.startswith("computes in float32 on this processor")
    )
    assert "(avx512_vnni)" in lines[line]
    assert lines[line + 1].strip() == "bf16 @ vllm, bf16 @ transformers"


def test_a_variant_that_could_not_be_made_leaves_no_note() -> None:
    plan = plan_on(Level.AVX512, "bf16", "w8a8-rtn")
    failed = [
        one.model_copy(update={"failure": "no"})
        for one in plan.variants
        if one.recipe == "w8a8-rtn"
    ]
    assert {config.variant for config in settle_variants(plan, failed).in_float32} == {"m/bf16"}


LAUNCH = Launch(
    setup=EngineSetup(name="e", engine="e"),
    variant=Variant(
        name="m/bf16",
        model="m",
        recipe="bf16",
        path=Path("/models/m"),
        facts=ModelFacts(layers=32, kv_heads=8, head_size=128, context_tokens=8192),
    ),
    python=Path("/env/bin/python"),
    log_file=Path("log"),
    loads=(Load(2, 8000),),
    seed=0,
    dtype="float32",
)


def test_engines_start_in_the_chosen_type_unless_the_study_names_one() -> None:
    named = replace(LAUNCH, setup=EngineSetup(name="e", engine="e", args={"dtype": "float16"}))
    default = replace(LAUNCH, dtype=None)

    def of_vllm(launch: Launch) -> str:
        command = vllm.command_line(launch, 1)
        return command[command.index("--dtype") + 1]

    assert [of_vllm(launch) for launch in (LAUNCH, named, default)] == [
        "float32",
        "float16",
        "bfloat16",
    ]
    commands = [transformers.command_line(launch, 1) for launch in (LAUNCH, named, default)]
    assert [[word for word in command if "dtype" in word] for command in commands] == [
        ["--dtype=float32"],
        ["--dtype=float16"],
        [],
    ]


def test_keys_and_values_in_float32_get_twice_the_cache() -> None:
    def gib(launch: Launch) -> int:
        return int(vllm.make_vllm_variables(launch, "key")["VLLM_CPU_KVCACHE_SPACE"])

    asked = replace(
        LAUNCH, dtype=None, setup=EngineSetup(name="e", engine="e", args={"dtype": "float32"})
    )
    assert (gib(replace(LAUNCH, dtype=None)), gib(LAUNCH), gib(asked)) == (2, 4, 4)


def test_a_study_is_not_resumed_in_another_type() -> None:
    before, after = Lock(plan=plan_on(Level.AMX)), Lock(plan=plan_on(Level.AVX512))
    assert list(before.changes(before)) == []
    assert "type that m/bf16 @ vllm computes in: the engine's default then, float32 now" in list(
        before.changes(after)
    )


def test_the_chosen_type_is_an_argument_when_studies_are_compared() -> None:
    arguments = CONFIG_FACTS[Fact.ARGUMENTS]

    def shown(plan: Plan) -> str | None:
        return arguments(
            StudyRecords("x", Lock(plan=plan)), Config(variant="m/bf16", engine="vllm")
        )

    assert (
        shown(plan_on(Level.AVX512))
        == shown(plan_on(Level.AMX, args={"dtype": "float32"}))
        == "dtype=float32"
    )
    assert shown(plan_on(Level.AMX)) == "none"


def test_a_report_says_what_was_computed_in_another_type() -> None:
    def said(level: Level) -> str:
        summary = summarize(StudyRecords("x", Lock(plan=plan_on(level))))
        return " ".join(format_plain_text(remark) for remark in report_remarks(summary))

    assert (
        "Computed in float32: bf16 @ vllm and bf16 @ transformers; this processor (avx512)"
        in said(Level.AVX512)
    )
    assert "Computed in" not in said(Level.AMX)


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (
            HostFacts(cpu_model="Neoverse-N1", cores=4, threads=4),
            "Neoverse-N1, 4 cores, 4 usable threads",
        ),
        (HostFacts(cores=1, threads=1), "–, 1 core, 1 usable thread"),
        (HostFacts(), "–"),
    ],
)
def test_a_processor_without_a_name_is_not_called_none(host: HostFacts, said: str) -> None:
    assert describe_processor(host) == said


def test_only_a_cpu_lacks_bf16() -> None:
    assert {row.device for row in load_compatibility_rows() if row.float32_without_bf16} == {"cpu"}


def measured_on(
    flags: tuple[str, ...], step_s: float, roof: MachineRoof | None = ROOF
) -> StudyRecords:
    made = evidence(lambda *_: step_s, roof=roof)
    host = made.lock.host.model_copy(update={"cpu_flags": flags})
    return replace(made, lock=made.lock.model_copy(update={"host": host}))


def test_the_roof_is_that_of_the_quicker_type() -> None:
    emulated = ROOF.model_copy(update={"float32_flops_per_s": Readings(values=(700e9, 900e9))})
    assert (ROOF.float_flops_per_s, emulated.float_flops_per_s) == (400e9, 900e9)
    assert re.search(
        r"in bfloat16, 900\sGflop/s in float32, ", render_markdown_phrase(describe_roof(emulated))
    )


def test_weights_that_are_computed_in_float32_are_read_in_it() -> None:
    made = measured_on(CASCADE_LAKE, 0.05)
    chosen = made.plan.model_copy(update={"in_float32": (PLAIN,)})
    in_float32 = replace(made, lock=made.lock.model_copy(update={"plan": chosen}))

    def read(of: StudyRecords, config: Config) -> int | None:
        return summarize_config_side(of, config, of.study.workloads[0]).stored_bytes

    assert read(in_float32, PLAIN) == 4 * (SMOLLM2.parameters or 0) > (read(made, PLAIN) or 0)
    assert read(in_float32, QUANTIZED) == read(made, QUANTIZED)
