"""Scripted conversations: what is asked, which answers are valid, and what is written down."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bitbench.planning.estimate import guess_quality_s
from bitbench.quality.conversations import conversations, find_fault, load_conversation_tasks
from bitbench.quality.logprobs import InstanceConnection, NextToken, PromptLogprobs
from bitbench.quality.material import make_material, make_material_scripts
from bitbench.quality.measure import QualityJob, ask_conversations, measure_quality
from bitbench.records.quality import Script, TurnAnswer, TurnPrompt
from bitbench.study.quality import CONVERSATION_TURNS, CONVERSATIONS, Quality, Scoring, Turns
from bitbench.study.variant import ModelFacts, Variant
from bitbench.util.errors import QualityError
from tests.support.quality_server import QualityServer
from tests.support.stand_in_environment import stand_in_python
from tests.unit.test_quality import MATERIAL, server  # noqa: F401
from tests.unit.test_workers import CORPUS, TRANSFORMERS

ALL = conversations(Turns())
PERSON, ALARM, LIGHTS, RECIPE, ORDER = (
    load_conversation_tasks()[name] for name in ("person", "alarm", "lights", "recipe", "order")
)


def test_all_that_is_shipped_can_be_asked_for_and_tasks_take_turns() -> None:
    assert len(ALL) == CONVERSATIONS
    assert len({one.name for one in ALL}) == CONVERSATIONS
    assert all(len(one.turns) == CONVERSATION_TURNS for one in ALL)
    some = conversations(Turns(conversations=8, turns=2))
    assert [one.task.name for one in some] == list(load_conversation_tasks())
    assert all(len(one.turns) == 2 for one in some)
    assert sum(one.task.tools is None for one in some) == 4  # half are extractions


@pytest.mark.parametrize("task", load_conversation_tasks().values(), ids=lambda task: task.name)
def test_the_scripts_own_answers_are_valid_and_are_not_in_their_own_prompt(task: object) -> None:
    own = [one for one in ALL if one.task == task]
    for exchange in (*own[0].task.examples, *(turn for one in own for turn in one.turns)):
        assert find_fault(json.dumps(exchange.answer), own[0].task) is None, exchange
    said = [turn.say for one in own for turn in one.turns]
    assert len(set(said)) == len(said)
    for one in own:
        for turn, messages in zip(one.turns, one.messages, strict=True):
            assert messages[-1] == {"role": "user", "content": turn.say}
            assert json.dumps(turn.answer) not in [message["content"] for message in messages]


@pytest.mark.parametrize(
    ("task", "text", "fault"),
    [
        (PERSON, '{"name": "Ada", "city": "Rome", "age": 36}', None),
        (PERSON, '  {"age":36.0,"city":"Rome","name":"Ada"}  ', None),
        (PERSON, "", "it is empty"),
        (PERSON, " \n", "it is empty"),
        (
            PERSON,
            '{"name": "Ada", "city": "Rome", "age": 36',
            "it is not JSON (Expecting ',' delimiter)",
        ),
        (PERSON, '{"name": "Ada", "city": "Rome", "age": 36} Done.', "it is not JSON (Extra data)"),
        (PERSON, 'Sure! {"name": "Ada"}', "it is not JSON (Expecting value)"),
        (PERSON, "```json", "it is not JSON (Expecting value)"),
        (PERSON, "[1]", "it is JSON, but not an object"),
        (PERSON, '"name"', "it is JSON, but not an object"),
        (PERSON, '{"name": "Ada", "age": 36}', "`city` is missing"),
        (PERSON, '{"name": "Ada", "city": "Rome", "age": 36, "job": 1}', "`job` was not asked for"),
        (PERSON, '{"name": "Ada", "city": "Rome", "age": "36"}', "`age` is of the wrong kind"),
        (PERSON, '{"name": "Ada", "city": "Rome", "age": 36.5}', "`age` is of the wrong kind"),
        (PERSON, '{"name": "Ada", "city": "Rome", "age": true}', "`age` is of the wrong kind"),
        (PERSON, '{"name": "Ada", "city": null, "age": 3}', "`city` is of the wrong kind"),
        (PERSON, '{"name": "Ada", "city": "Rome", "age": NaN}', "it is not JSON (it has no NaN)"),
        (ORDER, '{"item": "x", "count": 1, "price": 1e999}', "`price` is of the wrong kind"),
        (ORDER, f'{{"item": "x", "count": 1, "price": {"9" * 400}}}', None),
        (RECIPE, '{"dish": "x", "minutes": 1, "needs": ["a", 2]}', "`needs` is of the wrong kind"),
        (RECIPE, '{"dish": "x", "minutes": 1, "needs": []}', None),
        (ALARM, '{"tool": "cancel_alarm", "arguments": {"label": "x"}}', None),
        (
            ALARM,
            '{"tool": "snooze", "arguments": {"label": "x"}}',
            "it calls a tool that does not exist",
        ),
        (ALARM, '{"tool": ["set_alarm"], "arguments": {}}', "it calls a tool that does not exist"),
        (ALARM, '{"tool": "set_alarm", "arguments": "07:00"}', "its arguments are not an object"),
        (ALARM, '{"tool": "set_alarm", "arguments": {"time": "07:00"}}', "`label` is missing"),
        (ALARM, '{"tool": "set_alarm"}', "`arguments` is missing"),
        (
            LIGHTS,
            '{"tool": "set_light", "arguments": {"room": "r", "on": true, "level": "high"}}',
            None,
        ),
        (
            LIGHTS,
            '{"tool": "set_light", "arguments": {"room": "r", "on": true, "level": "bright"}}',
            "`level` is of the wrong kind",
        ),
        (
            LIGHTS,
            '{"tool": "set_light", "arguments": {"room": "r", "on": "yes", "level": "high"}}',
            "`on` is of the wrong kind",
        ),
        (PERSON, "x" * 5_000, "it has more than 4,096 characters"),
        (PERSON, "[" * 4_000, "it is not JSON (nested too deeply)"),
        (PERSON, '{"name": "Ada", "city": "Rome", "age": 3, "' + "\\u0007" * 40 + '": 1}', None),
    ],
)
def test_an_answer_is_valid_as_a_program_would_have_it(
    task: object, text: str, fault: str | None
) -> None:
    found = find_fault(text, task)  # type: ignore[arg-type]
    if "\\u0007" in text:
        assert found is not None
        assert found.isprintable()
        assert len(found) < 200
    else:
        assert found == fault


def test_prompts_are_kept_as_what_each_turn_adds() -> None:
    one = conversations(Turns(conversations=8, turns=3))[:1]
    tokenized = [[[1, 2, 3], [1, 2, 3, 4, 5], [1, 2, 9]]]
    (script,) = make_material_scripts(one, tokenized)
    assert [(turn.kept, turn.tokens) for turn in script.turns] == [
        (0, (1, 2, 3)),
        (3, (4, 5)),
        (2, (9,)),
    ]
    assert script.prompts == ((1, 2, 3), (1, 2, 3, 4, 5), (1, 2, 9))
    assert Script.model_validate_json(script.model_dump_json()) == script


IN_TEMPLATE = TRANSFORMERS.replace("chat_template = None", "chat_template = 'x'").replace(
    "    def __call__",
    """    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        return "".join("<%s>%s" % (one["role"], one["content"]) for one in messages) + "<answer>"
    def __call__""",
)


@pytest.mark.parametrize(
    ("code", "begins", "ends"),
    [
        (
            TRANSFORMERS,
            "\x01Answer each message with one JSON object",
            "Message: I am Maria, {}\nAnswer:",
        ),
        (
            IN_TEMPLATE,
            "<user>Answer each message with one JSON object",
            "<user>I am Maria, {}<answer>",
        ),
    ],
    ids=["plain", "chat template"],
)
def test_the_worker_writes_conversations_as_the_model_wants_them(
    tmp_path: Path, code: str, begins: str, ends: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bitbench.quality import material

    monkeypatch.setattr(material, "CONVERSATION_TOKENS", 10_000)  # a token per character
    python = stand_in_python(tmp_path / "env", transformers=code)
    quality = Quality(
        windows=2, window_tokens=8, answer_tokens=0, turns=Turns(conversations=8, turns=2)
    )
    made = make_material(CORPUS, quality, tmp_path, python)
    first, second = ("".join(map(chr, prompt)) for prompt in made.scripts[0].prompts)
    assert first.startswith(begins)
    assert first.endswith(ends.format("I live in Porto and I am 35."))
    assert '{"name": "Tom", "city": "Leeds", "age": 41}' in first  # an example
    assert (
        '{"name": "Maria", "city": "Porto", "age": 35}' in second
    )  # the script's answer to the turn before
    assert '{"name": "Jonas"' not in second


def test_a_tokenizer_that_needs_too_many_tokens_is_named(tmp_path: Path) -> None:
    python = stand_in_python(tmp_path / "env", transformers=TRANSFORMERS)
    quality = Quality(windows=2, window_tokens=8, answer_tokens=0, turns=Turns())
    with pytest.raises(QualityError, match="tokens of a scripted conversation, and at most 1024"):
        make_material(CORPUS, quality, tmp_path, python)


def script_of(name: str, turns: int = 3) -> Script:
    """Its prompts end with the number of the turn."""
    return Script(
        name=name,
        task="person",
        turns=tuple(TurnPrompt(kept=0, tokens=(5, turn)) for turn in range(turns)),
    )


VALID = '{"name": "Ada", "city": "Rome", "age": 36}'


class Scripted:
    """An asker whose conversation breaks in this turn, counted from 0."""

    def __init__(self, breaks_at: int) -> None:
        self._breaks_at = breaks_at
        self.asked: list[int] = []

    def score(self, window: Sequence[int], top: int) -> list[dict[int, float]]:
        raise AssertionError

    def answer(
        self, prompt: Sequence[int], length: int, end_tokens: Sequence[int], stop: str | None = None
    ) -> tuple[list[int], str]:
        assert stop == "\n"
        self.asked.append(prompt[-1])
        return [], "Ada\x07" if prompt[-1] == self._breaks_at else VALID


def test_a_conversation_ends_at_its_first_fault() -> None:
    asker = Scripted(1)
    (found,) = ask_conversations(asker, [script_of("a")], (0,), lambda _: None)
    assert asker.asked == [0, 1]
    assert (found.broke_at, found.turns) == (2, 3)
    assert found.answers[1] == TurnAnswer(text="Ada\\x07", fault="it is not JSON (Expecting value)")
    (whole,) = ask_conversations(Scripted(9), [script_of("a")], (0,), lambda _: None)
    assert whole.broke_at is None


def test_servers_are_asked_to_stop_at_the_end_of_a_line(server: QualityServer) -> None:  # noqa: F811
    server.text_of = lambda _: f"{VALID}\nand more"
    with InstanceConnection(server.endpoint, 5.0) as connection:
        _, text = PromptLogprobs(connection).answer((1, 2), 8, (0,), stop="\n")
    assert text == VALID
    assert server.asked[0]["stop"] == ["\n"]


def test_llama_cpp_writes_no_further_than_the_end_of_a_line(server: QualityServer) -> None:  # noqa: F811
    """There token by token: after 3 come 6, 12, 24, 48, which are the letters F, L, X and p."""
    with InstanceConnection(server.endpoint, 5.0) as connection:
        tokens, text = NextToken(connection).answer((9, 3), 8, (0,), stop="X")
    assert (tokens, text) == ([6, 12, 24], "FL")


def test_what_is_measured_has_conversations_where_they_are_asked_for(server: QualityServer) -> None:  # noqa: F811
    server.text_of = lambda body: VALID if body["prompt"][-1] < 2 else "no"
    material = MATERIAL.model_copy(update={"scripts": (script_of("a"), script_of("b", 2))})
    job = QualityJob(
        server.endpoint, Scoring.PROMPT_LOGPROBS, Quality(top_tokens=3), material, None, 5.0
    )
    steps: list[str] = []
    found = measure_quality(job, steps.append)[1]["conversations"]
    assert [(one.name, one.broke_at) for one in found] == [("a", 3), ("b", None)]
    assert "conversation 2 of 2" in steps


def test_a_context_has_room_for_conversations_and_a_plan_for_their_time() -> None:
    short = Quality(window_tokens=8, answer_tokens=0)
    with_turns = short.model_copy(update={"turns": Turns()})
    assert (short.context_tokens, with_turns.context_tokens) == (9, 1120)
    facts = ModelFacts(parameters=135_000_000)
    variant = Variant(
        name="v", model="m", recipe="r", path=Path("/m"), weight_bytes=270_000_000, facts=facts
    )
    seconds = [
        guess_quality_s(variant, one, Scoring.PROMPT_LOGPROBS) for one in (short, with_turns)
    ]
    assert seconds[1] - seconds[0] == pytest.approx(144 * (400 * 0.0009 + 30 * 0.037))


@pytest.mark.parametrize(
    "asked", [{"conversations": 25}, {"conversations": 7}, {"turns": 7}, {"turns": 0}]
)
def test_more_than_is_shipped_is_refused(asked: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"(less|greater) than or equal"):
        Quality.model_validate({"turns": asked})
