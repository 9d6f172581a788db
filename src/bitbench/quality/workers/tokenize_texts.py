"""Turns texts into token ids with a model's own tokenizer: `python -I tokenize_texts.py JOB.json`.

Run in an environment with transformers; imports nothing of bitbench. The job: `tokenizer` (a folder or a GGUF file),
`texts`, `questions`, `conversations` (each with what it `asks` for, and the messages of each of its `turns`). It
returns the ids of each text without special tokens, those of each question and of each turn (in the chat template where
there is one), the tokens that begin every text, and those that are special.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.append(
    str(Path(__file__).parents[2] / "util" / "isolated")
)  # run in isolated mode, python looks nowhere else
from job_worker import Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

PLAIN = {"user": "Message", "assistant": "Answer"}  # how a conversation looks without a template


def _work(job: Json, _: Reports) -> Json:
    from transformers import AutoTokenizer

    place = Path(job["tokenizer"])
    gguf = place if place.is_file() else next(iter(sorted(place.glob("*.gguf"))), None)
    folder, named = (place, {}) if gguf is None else (gguf.parent, {"gguf_file": gguf.name})
    tokenizer = AutoTokenizer.from_pretrained(str(folder), **named)
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    begins = (
        whole[: len(whole) - len(plain)] if whole != plain and whole[: len(plain)] != plain else []
    )
    return {
        "texts": [
            tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            for text in job["texts"]
        ],
        "questions": [_tokenize_question(tokenizer, question) for question in job["questions"]],
        "conversations": [
            [
                _converse(tokenizer, conversation["asks"], messages)
                for messages in conversation["turns"]
            ]
            for conversation in job["conversations"]
        ],
        "begins": begins,
        "special": sorted(tokenizer.all_special_ids),
    }


def _tokenize_question(tokenizer: Any, question: str) -> Any:
    if tokenizer.chat_template is None:
        return tokenizer(question)["input_ids"]
    return _in_template(tokenizer, [{"role": "user", "content": question}])


def _converse(tokenizer: Any, asks: str, messages: list[dict[str, str]]) -> Any:
    """What is asked for stands before the first message: not every template knows a system's part."""
    if tokenizer.chat_template is None:
        said = [f"{PLAIN[message['role']]}: {message['content']}\n" for message in messages]
        return tokenizer(f"{asks}\n\n{''.join(said)}{PLAIN['assistant']}:")["input_ids"]
    first = {**messages[0], "content": f"{asks}\n\n{messages[0]['content']}"}
    return _in_template(tokenizer, [first, *messages[1:]])


def _in_template(tokenizer: Any, messages: list[dict[str, str]]) -> Any:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _work))
