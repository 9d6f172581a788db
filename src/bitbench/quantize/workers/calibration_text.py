"""The calibration text of a job as token ids, for the workers in this folder.

It imports nothing of bitbench.
"""

import json
import random
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def calibration_text_pieces(job: Json, tokenizer: Any) -> list[list[int]]:
    """Return the job's number of pieces, drawn by its seed.

    Each conversation is a piece, cut to the job's length. Plain text is cut into pieces of exactly
    this length.
    """
    length = job["tokens"]
    pieces: list[list[int]] = []
    stream: list[int] = []
    for line in Path(job["calibration"]).read_text(encoding="utf-8").splitlines():
        document = json.loads(line)
        if "messages" in document:
            pieces.append(_tokenize_conversation(document["messages"], tokenizer)[:length])
        else:
            stream += tokenizer(document["text"])["input_ids"]
    for start in range(0, len(stream) - length + 1, length):
        pieces.append(stream[start : start + length])
    pieces = [piece for piece in pieces if piece] or [stream]
    random.Random(job["seed"]).shuffle(pieces)
    return pieces[: job["samples"]]


def _tokenize_conversation(messages: list[Json], tokenizer: Any) -> list[int]:
    if not tokenizer.chat_template:
        raise ValueError(
            "the calibration text contains conversations, but this model has no chat template; "
            "use plain text"
        )
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return ids
