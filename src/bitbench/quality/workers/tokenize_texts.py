"""Turns texts into token ids with a model's own tokenizer.

Run by path in an engine's environment; imports nothing of ours. A job comes as JSON on standard input: `tokenizer` (a
folder), `texts`, `questions`. The answer goes to standard output: ids of each text without special tokens, ids of each
question (in the chat template where there is one), the token that begins every text, and those that end one.
"""

import json
import os
import sys
from typing import Any


def main() -> None:
    job = json.load(sys.stdin)
    answer_fd = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not come between
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(job["tokenizer"])
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    whole = tokenizer("a")["input_ids"]
    begins = whole[: len(whole) - len(plain)] if whole != plain and whole[: len(plain)] != plain else []
    result = {
        "texts": [tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"] for text in job["texts"]],
        "questions": [ask(tokenizer, question) for question in job["questions"]],
        "begins": begins,
        "special": sorted(tokenizer.all_special_ids),
    }
    with os.fdopen(answer_fd, "w") as answer:
        json.dump(result, answer)


def ask(tokenizer: Any, question: str) -> Any:
    if tokenizer.chat_template is None:
        return tokenizer(question)["input_ids"]
    messages = [{"role": "user", "content": question}]
    text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    main()
