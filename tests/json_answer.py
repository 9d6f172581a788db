"""What a command prints with --json, checked."""

import json
from typing import Any

import jsonschema

from bitbench.cli.json_answers import make_answer_schema
from bitbench.util.errors import ExitCode


def read_answer(text: str, command: str) -> dict[str, Any]:
    """Read the only document of a command's output, and check it against the schema of the command."""
    answer: dict[str, Any] = json.loads(text)
    schema = make_answer_schema(command)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(answer, schema)
    assert (answer["format"], answer["command"]) == (1, command)
    assert answer["meaning"] == ExitCode(answer["exit_code"]).meaning
    return answer
