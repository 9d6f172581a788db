"""Lists in an engine's setup are axes: each combination is a config, whose name says which."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from bitbench.engines import llamacpp, vllm
from bitbench.engines.registry import engine
from bitbench.measure.plan import plan_study, planned_engine_setup
from bitbench.measure.trust import trust_in
from bitbench.measure.workplace import Workplace
from bitbench.ports import Launch, Load
from bitbench.study.study import EngineSetup
from bitbench.study.study_file import parse_study, study_file_text, study_schema
from bitbench.study.variant import Variant
from bitbench.util.errors import StudyFileError
from tests.command_line import bitbench

SPECULATIVE = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'

MANY = [*range(40)]


def study(engines: str, more: str = "") -> str:
    return f"name: x\nworkloads: [interactive]\n{more}engines:\n{engines}"


def names(text: str) -> list[str]:
    return [setup.name for setup in parse_study(text, name="s.yaml").engines]


def test_each_combination_is_a_setup_whose_name_says_which() -> None:
    text = study("  - {engine: llamacpp, kv_cache: [f16, q8_0], args: {threads: 2, ubatch-size: [128, 512]}}\n")
    setups = parse_study(text, name="s.yaml").engines
    assert [setup.name for setup in setups] == [
        "llamacpp kv=f16 ubatch-size=128",
        "llamacpp kv=f16 ubatch-size=512",
        "llamacpp kv=q8_0 ubatch-size=128",
        "llamacpp kv=q8_0 ubatch-size=512",
    ]
    assert [(setup.kv_cache, setup.args) for setup in setups][2] == ("q8_0", {"threads": 2, "ubatch-size": 128})


def test_without_a_list_a_name_stays_as_it_is() -> None:
    assert names(study("  - {engine: vllm, name: mine, kv_cache: fp8, args: {enforce-eager: true}}\n")) == ["mine"]


def test_the_axis_of_a_study_is_for_engines_that_name_no_type() -> None:
    text = study("  - vllm\n  - {engine: llamacpp, kv_cache: q8_0}\n", "kv_cache: [auto, fp8]\n")
    assert names(text) == ["vllm kv=auto", "vllm kv=fp8", "llamacpp"]


def test_an_argument_may_be_missing_on_and_off_and_an_object_is_named_by_its_values() -> None:
    listed = json.dumps([None, SPECULATIVE])
    setups = parse_study(
        study(f"  - {{engine: vllm, args: {{speculative-config: {listed}, enforce-eager: [true, false]}}}}\n"),
        name="s.yaml",
    ).engines
    assert [setup.name for setup in setups] == [
        "vllm speculative-config=unset enforce-eager=on",
        "vllm speculative-config=unset enforce-eager=off",
        "vllm speculative-config=ngram,4,3 enforce-eager=on",
        "vllm speculative-config=ngram,4,3 enforce-eager=off",
    ]
    assert setups[0].args == {"enforce-eager": True}
    assert setups[3].args == {"speculative-config": SPECULATIVE, "enforce-eager": False}


def test_schema_and_round_trip() -> None:
    text = study(
        "  - {engine: vllm, args: {a: [1, null], b: 2}}\n  - {engine: llamacpp, kv_cache: f16}\n",
        "kv_cache: [auto, fp8]\n",
    )
    jsonschema.validate(yaml.safe_load(text), study_schema())
    asked = parse_study(text, name="s.yaml")
    assert parse_study(study_file_text(asked), name="again") == asked
    assert type(asked).model_validate_json(asked.model_dump_json()) == asked


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        ("  - {engine: vllm, args: {a: []}}\n", "s.yaml:4: engines[0].args.a: "),
        ("  - {engine: vllm, kv_cache: [fp8, fp8]}\n", "vllm kv=fp8 appears more than once"),
        ("  - null\n  - {engine: vllm, args: {a: [1, 2], b: {c: 1}}}\n", "s.yaml:5: engines[1].args.b: "),
        (f"  - {{engine: vllm, args: {{a: {MANY}, b: {MANY}}}}}\n", "its lists have 1,600 combinations; at most 1,000"),
    ],
)
def test_mistakes_are_named_with_their_place_in_the_file(engines: str, message: str) -> None:
    with pytest.raises(StudyFileError) as problem:
        parse_study(study(engines), name="s.yaml")
    assert message in str(problem.value)


@pytest.mark.parametrize(
    ("engines", "message"),
    [
        (
            "  - {engine: llamacpp, args: {threads: [1, 2]}}\n  - {engine: vllm, kv_cache: [auto, f8]}\n",
            r"s.yaml:6: engines\[1\].kv_cache: vllm has no KV cache type f8; did you mean `fp8`\? it has auto, ",
        ),
        (
            "  - {engine: llamacpp, args: {threads: [1, 2]}}\n  - transformers\n  - {engine: null, kv_cache: fp8}\n",
            r"s.yaml:7: engines\[2\].kv_cache: null has no KV cache type fp8; remove `kv_cache`",
        ),
        (
            "  - {engine: vllm, kv_cache: fp8, args: {kv_cache_dtype: auto}}\n",
            r"s.yaml:5: engines\[0\].args.kv_cache_dtype: `kv_cache` chooses kv-cache-dtype already; keep one",
        ),
    ],
)
def test_a_type_that_the_engine_does_not_have_is_refused(tmp_path: Path, engines: str, message: str) -> None:
    (tmp_path / "s.yaml").write_text(study(engines, "models: [smollm2-135m]\n"))
    with pytest.raises(StudyFileError, match=message):
        trust_in(tmp_path / "s.yaml", tmp_path / "home")
    with pytest.raises(StudyFileError, match=message):
        plan_study(tmp_path / "s.yaml", Workplace(tmp_path / "home"))


def launched(name: str, kv_cache: str, variant: Path) -> list[str]:
    setup = planned_engine_setup(
        EngineSetup(name=name, engine=name, kv_cache=kv_cache, args={"threads": 2}), engine(name)
    )
    launch = Launch(
        setup=setup,
        variant=Variant(name="m/v", model="m", recipe="v", path=variant),
        python=Path("/env/bin/python"),
        log_file=Path("log"),
        loads=(Load(1, 100),),
        seed=0,
    )
    return {"llamacpp": llamacpp.command_line, "vllm": vllm.command_line}[name](launch, 80)


def test_a_type_is_spelled_as_each_engine_spells_it(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").touch()
    command = " ".join(launched("llamacpp", "q4_0", tmp_path))
    assert "--cache-type-k q4_0 --cache-type-v q4_0 --flash-attn on --threads 2" in command
    assert "cache-type" not in " ".join(launched("llamacpp", "auto", tmp_path))
    assert "--kv-cache-dtype fp8 " in " ".join(launched("vllm", "fp8", tmp_path))


@pytest.mark.parametrize(("name", "kv_cache"), [("llamacpp", "q8_0"), ("vllm", "fp8")])
def test_a_type_is_shown_among_what_a_study_uses_and_asks_nothing(tmp_path: Path, name: str, kv_cache: str) -> None:
    (tmp_path / "s.yaml").write_text(
        study(f"  - {{engine: {name}, kv_cache: {kv_cache}}}\n", "models: [smollm2-135m]\n")
    )
    trust = trust_in(tmp_path / "s.yaml", tmp_path / "home")
    assert any(use.what.endswith(f"={kv_cache}") for use in trust.uses)
    assert trust.is_given


def test_numbers_of_speculative_decoding_ask_nothing_and_a_draft_model_does() -> None:
    args = {"spec-type": "ngram-mod", "spec-ngram-mod-n-max": 16, "spec-draft-model": "draft.gguf"}
    uses = engine("llamacpp").uses(EngineSetup(name="l", engine="llamacpp", args=args))
    assert [use.what for use in uses if use.asks] == ["spec-draft-model=draft.gguf"]


def test_a_plan_and_its_lock_tell_the_combinations_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = study("  - {engine: null, args: {tpot: [1ms, 4ms]}}\n", "baseline: null tpot=4ms\n")
    (tmp_path / "s.yaml").write_text(text)
    shown = bitbench(capsys, "plan", str(tmp_path / "s.yaml")).out
    assert "null tpot=1ms" in shown
    assert "null tpot=4ms" in shown
    plan = plan_study(tmp_path / "s.yaml", Workplace(tmp_path))
    assert [point.name for point in plan.points] == ["null tpot=1ms · interactive", "null tpot=4ms · interactive"]
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan
