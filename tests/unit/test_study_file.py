"""Messages about a wrong study file name the line, the field and what is allowed."""

import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from bitbench.study.base import Json
from bitbench.study.study import Study
from bitbench.study.study_file import format_starter, make_study_schema, parse_study, read_study
from bitbench.study.workload import (
    BUILT_IN_WORKLOADS,
    OPEN_LOOP_CONCURRENCY,
    WARM_UP_TOKENS,
    Workload,
)
from bitbench.util.errors import StudyFileError

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.yaml"))
MINIMAL = "name: x\nengines: [null]\nworkloads: [interactive]\n"


def complaint(text: str) -> str:
    with pytest.raises(StudyFileError) as caught:
        parse_study(text, name="s.yaml")
    return str(caught.value)


def test_the_starter_is_a_valid_study() -> None:
    study = parse_study(format_starter("cpu"), name="starter")
    assert study.measure.budget == 600.0
    assert study.engine("vllm").args == {"enforce-eager": True}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_schema_accepts_every_example(path: Path) -> None:
    jsonschema.validate(yaml.safe_load(path.read_text()), make_study_schema())
    read_study(path)


def test_the_schema_accepts_the_starter_and_refuses_what_the_reader_refuses() -> None:
    schema = make_study_schema()
    jsonschema.validate(yaml.safe_load(format_starter("cpu")), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(MINIMAL), "workload": []}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**yaml.safe_load(MINIMAL), "workloads": ["no_such"]}, schema)


def test_a_bare_null_is_the_null_engine() -> None:
    study = parse_study(
        "name: x\nengines:\n  - null\n  - {engine: null, name: slow}\nworkloads: [base]\n", name="s"
    )
    assert [(setup.name, setup.engine) for setup in study.engines] == [
        ("null", "null"),
        ("slow", "null"),
    ]


def test_the_seven_workloads_of_the_record_are_built_in() -> None:
    shapes = {
        w.name: (w.concurrency, w.input_tokens, w.output_tokens)
        for w in BUILT_IN_WORKLOADS.values()
    }
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
    text = MINIMAL + "measure:\n  starts: 2\n  confidense: 95%\n"
    message = complaint(text)
    assert message.startswith(
        "s.yaml:6: measure.confidense: unknown field; did you mean `confidence`?"
    )
    assert "budget" in message


def test_a_wrong_value_says_what_is_allowed() -> None:
    message = complaint(MINIMAL + "measure: {metric: speed}\n")
    assert "s.yaml:4: measure.metric" in message
    assert "'output_throughput', 'latency', 'ttft' or 'tpot'" in message
    assert "'speed'" in message


def test_an_unknown_workload_lists_the_built_in_ones() -> None:
    message = complaint("name: x\nengines: [null]\nworkloads:\n  - interactiv\n")
    assert "'interactiv'" in message
    assert "high_concurrency" in message


def test_every_mistake_is_reported_at_once() -> None:
    message = complaint(
        "name: x y\nworkloads: [{name: a, concurrency: 0, input_tokens: 1, output_tokens: 1}]\n"
    )
    assert "s.yaml:1: name" in message
    assert "`engines` is missing" in message
    assert "s.yaml:2: workloads[0].concurrency" in message


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("name: [x\n", "not valid YAML"),
        ("- a\n", "is a mapping"),
        (
            "name: x\nname: y\nengines: [null]\nworkloads: [base]\n",
            "s.yaml:2: `name` is given twice",
        ),
        (MINIMAL + "limits: {start: soon}\n", "a duration such as"),
        (MINIMAL + "limits: {memory: 4 parsec}\n", "unknown unit 'parsec'"),
        (MINIMAL + "measure: {trials: {min: 5, max: 2}}\n", "max (2) is smaller than min (5)"),
        ("name: x\nengines: [null, null]\nworkloads: [base]\n", "null appears more than once"),
        ("name: ../x\nengines: [null]\nworkloads: [base]\n", "s.yaml:1: name"),
    ],
)
def test_complaints(text: str, part: str) -> None:
    assert part in complaint(text)


def workload(text: str) -> str:
    return f"name: x\nengines: [null]\nworkloads:\n  - name: a\n    output_tokens: 8\n{text}"


OPEN = "    input_tokens: 16\n    requests: 10\n    arrival: "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            OPEN + "poison\n",
            "s.yaml:8: workloads[0].arrival: `kind` must be one of batch, closed_loop, constant, poisson, trace, "
            "but it is 'poison'",
        ),
        (OPEN + "poisson\n", "s.yaml:8: the field `rate` is missing in `workloads[0].arrival`"),
        (
            OPEN + "{rate: 5}\n",
            "s.yaml:8: workloads[0].arrival: `kind` must be one of batch, closed_loop, constant, ",
        ),
        (
            OPEN + "{kind: poisson, rate: 5, rates: 2}\n",
            "s.yaml:8: workloads[0].arrival.rates: unknown field; did you mean `rate`? known fields: kind, rate",
        ),
        (
            OPEN + "{kind: poisson, rate: 0}\n",
            "workloads[0].arrival.rate: input should be greater than 0, but it is 0",
        ),
        (OPEN + "batch\n", "s.yaml:4: the field `concurrency` is missing in `workloads[0]`"),
        (
            OPEN + "{kind: poisson, rate: 5}\n    duration: 5s\n",
            "needs `requests` or `duration` (one of them)",
        ),
        (
            "    input_tokens: 16\n    arrival: {kind: poisson, rate: 5}\n",
            "needs `requests` or `duration`",
        ),
        (
            "    input_tokens: 16\n    concurrency: 1\n    duration: 5s\n",
            "arrival batch has no `duration`",
        ),
        (
            "    input_tokens: {min: 5}\n    concurrency: 1\n",
            "give a number, {min, max}, or {mean, sd}",
        ),
        ("    input_tokens: {mean: 5}\n    concurrency: 1\n", "`mean` and `sd` belong together"),
        ("    input_tokens: {min: 9, max: 5}\n    concurrency: 1\n", "must be in ascending order"),
        (
            "    input_tokens: {min: 9, mix: 50}\n    concurrency: 1\n",
            "s.yaml:6: workloads[0].input_tokens.mix: unknown field; did you mean `min`? known fields: min, max, mean",
        ),
        (
            "    input_tokens: some\n    concurrency: 1\n",
            "s.yaml:6: workloads[0].input_tokens: input should be a valid",
        ),
        (
            "    input_tokens: 16\n    concurrency: 1\n    api: chat\n",
            "`api: chat` takes no token ids",
        ),
        (
            "    input_tokens: 16\n    concurrency: 1\n    text: {file: t, words: 3}\n",
            "workloads[0].text.words: unknown field; known fields: file",
        ),
        (
            "    input_tokens: 16\n    concurrency: 1\n    shared_prefix: {tokens: 16}\n",
            "shared_prefix.tokens (16) must be less than the shortest prompt (16 input_tokens)",
        ),
        (
            "    input_tokens: 16\n    concurrency: 1\n    text: {file: t}\n    conversation: {turns: 2}\n",
            "text and conversation cannot be combined",
        ),
        (
            "    input_tokens: {min: 1, max: 2}\n    arrival: {kind: trace, file: t}\n    duration: 1m\n",
            "`input_tokens` must be a number here, the maximum",
        ),
        (
            "    input_tokens: 16\n    concurrency: 2\n    arrival: closed_loop\n    requests: 7\n"
            "    conversation: {turns: 3}\n",
            "`requests` must be a multiple of the 3 turns of a conversation",
        ),
    ],
)
def test_complaints_about_a_workload(text: str, message: str) -> None:
    said = complaint(workload(text))
    assert message in said
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    "arrival",
    [
        "{kind: constant, rate: 5}",
        "{kind: poisson, rate: 5}",
        "{kind: trace, file: trace.jsonl, speed: 1.0}",
    ],
)
def test_an_open_loop_is_accepted_by_reader_and_schema_and_survives_a_round_trip(
    arrival: str,
) -> None:
    text = workload(OPEN + arrival + "\n")
    study = parse_study(text, name="s")
    assert study.workloads[0].open_loop
    assert study.workloads[0].concurrency == OPEN_LOOP_CONCURRENCY
    jsonschema.validate(yaml.safe_load(text), make_study_schema())
    assert Study.model_validate(json.loads(study.model_dump_json())) == study
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(
            yaml.safe_load(text.replace("kind: ", "kind: no_")), make_study_schema()
        )


def test_the_context_of_a_conversation_holds_all_of_it() -> None:
    text = workload(
        "    input_tokens: {min: 10, max: 20}\n    concurrency: 2\n    conversation: {turns: 3}\n"
    )
    shape = parse_study(text, name="s").workloads[0]
    assert shape.context_tokens == 3 * (20 + 8)
    assert shape.request_count == 6


@pytest.mark.parametrize(
    ("asked", "requests", "tokens"),
    [
        ({"concurrency": 32}, 32, WARM_UP_TOKENS),
        ({"concurrency": 4, "arrival": "closed_loop"}, 4, WARM_UP_TOKENS),
        ({"concurrency": 1, "output_tokens": {"min": 1, "max": 3}}, 1, 3),
        ({"arrival": {"kind": "poisson", "rate": 5}, "requests": 300}, 300, 64),
        ({"concurrency": 2, "conversation": {"turns": 3}}, 6, 64),
    ],
)
def test_a_warm_up_has_whole_prompts_and_the_first_tokens_of_an_answer(
    asked: dict[str, Json], requests: int, tokens: int
) -> None:
    shape = Workload.model_validate(
        {"name": "w", "input_tokens": 100, "output_tokens": 64, **asked}
    )
    warm_up = Workload.model_validate(shape.warm_up.model_dump())
    assert (warm_up.request_count, warm_up.output_tokens) == (requests, tokens)
    assert (warm_up.input_tokens, warm_up.concurrency, warm_up.arrival) == (
        100,
        shape.concurrency,
        shape.arrival,
    )


def test_a_missing_file_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(StudyFileError, match="bitbench init"):
        read_study(tmp_path / "none.yaml")


def test_a_study_without_a_name_is_called_like_its_file_and_keeps_that_name(tmp_path: Path) -> None:
    path = tmp_path / "my gate.yaml"
    path.write_text("engines: [null]\nworkloads: [base]\n")
    study, text = read_study(path)
    assert study.name == "my-gate"
    assert parse_study(text, name="study.yaml") == study  # as its folder keeps it
    path.write_text("{engines: ['null'], workloads: [base]}\n")
    with pytest.raises(StudyFileError, match=r"my gate\.yaml:2: "):
        read_study(path)


def test_the_starter_is_eager_only_on_a_cpu() -> None:
    """On a GPU that would switch CUDA graphs off."""
    assert parse_study(format_starter("cuda"), name="starter").engine("vllm").args == {}


def test_a_study_survives_a_round_trip_through_json() -> None:
    study = parse_study(format_starter("cpu"), name="starter")
    assert Study.model_validate(json.loads(study.model_dump_json())) == study
