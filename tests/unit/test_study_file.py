"""Messages about a wrong study file name the line, the field and what is allowed."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from bitbench.core.study import Study
from bitbench.core.workload import BUILT_IN_WORKLOADS
from bitbench.errors import StudyFileError
from bitbench.planning.starter import STARTER
from bitbench.planning.study_file import parse_study, read_study, study_schema

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
MINIMAL = "name: x\nengines: [null]\nworkloads: [interactive]\n"


def complaint(text: str) -> str:
    with pytest.raises(StudyFileError) as caught:
        parse_study(text, name="s.yaml")
    return str(caught.value)


def test_the_starter_is_a_valid_study() -> None:
    study = parse_study(STARTER, name="starter")
    assert study.measure.instances.min == 2
    assert study.measure.target_precision == pytest.approx(0.02)
    assert study.engine("vllm").args == {"enforce-eager": True}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_accepts_every_example(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), study_schema())
    read_study(path)


def test_the_schema_accepts_the_starter_and_refuses_what_the_reader_refuses() -> None:
    schema = study_schema()
    jsonschema.validate(yaml.safe_load(STARTER), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(MINIMAL), "workload": []}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(MINIMAL), "workloads": ["no_such"]}, schema)


def test_a_bare_null_is_the_null_engine() -> None:
    study = parse_study("name: x\nengines:\n  - null\n  - {engine: null, name: slow}\nworkloads: [base]\n", name="s")
    assert [(setup.name, setup.engine) for setup in study.engines] == [("null", "null"), ("slow", "null")]


def test_the_seven_workloads_of_the_record_are_built_in() -> None:
    shapes = {w.name: (w.concurrency, w.input_tokens, w.output_tokens) for w in BUILT_IN_WORKLOADS.values()}
    assert shapes == {
        "interactive": (1, 128, 64),
        "decode_bound": (1, 256, 512),
        "prefill_bound": (1, 2048, 32),
        "long_context": (1, 16384, 32),
        "medium_batch": (8, 256, 128),
        "base": (32, 256, 32),
        "high_concurrency": (64, 256, 128),
    }


def test_a_misspelt_field_gets_its_line_and_a_suggestion() -> None:
    text = MINIMAL + "measure:\n  instances: 2\n  target_precison: 2%\n"
    message = complaint(text)
    assert message.startswith("s.yaml:6: measure.target_precison: unknown field; did you mean `target_precision`?")
    assert "budget" in message


def test_a_wrong_value_says_what_is_allowed() -> None:
    message = complaint(MINIMAL + "measure: {headline: speed}\n")
    assert "s.yaml:4: measure.headline" in message
    assert "'output_throughput', 'latency', 'ttft' or 'tpot'" in message
    assert "'speed'" in message


def test_an_unknown_workload_lists_the_built_in_ones() -> None:
    message = complaint("name: x\nengines: [null]\nworkloads:\n  - interactiv\n")
    assert "'interactiv'" in message
    assert "high_concurrency" in message


def test_every_mistake_is_reported_at_once() -> None:
    message = complaint("engines: [null]\nworkloads: [{name: a, concurrency: 0, input_tokens: 1, output_tokens: 1}]\n")
    assert "`name` is missing" in message
    assert "s.yaml:2: workloads[0].concurrency" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: [x\n", "not valid YAML"),
        ("- a\n", "is a mapping"),
        ("name: x\nname: y\nengines: [null]\nworkloads: [base]\n", "s.yaml:2: `name` is given twice"),
        (MINIMAL + "limits: {start: soon}\n", "a duration such as"),
        (MINIMAL + "limits: {memory: 4 parsec}\n", "unknown unit 'parsec'"),
        (MINIMAL + "measure: {trials: {min: 5, max: 2}}\n", "max (2) is smaller than min (5)"),
        ("name: x\nengines: [null, null]\nworkloads: [base]\n", "null appears more than once"),
        ("name: ../x\nengines: [null]\nworkloads: [base]\n", "s.yaml:1: name"),
    ],
)
def test_complaints(text: str, part: str) -> None:
    assert part in complaint(text)


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="bitbench init"):
        read_study(tmp_path / "none.yaml")


def test_a_study_survives_a_round_trip_through_json() -> None:
    study = parse_study(STARTER, name="starter")
    assert Study.model_validate(json.loads(study.model_dump_json())) == study
