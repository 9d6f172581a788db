"""The llm-compressor backend as the parent sees it: a stand-in for the worker's interpreter plays each ending."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from bitbench.quantize import catalog
from bitbench.quantize.backends import QuantizeProgress, Work, run_llmcompressor_backend
from bitbench.quantize.calibration import CalibrationText
from bitbench.quantize.workers.llmcompressor_worker import (
    MODIFIERS,
    llmcompressor_ignore_pattern,
    llmcompressor_layer_options,
)
from bitbench.util.errors import QuantizeError

DONE = '{"event": "done", "facts": {"versions": {"torch": "2"}, "samples": 3}}'


@pytest.fixture
def work(tmp_path: Path) -> Work:
    text = CalibrationText("a text", ({"text": "hello"},))
    return Work(
        tmp_path, catalog.find_recipe("w8a8-smooth-gptq"), text, 7, tmp_path, tmp_path / "python", 0
    )


def play(work: Work, *lines: str, ending: str = "exit 0") -> None:
    said = "\n".join(f"echo '{line}'" for line in lines)
    work.python.write_text(f"#!/bin/sh\necho noise >&2\n{said}\n{ending}\n")
    work.python.chmod(0o755)


def test_parts_become_progress(work: Work) -> None:
    parts = [(0, 0, 2), (0, 1, 2), (0, 2, 2), (1, 0, 2), (1, 2, 2)]
    play(
        work,
        *(f'{{"event": "part", "step": {s}, "part": {p}, "parts": {n}}}' for s, p, n in parts),
        DONE,
    )
    seen: list[QuantizeProgress] = []
    facts = run_llmcompressor_backend(work, seen.append)
    assert facts.samples == 3
    assert [(p.step, p.part, p.parts) for p in seen[1:]] == [
        ("smoothquant", 0, 2), ("smoothquant", 1, 2), ("smoothquant", 2, 2), ("gptq", 0, 2), ("gptq", 2, 2),
    ]  # fmt: skip
    assert work.log_file.read_text() == "noise\n"
    assert (work.folder / "calibration.jsonl").read_text() == '{"text": "hello"}\n'


@pytest.mark.parametrize(
    ("line", "ending", "message"),
    [
        (
            '{"event": "failed", "cause": "ValueError: no"}',
            "exit 1",
            "could not create w8a8-smooth-gptq: ValueError: no",
        ),
        (
            '{"event": "stage", "name": "x"}',
            "kill -9 $$",
            "signal 9, most often for lack of memory",
        ),
        ('{"event": "stage", "name": "x"}', "exit 3", "ended with 3"),
        ('{"event": "stage", "name": "x"}', "exit 0", "ended with 0"),
    ],
)
def test_each_bad_ending_is_a_sentence(work: Work, line: str, ending: str, message: str) -> None:
    play(work, line, ending=ending)
    with pytest.raises(QuantizeError, match=message):
        run_llmcompressor_backend(work, lambda _: None)


def test_the_worker_does_not_outlive_an_interruption(work: Work) -> None:
    play(work, '{"event": "stage", "name": "x"}', ending="echo $$ > pid; exec sleep 60")

    def interrupt(progress: QuantizeProgress) -> None:
        if progress.step == "x":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_llmcompressor_backend(work, interrupt)
    if (work.folder / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((work.folder / "pid").read_text()), 0)


def test_sparsegpt_leaves_alone_what_is_ignored_under_its_name_for_it() -> None:
    pattern = llmcompressor_ignore_pattern("lm_head").removeprefix("re:")
    assert re.match(pattern, "lm_head.")
    assert not re.match(pattern, "lm_head_2.")
    assert llmcompressor_ignore_pattern("re:.*q_proj") == "re:.*q_proj"


def step_of(recipe: str) -> dict[str, Any]:
    """As the worker gets it."""
    step = catalog.find_recipe(recipe).steps[-1]
    return json.loads(step.model_dump_json())  # type: ignore[no-any-return]


def test_a_preset_goes_to_llm_compressor_by_its_name() -> None:
    assert llmcompressor_layer_options(step_of("nvfp4")) == {
        "ignore": ["lm_head"],
        "scheme": "NVFP4",
        "targets": ["Linear"],
    }
    with_cache = llmcompressor_layer_options(step_of("fp8-static-kv"))
    assert with_cache["scheme"] == "FP8"
    assert with_cache["kv_cache_scheme"] == {
        "num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False,
    }  # fmt: skip


def test_other_schemes_are_told_number_by_number() -> None:
    (group,) = llmcompressor_layer_options(step_of("w4a16-g128-gptq"))["config_groups"].values()
    assert group["weights"] == {
        "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128,
    }  # fmt: skip
    assert group["input_activations"] is None


def test_every_step_of_a_recipe_has_its_modifier() -> None:
    steps = {
        name
        for recipe in catalog.list_built_in_recipes()
        for name in (step.step for step in recipe.steps)
    }
    assert steps == MODIFIERS.keys()
