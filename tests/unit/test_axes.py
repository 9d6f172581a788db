"""Lists in an engine's setup are axes: each combination is a config, whose name says which."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from bitbench.machine.workplace import Workplace
from bitbench.planning.plan import plan_study
from bitbench.study.study_file import format_study, make_study_schema, parse_study
from tests.command_line import bitbench

SPECULATIVE = '{"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3}'

MANY = [*range(40)]


def study(engines: str, more: str = "") -> str:
    return f"name: x\nworkloads: [interactive]\n{more}engines:\n{engines}"


def names(text: str) -> list[str]:
    return [setup.name for setup in parse_study(text, name="s.yaml").engines]


def test_each_combination_is_a_setup_whose_name_says_which() -> None:
    text = study(
        "  - {engine: llamacpp, kv_cache: [f16, q8_0], args: {threads: 2, ubatch-size: [128, 512]}}\n"
    )
    setups = parse_study(text, name="s.yaml").engines
    assert [setup.name for setup in setups] == [
        "llamacpp kv=f16 ubatch-size=128",
        "llamacpp kv=f16 ubatch-size=512",
        "llamacpp kv=q8_0 ubatch-size=128",
        "llamacpp kv=q8_0 ubatch-size=512",
    ]
    assert [(setup.kv_cache, setup.args) for setup in setups][2] == (
        "q8_0",
        {"threads": 2, "ubatch-size": 128},
    )


def test_without_a_list_a_name_stays_as_it_is() -> None:
    assert names(
        study("  - {engine: vllm, name: mine, kv_cache: fp8, args: {enforce-eager: true}}\n")
    ) == ["mine"]


def test_an_argument_may_be_missing_on_and_off_and_an_object_is_named_by_its_values() -> None:
    listed = json.dumps([None, SPECULATIVE])
    setups = parse_study(
        study(
            f"  - {{engine: vllm, args: {{speculative-config: {listed}, enforce-eager: [true, false]}}}}\n"
        ),
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
        "  - {engine: vllm, kv_cache: [auto, fp8], args: {a: [1, null], b: 2}}\n  - {engine: llamacpp, kv_cache: f16}\n"
    )
    jsonschema.validate(yaml.safe_load(text), make_study_schema())
    asked = parse_study(text, name="s.yaml")
    assert parse_study(format_study(asked), name="again") == asked
    assert type(asked).model_validate_json(asked.model_dump_json()) == asked


def test_a_plan_and_its_lock_tell_the_combinations_apart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = study("  - {engine: null, args: {tpot: [1ms, 4ms]}}\n", "baseline: null tpot=4ms\n")
    (tmp_path / "s.yaml").write_text(text)
    shown = bitbench(capsys, "plan", str(tmp_path / "s.yaml")).out
    assert "null tpot=1ms" in shown
    assert "null tpot=4ms" in shown
    plan = plan_study(tmp_path / "s.yaml", Workplace(tmp_path))
    assert [point.name for point in plan.points] == [
        "null tpot=1ms · interactive",
        "null tpot=4ms · interactive",
    ]
    assert type(plan).model_validate_json(plan.model_dump_json()) == plan
