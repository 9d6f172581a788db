"""Models of a hub, downloaded by the real huggingface_hub from a hub on this machine."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.machine.workplace import Workplace, get_default_home
from bitbench.models import hub, library
from bitbench.models.folder import MANIFEST
from bitbench.models.hub import HubReference, parse_hub_reference
from bitbench.planning.plan import plan_study
from bitbench.planning.readiness import hub_python, make_model_ready
from bitbench.util.errors import ModelError
from tests.support.hub_server import HubServer, Repository, hub_server
from tests.support.quantize_stand_in import write_model

FIRST, SECOND = "1" * 40, "2" * 40
NAME = "acme/Tiny-1B"
TOKEN = "hf_canaryCANARYcanaryCANARYcanary0123"


@pytest.fixture(scope="module")
def python() -> Path:
    try:
        return hub_python(get_default_home())
    except ModelError as error:
        pytest.skip(f"huggingface_hub is missing: {error}")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in [name for name in os.environ if name.startswith(("HF_", "HUGGING"))]:
        monkeypatch.delenv(name)
    with hub_server() as running:
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        folder = write_model(tmp_path / "source")
        files = {path.name: path.read_bytes() for path in folder.iterdir()}
        files |= {
            "tokenizer.json": b"{}",
            "pytorch_model.bin": b"pickle",
            "modeling_tiny.py": b"code",
            "README.md": b"",
            MANIFEST: b'{"commit": "theirs"}',
        }
        files["original/consolidated.safetensors"] = files["model.safetensors"]
        later = {**files, "tokenizer.json": b'{"added_tokens": []}'}
        running.repositories[NAME] = Repository({FIRST: files, SECOND: later}, {"main": FIRST})
        yield running


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def get(python: Path, home: Path, name: str = NAME) -> hub.Download:
    reference = parse_hub_reference(name)
    assert reference is not None
    return hub.download(reference, home, python=python)


def test_a_model_is_downloaded_without_pickles_and_code(
    python: Path, server: HubServer, home: Path
) -> None:
    got = get(python, home)
    assert {path.name for path in got.model.path.iterdir()} == {
        "config.json", "model.safetensors", "tokenizer.json", MANIFEST,
    }  # fmt: skip
    assert json.loads((got.model.path / MANIFEST).read_text())["commit"] == FIRST
    found = library.resolve(NAME, home)
    assert (found.name, found.commit, found.path) == ("Tiny-1B", FIRST, got.model.path)
    assert NAME in [model.name for model in library.list_models(home)]


def test_what_the_shared_cache_has_is_not_downloaded_again(
    python: Path, server: HubServer, tmp_path: Path
) -> None:
    get(python, tmp_path / "home")
    again = get(python, tmp_path / "another home")
    assert server.downloads("model.safetensors") == [""]
    assert (again.model.path / "model.safetensors").resolve().is_relative_to(tmp_path / "hf")


def test_a_download_that_breaks_off_continues_where_it_stopped(
    python: Path, server: HubServer, home: Path
) -> None:
    server.repositories[NAME].commits[FIRST]["model.safetensors"] = bytes(12 * 2**20)
    server.break_after["model.safetensors"] = (
        11 * 2**20
    )  # huggingface_hub keeps whole pieces of 10 MiB
    get(python, home)
    assert server.downloads("model.safetensors") == ["", f"bytes={10 * 2**20}-"]


def test_a_moved_branch_is_said_and_a_commit_asks_nobody(
    python: Path, server: HubServer, home: Path
) -> None:
    old = get(python, home)
    server.repositories[NAME].branches["main"] = SECOND
    assert library.resolve(NAME, home).commit == FIRST  # nothing moves by itself
    moved = get(python, home)
    assert (moved.moved_from, moved.model.commit) == (FIRST, SECOND)
    assert server.downloads("model.safetensors") == [""]  # the same content in both
    assert (
        library.resolve(NAME, home).content_hash
        != library.resolve(f"{NAME}@{FIRST}", home).content_hash
    )
    assert [str(model.reference) for model in hub.list_downloaded(home)] == [
        f"{NAME}@{FIRST}",
        NAME,
    ]
    server.asked.clear()
    assert get(python, home, f"{NAME}@{FIRST}").model.path == old.model.path
    assert server.asked == []


def test_a_gated_model_needs_a_token_that_is_kept_nowhere(
    python: Path, server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.repositories[NAME].token = TOKEN
    with pytest.raises(ModelError, match=r"is gated: accept its conditions on .*HF_TOKEN"):
        get(python, home)
    monkeypatch.setenv("HF_TOKEN", TOKEN[::-1])
    with pytest.raises(ModelError, match=r"your token has no access") as refused:
        get(python, home)
    assert TOKEN[::-1] not in str(refused.value)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    get(python, home)
    kept = [
        path
        for path in tmp_path.rglob("*")
        if path.is_file() and TOKEN.encode() in path.read_bytes()
    ]
    assert kept == []


def test_the_token_of_the_usual_file_is_used(
    python: Path, server: HubServer, home: Path, tmp_path: Path
) -> None:
    server.repositories[NAME].token = TOKEN
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "token").write_text(TOKEN)
    assert get(python, home).model.commit == FIRST


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("acme/Nothing", "has no model acme/Nothing, or it is private"),
        (f"{NAME}@v9", "acme/Tiny-1B has no revision v9"),
    ],
)
def test_what_does_not_exist_is_named(
    python: Path, server: HubServer, home: Path, name: str, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        get(python, home, name)


def test_without_a_network_only_the_cache_answers(
    python: Path, server: HubServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ModelError, match=r"is not in .*HF_HUB_OFFLINE forbids asking the hub"):
        get(python, home)
    assert server.asked == []
    monkeypatch.delenv("HF_HUB_OFFLINE")
    get(python, home)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    got = get(python, tmp_path / "another home")
    assert got.from_cache
    assert got.model.commit == FIRST
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert get(python, tmp_path / "a third home").from_cache
    monkeypatch.setenv("HF_HOME", str(tmp_path / "empty"))
    with pytest.raises(ModelError, match=r"cannot be reached, or the connection broke off"):
        get(python, tmp_path / "a fourth home")


def test_the_command_tells_how_far_it_is_and_what_has_moved(
    python: Path, server: HubServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitbench.planning.readiness.hub_python", lambda _: python)
    progress: list[tuple[int, int]] = []

    def run() -> list[str]:
        return make_model_ready(
            NAME, home, on_step=print, on_progress=lambda *now: progress.append(now)
        )

    (where,) = run()
    assert where.startswith(f"{NAME} is at {home}")
    files = server.repositories[NAME].commits[FIRST]
    needed = sum(
        len(files[name]) for name in ("config.json", "model.safetensors", "tokenizer.json")
    )
    assert {total for _, total in progress} == {needed}
    server.repositories[NAME].branches["main"] = SECOND
    assert run()[-1].endswith(f"To keep the old one, write {NAME}@{FIRST}.")


def test_without_huggingface_hub_the_command_to_get_it_is_named(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bitbench.planning.readiness.find_spec", lambda _: None)
    with pytest.raises(
        ModelError, match=r"pip install 'bitbench\[hub\]', or create an environment"
    ):
        hub_python(home)


def test_a_file_stays_where_another_of_its_repository_is_downloaded_later(
    python: Path, server: HubServer, home: Path
) -> None:
    files = {name: name.encode() for name in ("Tiny-Q4_K_M.gguf", "Tiny-Q8_0.gguf")}
    repository = Repository({FIRST: files, SECOND: files}, {"main": FIRST})
    server.repositories["acme/Tiny-GGUF"] = repository
    get(python, home, "acme/Tiny-GGUF:q4_k_m")
    repository.branches["main"] = SECOND
    get(python, home, "acme/Tiny-GGUF:q8_0")
    found = [
        hub.find_hub_model(HubReference("acme/Tiny-GGUF", file=kind), home)
        for kind in ("q4_k_m", "q8_0")
    ]
    assert [model and model.commit for model in found] == [FIRST, SECOND]


def test_one_file_of_a_gguf_repository(python: Path, server: HubServer, home: Path) -> None:
    names = [
        "Tiny-Q4_K_M.gguf",
        "Tiny-Q8_0.gguf",
        "BF16/Tiny-BF16-00001-of-00002.gguf",
        "BF16/Tiny-BF16-00002-of-00002.gguf",
    ]
    server.repositories["acme/Tiny-GGUF"] = Repository(
        {FIRST: {name: name.encode() for name in names}}, {"main": FIRST}
    )
    with pytest.raises(
        ModelError, match=r"is a GGUF repository; name one of its files as acme/Tiny-GGUF:TYPE"
    ):
        get(python, home, "acme/Tiny-GGUF")
    with pytest.raises(ModelError, match=r"no GGUF file matches acme/Tiny-GGUF:Q2_K; .*Tiny-Q8_0"):
        get(python, home, "acme/Tiny-GGUF:Q2_K")
    one = get(python, home, "acme/Tiny-GGUF:q4_k_m").model.path
    assert [path.name for path in one.glob("*.gguf")] == ["Tiny-Q4_K_M.gguf"]
    parts = get(python, home, "acme/Tiny-GGUF:BF16").model.path
    assert len(list(parts.glob("*.gguf"))) == 2
    assert server.downloads("Tiny-Q8_0.gguf") == []


def test_a_full_disk_is_refused_before_anything_is_downloaded(
    python: Path, server: HubServer, home: Path
) -> None:
    server.sizes = {"model.safetensors": 2**60}
    with pytest.raises(ModelError, match=r"The download needs .* GB and .* has .* GB free"):
        get(python, home)
    assert server.downloads("model.safetensors") == []


def test_a_cleaned_cache_means_not_downloaded(python: Path, server: HubServer, home: Path) -> None:
    (get(python, home).model.path / "model.safetensors").resolve().unlink()
    with pytest.raises(ModelError, match=r"download it with: bitbench model get acme/Tiny-1B"):
        library.resolve(NAME, home)


STUDY = f"""\
name: x
models: [{NAME}]
engines: [vllm]
workloads: [interactive]
"""


def test_the_plan_of_a_study_has_the_commit(python: Path, server: HubServer, home: Path) -> None:
    file = home.parent / "s.yaml"
    file.write_text(STUDY)
    at = Workplace(home)
    with pytest.raises(ModelError, match=r"bitbench model get acme/Tiny-1B"):
        plan_study(file, at)
    get(python, home)
    (variant,) = plan_study(file, at).variants
    assert (variant.name, variant.commit) == ("Tiny-1B/bf16", FIRST)


def test_checkpoints_of_a_hub_beside_their_model(
    python: Path, server: HubServer, home: Path
) -> None:
    files = server.repositories[NAME].commits[FIRST]
    config = {**json.loads(files["config.json"]), "quantization_config": {"quant_method": "fp8"}}
    quantized = {**files, "config.json": json.dumps(config).encode()}
    server.repositories["other/Tiny-FP8"] = Repository({SECOND: quantized}, {"main": SECOND})
    server.repositories["other/Tiny-GGUF"] = Repository(
        {SECOND: {"Tiny.Q8_0.gguf": b"GGUF"}}, {"main": SECOND}
    )
    names = ["other/Tiny-FP8", "other/Tiny-GGUF:Q8_0"]
    for name in (NAME, *names):
        get(python, home, name)
    file = home.parent / "s.yaml"
    variants = ", ".join(f"{{of: {NAME}, checkpoint: '{name}'}}" for name in names)
    file.write_text(f"{STUDY}variants: [{variants}]\n")
    found = [
        (variant.name, variant.commit) for variant in plan_study(file, Workplace(home)).variants
    ]
    assert found == [
        ("Tiny-1B/bf16", FIRST),
        ("Tiny-1B/w8a8-fp8", SECOND),
        ("Tiny-1B/gguf-q8_0", SECOND),
    ]


def test_two_revisions_of_a_model_have_different_names(
    python: Path, server: HubServer, home: Path
) -> None:
    get(python, home)
    get(python, home, f"{NAME}@{SECOND}")
    file = home.parent / "s.yaml"
    file.write_text(STUDY.replace(NAME, f"{NAME}, {NAME}@{SECOND}"))
    assert [variant.name for variant in plan_study(file, Workplace(home)).variants] == [
        "Tiny-1B/bf16",
        f"Tiny-1B@{SECOND}/bf16",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "smollm2-135m",
        "./a/b",
        "/a/b",
        "a/b/c",
        "~/a",
        "a/..",
        "org/name@",
        "org/name@../x",
        "org/name:",
    ],
)
def test_what_cannot_be_a_hub_id(text: str) -> None:
    assert parse_hub_reference(text) is None
