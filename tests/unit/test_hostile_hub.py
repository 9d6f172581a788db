"""A hub that lies: what it says becomes no path outside the cache, and the token reaches no other host."""

import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bitbench.util.errors import ModelError
from tests.length import by_length
from tests.support.hub_server import HubServer, hub_server
from tests.unit.test_hub import FIRST, NAME, TOKEN, get, home, python, server

__all__ = ["home", "python", "server"]  # fixtures
TARGET = "config.json"
MUTATIONS = by_length(3, 40)  # huggingface_hub tries half a minute what looks like a broken connection
XET = "ab" * 32


@pytest.fixture
def other() -> Iterator[HubServer]:
    """Another host: another port is enough."""
    with hub_server() as running:
        yield running


@pytest.fixture
def token(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the user; `server` has cleared what was set before."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)


def outside(tmp_path: Path) -> set[Path]:
    """All but the cache, the home and what the hub was made of."""
    allowed = [tmp_path / name for name in ("hf", "home", "source")]
    return {path for path in tmp_path.rglob("*") if not any(path.is_relative_to(one) for one in allowed)}


LIES = {
    "a path above": ("ETag", '"{up}/TRAVERSED"'),
    "a path above, linked": ("X-Linked-Etag", '"{up}/TRAVERSED"'),
    "a weak path": ("ETag", 'W/"{up}/TRAVERSED"'),
    "a path without quotes": ("ETag", "{up}/TRAVERSED"),
    "an absolute path": ("ETag", '"{place}/TRAVERSED"'),
    "a folder": ("ETag", '"sub/folder"'),
    "the folder above": ("ETag", '".."'),
    "an endless name": ("ETag", f'"{"a" * 4000}"'),
    "control characters": ("ETag", '"a\tb"'),
    "a commit that is a path": ("X-Repo-Commit", "{up}/TRAVERSED"),
    "a commit that is none": ("X-Repo-Commit", "main"),
    "a commit above": ("X-Repo-Commit", ".."),
}


@pytest.mark.parametrize("name", LIES)
def test_what_a_hub_says_of_a_file_becomes_no_path(
    name: str, python: Path, server: HubServer, home: Path, tmp_path: Path
) -> None:
    header, value = LIES[name]
    before = outside(tmp_path)
    server.headers[TARGET] = {header: value.format(up="../" * 30 + str(tmp_path).lstrip("/"), place=tmp_path)}
    with pytest.raises(ModelError, match=rf"^{server.url} says something as the {header} of a file of {NAME}"):
        get(python, home)
    assert outside(tmp_path) == before
    assert not list(tmp_path.rglob("*TRAVERSED*"))


def test_a_file_of_the_user_is_neither_taken_for_the_hubs_nor_removed(
    python: Path, server: HubServer, home: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("of the user\n")
    server.headers[TARGET] = {"ETag": f'"{"../" * 30}{str(mine).lstrip("/")}"'}
    with pytest.raises(ModelError):
        get(python, home)
    assert mine.read_text() == "of the user\n"


def test_a_missing_file_of_a_commit_that_is_a_path(python: Path, server: HubServer, home: Path, tmp_path: Path) -> None:
    """huggingface_hub remembers what does not exist, by the commit that the hub names."""
    before = outside(tmp_path)
    server.headers[TARGET] = {"X-Repo-Commit": f"{'../' * 30}{str(tmp_path).lstrip('/')}/TRAVERSED"}
    server.gone = {TARGET}
    with pytest.raises(ModelError):
        get(python, home)
    assert outside(tmp_path) == before


LISTS = {
    "no files": {"siblings": None},
    "files that are none": {"siblings": [1, 2]},
    "names that are none": {"siblings": [{"rfilename": 7, "size": 1, "blobId": "a" * 40}]},
    "names above": {"siblings": [{"rfilename": "../../config.json", "size": 1, "blobId": "a" * 40}]},
    "absolute names": {"siblings": [{"rfilename": "/tmp/model.safetensors", "size": 1, "blobId": "a" * 40}]},
    "a hash that is a path": {
        "siblings": [
            {"rfilename": "model.safetensors", "size": 1, "lfs": {"size": 1, "sha256": "../x", "pointerSize": 1}}
        ]
    },
    "a size that is text": {"siblings": [{"rfilename": "model.safetensors", "size": "much", "blobId": "a" * 40}]},
    "a size below nothing": {"siblings": [{"rfilename": "model.safetensors", "size": -5, "blobId": "a" * 40}]},
    "a file twice": {
        "siblings": [{"rfilename": "model.safetensors", "size": 1, "blobId": letter * 40} for letter in "ab"]
    },
    "a commit above": {"sha": "../.."},
    "a commit that is a number": {"sha": 5},
    "no commit": {"sha": None},
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_files_that_is_none(name: str, python: Path, server: HubServer, home: Path, tmp_path: Path) -> None:
    before = outside(tmp_path)
    server.listed = LISTS[name]
    with pytest.raises(ModelError) as refused:
        get(python, home)
    assert "\n" not in str(refused.value)
    assert outside(tmp_path) == before


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("where", ["commit", "file", "hash"])
def test_a_token_that_a_hub_repeats_is_not_shown(where: str, python: Path, server: HubServer, home: Path) -> None:
    if where == "commit":
        server.listed = {"sha": TOKEN}
    elif where == "file":
        server.listed = {"siblings": [{"rfilename": "model.safetensors", "size": 1, "blobId": TOKEN}]}
    else:
        server.headers[TARGET] = {"ETag": f'"{TOKEN}/{TOKEN}"'}
    with pytest.raises(ModelError) as refused:
        get(python, home)
    assert TOKEN not in str(refused.value)


def test_two_gguf_files_of_one_name_are_not_taken_for_one(python: Path, server: HubServer, home: Path) -> None:
    files = server.repositories[NAME].commits[FIRST]
    files |= {"a/Tiny-Q4_0.gguf": b"1", "b/Tiny-Q4_0.gguf": b"2"}
    with pytest.raises(ModelError, match="several GGUF files match"):
        get(python, home, f"{NAME}:Q4_0")


@pytest.mark.usefixtures("token")
def test_a_redirect_takes_no_token_along(python: Path, server: HubServer, other: HubServer, home: Path) -> None:
    """As hubs do it: large files are in another host's store, for which no token is meant."""
    other.repositories = server.repositories
    server.headers["model.safetensors"] = {"Location": f"{other.url}/{NAME}/resolve/{FIRST}/model.safetensors"}
    get(python, home)
    assert other.downloads("model.safetensors")
    assert other.tokens == {""}
    assert f"Bearer {TOKEN}" in server.tokens


@pytest.mark.usefixtures("token")
@pytest.mark.parametrize("header", ["X-Xet-Refresh-Route", "Link"])
def test_no_other_host_is_asked_with_the_token_for_the_way_to_a_store(
    header: str, python: Path, server: HubServer, other: HubServer, home: Path
) -> None:
    route = f"{other.url}/api/models/{NAME}/xet-read-token/{FIRST}"
    said = route if header == "X-Xet-Refresh-Route" else f'<{route}>; rel="xet-auth"'
    server.headers["model.safetensors"] = {"X-Xet-Hash": XET, header: said}
    with pytest.raises(ModelError, match=r"another host"):
        get(python, home)
    assert other.asked == []


def test_mutated_answers(python: Path, server: HubServer, home: Path, tmp_path: Path) -> None:
    """Whatever it says: a sentence, or the model as it is listed; nothing outside."""
    before = outside(tmp_path)
    chance = random.Random(1)
    parts = ["..", "/", "a", "%2e%2e", "\\", "W/", '"', ".", "~", "*", ":", "://", "0" * 40, "f" * 64, "\x7f", " ", "é"]
    names = ["ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Linked-Size", "Location", "X-Xet-Hash", "Content-Disposition"]
    for number in range(MUTATIONS):
        said = {chance.choice(names): "".join(chance.choices(parts, k=chance.randint(1, 8))) for _ in range(3)}
        server.headers = {chance.choice([TARGET, "model.safetensors"]): said}
        with suppress(ModelError):
            get(python, home / str(number))
        assert outside(tmp_path) == before, said
