"""The tasks that come with bitbench and need no download: short questions, each with one right answer.

They are made from a fixed seed, so every variant and every study is asked the same; only `choice` and the needle's
surroundings are of the study's own text. Each kind grows harder from its first question to its last, so that small and
large models both have some that they just manage.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from zlib import crc32

from bitbench.quality.conversations import Message
from bitbench.records.quality import TaskQuestion
from bitbench.study.base import Json
from bitbench.study.quality import BUILT_IN, BUILT_IN_ANSWER, BUILT_IN_TOKENS, Quality
from bitbench.util.errors import QualityError

QUESTIONS = 40  # of each kind
DEPTHS, AT_EACH_DEPTH = (0, 25, 50, 75, 100), 4  # percent of the text before the needle; needles at each
SHORT_ANSWER = 16  # tokens of a number or a word
LEAST_FILLER = 32  # tokens of text around a needle: in a shorter window there is nothing to look through
_CITIES = (
    "Oslo", "Lima", "Cairo", "Quito", "Paris", "Delhi", "Hanoi", "Accra", "Dublin", "Madrid", "Lisbon", "Vienna",
    "Prague", "Warsaw", "Athens", "Havana", "Nairobi", "Jakarta", "Bogota", "Ottawa",
)  # fmt: skip
_NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eva", "Finn", "Greta", "Hugo", "Ines", "Jonas", "Karl", "Lena", "Mara", "Nils")
_JOBS = ("baker", "nurse", "pilot", "farmer", "teacher", "painter", "doctor", "sailor", "lawyer", "singer")
_WORDS = (
    "apple", "river", "stone", "cloud", "table", "green", "seven", "light", "horse", "paper", "window", "silver",
    "garden", "bridge", "winter", "candle", "mirror", "orange", "shadow", "travel",
)  # fmt: skip
_FILLED_IN = ("alpha", "omega")  # stand where a needle's text goes; what two prompts share is around it

Exchange = tuple[str, str]  # what is asked, and the right answer


@dataclass(frozen=True)
class BuiltInTask:
    name: str
    asks: str
    examples: tuple[Exchange, ...]
    questions: tuple[Exchange, ...]
    answer_tokens: int = SHORT_ANSWER

    def messages(self, question: str) -> list[Message]:
        told = [
            {"role": role, "content": content}
            for example in self.examples
            for role, content in zip(("user", "assistant"), example, strict=True)
        ]
        return [*told, {"role": "user", "content": question}]


@dataclass(frozen=True)
class Needle:
    """A sentence to be found, and its question with two texts in its place."""

    sentence: str
    right: str
    depth: int
    asked: BuiltInTask


@dataclass(frozen=True)
class BuiltIn:
    """All tasks: what the tokenizer gets, and the questions that come of it."""

    tasks: tuple[BuiltInTask, ...] = ()
    needles: tuple[Needle, ...] = ()

    @classmethod
    def of(cls, text: str) -> "BuiltIn":
        """`text`: of the corpus."""
        return cls(built_in_tasks(text), needles())

    @property
    def sentences(self) -> tuple[str, ...]:
        return tuple(needle.sentence for needle in self.needles)

    @property
    def asked(self) -> Iterator[Mapping[str, Json]]:
        """Of each task, then of each needle: what it asks for, and the messages of its questions."""
        for task in (*self.tasks, *(needle.asked for needle in self.needles)):
            yield {"asks": task.asks, "turns": [task.messages(question) for question, _ in task.questions]}

    def questions(
        self,
        tokenized: Sequence[Sequence[Sequence[int]]],
        sentences: Sequence[Sequence[int]],
        filler: Sequence[int],
        quality: Quality,
    ) -> Iterator[TaskQuestion]:
        """`tokenized` is of `asked`, `sentences` of `sentences`; `filler`: tokens of the corpus."""
        of_tasks, of_needles = tokenized[: len(self.tasks)], tokenized[len(self.tasks) :]
        yield from _questions(self.tasks, of_tasks, quality.task_samples)
        yield from _needle_questions(self.needles, sentences, of_needles, filler, quality)


NO_BUILT_IN = BuiltIn()


def built_in_tasks(text: str) -> tuple[BuiltInTask, ...]:
    """All but the needle; `text`: of the corpus."""
    return (_arithmetic(), _copying(), _json(), _choice(text))


def needles() -> tuple[Needle, ...]:
    random, found = Random(f"{BUILT_IN}/needle"), []
    for number in range(len(DEPTHS) * AT_EACH_DEPTH):
        city, code = _CITIES[number], str(random.randrange(10_000, 100_000))
        questions = tuple((_needle_question(filled, city), code) for filled in _FILLED_IN)
        example = _needle_question("It rained. The secret number of Rome is 50412. The train was late.", "Rome")
        asks = "Find the secret number in the text and answer with the number."
        task = BuiltInTask("needle", asks, ((example, "50412"),), questions)
        found.append(Needle(f" The secret number of {city} is {code}.", code, DEPTHS[number // AT_EACH_DEPTH], task))
    return tuple(found)


def _needle_question(text: str, city: str) -> str:
    return f"Text:\n\n{text}\n\nWhat is the secret number of {city}?"


def _arithmetic() -> BuiltInTask:
    random = Random(f"{BUILT_IN}/arithmetic")
    questions = []
    for number in range(QUESTIONS):
        most = (10, 30, 100, 1000)[number * 4 // QUESTIONS]
        first, second = sorted((random.randrange(2, most), random.randrange(2, most)), reverse=True)
        sign, value = (("+", first + second), ("-", first - second), ("*", first * second))[number % 3]
        questions.append((f"{first} {sign} {second} =", str(value)))
    examples = (("3 + 4 =", "7"), ("9 - 2 =", "7"), ("6 * 5 =", "30"))
    return BuiltInTask("arithmetic", "Answer with the number.", examples, tuple(questions))


def _copying() -> BuiltInTask:
    random, questions = Random(f"{BUILT_IN}/copying"), []
    for number in range(QUESTIONS):
        length = 3 + number * 10 // QUESTIONS
        words = [
            random.choice(_WORDS) if random.random() < 0.7 else str(random.randrange(10, 1000)) for _ in range(length)
        ]
        questions.append((" ".join(words), " ".join(words)))
    examples = (("door 15 yellow", "door 15 yellow"), ("spoon basket 802 lamp", "spoon basket 802 lamp"))
    asks = "Repeat each line exactly as it is."
    return BuiltInTask("copying", asks, examples, tuple(questions), BUILT_IN_ANSWER)


def _json() -> BuiltInTask:
    random = Random(f"{BUILT_IN}/json")

    def exchange(name: str, age: int, job: str, city: str) -> Exchange:
        said = f"{name}, who is {age}, works as a {job} in {city}."
        return said, json.dumps({"name": name, "age": age, "job": job, "city": city})

    questions = tuple(
        exchange(random.choice(_NAMES), random.randrange(18, 90), random.choice(_JOBS), random.choice(_CITIES))
        for _ in range(QUESTIONS)
    )
    examples = (exchange("Tom", 41, "cook", "Rome"), exchange("Olga", 27, "driver", "Kyiv"))
    asks = 'Write each person as one line of JSON with "name" (string), "age" (integer), "job" and "city" (strings).'
    return BuiltInTask("json", asks, examples, questions, BUILT_IN_ANSWER)


def _choice(text: str) -> BuiltInTask:
    """Which of four words of the corpus stands in a passage of it. Passages grow longer."""
    random = Random(f"{BUILT_IN}/choice")
    words = re.findall(r"[A-Za-z]+", text)
    known = dict.fromkeys(word for word in words if word.islower() and 5 <= len(word) <= 12)
    questions: list[Exchange] = []
    for number in range(QUESTIONS if len(known) >= 8 else 0):
        length = min(12 + number * 60 // QUESTIONS, len(words))
        start = random.randrange(len(words) - length + 1)
        passage = words[start : start + length]
        inside = [word for word in passage if word in known]
        others = [word for word in known if word not in passage]
        if inside and len(others) >= 3:
            right = random.choice(inside)
            offered = [right, *random.sample(others, 3)]
            random.shuffle(offered)
            questions.append((_choice_question(" ".join(passage), offered), right))
    examples = (
        (
            _choice_question("the old house near the bridge was sold", ["window", "bridge", "summer", "orange"]),
            "bridge",
        ),
        (
            _choice_question("they waited for an answer until monday", ["answer", "forest", "copper", "dinner"]),
            "answer",
        ),
    )
    return BuiltInTask("choice", "Answer with the word that is in the text.", examples, tuple(questions))


def _choice_question(passage: str, offered: Sequence[str]) -> str:
    return f"Text: {passage}\nWhich word is in the text: {', '.join(offered)}?"


def _questions(
    tasks: Sequence[BuiltInTask], tokenized: Sequence[Sequence[Sequence[int]]], most: int | None
) -> Iterator[TaskQuestion]:
    """`tokenized`: of each task, its questions; `most`: of each task, at even distances, so that easy and hard ones
    are among them."""
    for task, prompts in zip(tasks, tokenized, strict=True):
        count = min(most or QUESTIONS, len(prompts))
        for number in (place * len(prompts) // count for place in range(count)):
            tokens, (_, right) = prompts[number], task.questions[number]
            if len(tokens) > BUILT_IN_TOKENS:
                raise QualityError(
                    f"The tokenizer makes {len(tokens)} tokens of a question of the task {task.name}, and at most "
                    f"{BUILT_IN_TOKENS} are asked; leave `{BUILT_IN}` out of `tasks` under `quality`."
                )
            yield _question(f"{BUILT_IN}/{task.name}", str(number + 1), tokens, right, task.answer_tokens)


def _needle_questions(
    found: Sequence[Needle],
    sentences: Sequence[Sequence[int]],
    tokenized: Sequence[Sequence[Sequence[int]]],
    filler: Sequence[int],
    quality: Quality,
) -> Iterator[TaskQuestion]:
    """Prompts with their answers fill a window of each length."""
    for length in quality.window_counts:
        for number, (needle, sentence, (prompt, other)) in enumerate(zip(found, sentences, tokenized, strict=True)):
            before = prompt[: _shared(prompt, other)]
            after = prompt[len(prompt) - _shared(prompt[::-1], other[::-1]) :]
            room = length - len(before) - len(after) - len(sentence) - SHORT_ANSWER
            if not LEAST_FILLER <= room <= len(filler):
                continue
            start = number * 997 % (len(filler) - room + 1)
            text, place = filler[start : start + room], room * needle.depth // 100
            tokens = (*before, *text[:place], *sentence, *text[place:], *after)
            name = f"{needle.depth} % deep, {number % AT_EACH_DEPTH + 1}"
            question = _question(f"{BUILT_IN}/needle-{length}", name, tokens, needle.right, SHORT_ANSWER)
            yield question.model_copy(update={"depth": needle.depth, "length": length})


def _shared(tokens: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (left, right) in enumerate(zip(tokens, other, strict=False)) if left != right), 0)


def _question(task: str, name: str, tokens: Sequence[int], right: str, answer_tokens: int) -> TaskQuestion:
    """Its name tells other tokens apart: the same question of another text or tokenizer is another one."""
    name = f"{name} ({crc32(json.dumps([*tokens]).encode()):08x})"
    return TaskQuestion(task=task, name=name, tokens=tuple(tokens), right=right, answer_tokens=answer_tokens)


def is_right(question: TaskQuestion, text: str) -> bool:
    kind = question.task.removeprefix(f"{BUILT_IN}/").partition("-")[0]
    return _CHECKS[kind](text.strip(), question.right)


def _is_number(text: str, right: str) -> bool:
    numbers = re.findall(r"-?\d+", text.replace(",", ""))
    return bool(numbers) and numbers[-1] == right


def _is_json(text: str, right: str) -> bool:
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return bool(value == json.loads(right))


def _is_word(text: str, right: str) -> bool:
    words = re.findall(r"[a-z]+", text.lower())
    return (right in words and len(words) < 4) or words[:1] == [right]


_CHECKS: Mapping[str, Callable[[str, str], bool]] = {
    "arithmetic": _is_number,
    "copying": lambda text, right: text.strip("\"'` .") == right,
    "json": _is_json,
    "choice": _is_word,
    "needle": lambda text, right: right in text,
}
