"""How llama-server is found and started, and what is refused."""

from pathlib import Path

import pytest

from bitbench.engines.llamacpp import LlamaCppEngine, command_line, find_gguf_file
from bitbench.ports import Launch, Load
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.variant import ModelFacts, Variant
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import EngineEnvironmentError, ModelError

SETUP = EngineSetup(name="llamacpp", engine="llamacpp")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "variant"
    folder.mkdir()
    (folder / "model.gguf").touch()
    return folder


@pytest.fixture
def nothing_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def variant(path: Path | None, quantization: str | None = "gguf") -> Variant:
    facts = ModelFacts(context_tokens=8192, quantization=quantization)
    return Variant(name="m/gguf-q8_0", model="m", recipe="gguf-q8_0", path=path, facts=facts)


def launch(
    path: Path | None, args: dict[str, Argument] | None = None, *, context_tokens: int = 192
) -> Launch:
    return Launch(
        setup=EngineSetup(name="llamacpp", engine="llamacpp", args=args or {}),
        variant=variant(path),
        python=Path("/env/bin/python"),
        log_file=Path("llamacpp.log"),
        loads=(Load(8, context_tokens),),
        seed=0,
    )


def executable(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_the_default_command_line(model: Path) -> None:
    assert command_line(launch(model), 8123) == [
        "/env/bin/llama-server",
        *(
            "--parallel",
            "8",
            "--ctx-size",
            "2048",
            "--cont-batching",
            "--no-cache-prompt",
            "--cache-ram",
            "0",
        ),
        *("--verbosity", "4", "--metrics", "--model", f"{model}/model.gguf", "--alias", "model"),
        *("--host", "127.0.0.1", "--port", "8123"),
    ]


@pytest.mark.parametrize(
    ("context_tokens", "total"),
    [
        (255, 8 * 256),
        (256, 8 * 512),  # a slot that is full to the last token ends a request one token early
        (8192, 8 * 8448),
    ],
)
def test_every_slot_holds_the_longest_request(model: Path, context_tokens: int, total: int) -> None:
    line = command_line(launch(model, context_tokens=context_tokens), 1)
    assert line[line.index("--ctx-size") + 1] == str(total)


@pytest.mark.parametrize(
    ("args", "expected", "unexpected"),
    [
        ({"ctx_size": 4096}, "--ctx-size 4096", "2048"),
        ({"parallel": 16}, f"--ctx-size {16 * 256}", "2048"),  # each of the slots holds a request
        ({"cache-prompt": True}, "--cache-prompt", "--no-cache-prompt"),
        ({"no-cont-batching": True}, "--no-cont-batching", " --cont-batching"),
        ({"threads": 2}, "--threads 2", "\0"),
        ({"host": "0.0.0.0"}, "--host 127.0.0.1", "0.0.0.0"),
    ],
)
def test_arguments_of_the_study_override_ours_but_not_the_loopback(
    model: Path, args: dict[str, Argument], expected: str, unexpected: str
) -> None:
    line = " ".join(command_line(launch(model, args), 8123))
    assert expected in line
    assert unexpected not in line


def test_a_server_on_the_path_needs_no_environment(nothing_on_the_path: Path, model: Path) -> None:
    assert LlamaCppEngine().environment == "llamacpp"
    server = executable(nothing_on_the_path / "llama-server")
    assert LlamaCppEngine().environment is None
    without = Launch(**{**vars(launch(model)), "python": None})
    assert command_line(without, 1)[0] == str(server)


def test_without_any_server_the_command_to_make_one_is_named(
    nothing_on_the_path: Path, model: Path
) -> None:
    with pytest.raises(EngineEnvironmentError, match="bitbench env create llamacpp"):
        command_line(Launch(**{**vars(launch(model)), "python": None}), 1)


def test_a_variant_is_a_file_or_a_folder_with_one(model: Path) -> None:
    assert find_gguf_file(model) == model / "model.gguf"
    assert find_gguf_file(model / "model.gguf") == model / "model.gguf"
    (model / "second.gguf").touch()
    assert find_gguf_file(model) is None
    with pytest.raises(ModelError, match="exactly one"):
        command_line(launch(model), 1)
    with pytest.raises(ModelError, match="needs a model"):
        command_line(launch(None), 1)


def test_a_gguf_runs_before_and_after_it_is_made_unless_it_is_too_long(model: Path) -> None:
    engine, short = LlamaCppEngine(), BUILT_IN_WORKLOADS["interactive"]
    assert engine.refuse(SETUP, variant(model), short) is None
    assert engine.refuse(SETUP, variant(None), short) is None
    assert "supports 8,192" in (
        engine.refuse(SETUP, variant(model), BUILT_IN_WORKLOADS["long_context"]) or ""
    )


def test_a_folder_with_several_files_is_refused_before_anything_runs(tmp_path: Path) -> None:
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf"):
        (tmp_path / name).touch()
    setup = EngineSetup(name="llamacpp", engine="llamacpp")
    reason = LlamaCppEngine().refuse(setup, variant(tmp_path), BUILT_IN_WORKLOADS["interactive"])
    assert reason is not None
    assert "several" in reason
