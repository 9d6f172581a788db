"""A worker that turns texts into token ids with a model's tokenizer: `python -I tokenize_texts.py
JOB.json`.

It runs in an environment with transformers and imports nothing of bitbench. The job contains:

- `tokenizer`, a folder or a GGUF file.
- `texts` and `questions`.
- `conversations`, each with the task it `asks` for and the messages of each of its `turns`.

The result contains:

- the ids of each text without special tokens.
- the ids of each question and turn, in the chat template if there is one.
- the tokens that begin every text, and the special tokens.
"""

import sys
from pathlib import Path
from typing import Any

# Needed because Python in isolated mode searches no other folder.
sys.path.append(str(Path(__file__).parents[2] / "util" / "isolated"))
from job_worker import Json, Reports, run_as_job_worker  # type: ignore[import-not-found]

PLAIN = {"user": "Message", "assistant": "Answer"}  # how a conversation looks without a template


def _run_job(job: Json, _: Reports) -> Json:
    tokenizer = _load_tokenizer(Path(job["tokenizer"]))
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    begins: list[int] = []
    if whole != plain and whole[: len(plain)] != plain:
        begins = whole[: len(whole) - len(plain)]
    texts = []
    for text in job["texts"]:
        encoding = tokenizer(text, add_special_tokens=False, verbose=False)
        texts.append(encoding["input_ids"])
    conversations = []
    for conversation in job["conversations"]:
        task = conversation["asks"]
        turns = [
            _encode_conversation(tokenizer, task, messages) for messages in conversation["turns"]
        ]
        conversations.append(turns)
    return {
        "texts": texts,
        "questions": [_encode_question(tokenizer, question) for question in job["questions"]],
        "conversations": conversations,
        "begins": begins,
        "special": sorted(tokenizer.all_special_ids),
    }


def _load_tokenizer(path: Path) -> Any:
    """Load the tokenizer of a GGUF file, or of a folder, which may contain a GGUF file."""
    from transformers import AutoTokenizer

    gguf_files = [path]
    if not path.is_file():
        gguf_files = sorted(path.glob("*.gguf"))
    if not gguf_files:
        return AutoTokenizer.from_pretrained(str(path))
    gguf_file = gguf_files[0]
    return AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)


def _encode_question(tokenizer: Any, question: str) -> Any:
    if tokenizer.chat_template is None:
        return tokenizer(question)["input_ids"]
    return _apply_template(tokenizer, [{"role": "user", "content": question}])


def _encode_conversation(tokenizer: Any, task: str, messages: list[dict[str, str]]) -> Any:
    """Return the ids of a conversation.

    The task is put before the first message, because not every template knows a system prompt.
    """
    if tokenizer.chat_template is None:
        lines = [f"{PLAIN[message['role']]}: {message['content']}\n" for message in messages]
        return tokenizer(f"{task}\n\n{''.join(lines)}{PLAIN['assistant']}:")["input_ids"]
    first = {**messages[0], "content": f"{task}\n\n{messages[0]['content']}"}
    return _apply_template(tokenizer, [first, *messages[1:]])


def _apply_template(tokenizer: Any, messages: list[dict[str, str]]) -> Any:
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    sys.exit(run_as_job_worker(sys.argv[1], _run_job))
