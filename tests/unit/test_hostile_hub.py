"""A hub that lies: a list of files that is none is refused, and the token reaches no other host."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bitbench.util.errors import ModelError
from tests.support.hub_server import HubServer, hub_server
from tests.unit.test_hub import FIRST, NAME, TOKEN, get, home, python, server

__all__ = ["home", "python", "server"]  # fixtures
TARGET = "config.json"


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
    return {
        path for path in tmp_path.rglob("*") if not any(path.is_relative_to(one) for one in allowed)
    }


LISTS = {
    "no files": {"siblings": None},
    "files that are none": {"siblings": [1, 2]},
    "names that are none": {"siblings": [{"rfilename": 7, "size": 1, "blobId": "a" * 40}]},
    "names above": {
        "siblings": [{"rfilename": "../../config.json", "size": 1, "blobId": "a" * 40}]
    },
    "absolute names": {
        "siblings": [{"rfilename": "/tmp/model.safetensors", "size": 1, "blobId": "a" * 40}]
    },
    "a commit above": {"sha": "../.."},
    "a commit that is a number": {"sha": 5},
    "no commit": {"sha": None},
}


@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_files_that_is_none(
    name: str, python: Path, server: HubServer, home: Path, tmp_path: Path
) -> None:
    before = outside(tmp_path)
    server.listed = LISTS[name]
    with pytest.raises(ModelError) as refused:
        get(python, home)
    assert "\n" not in str(refused.value)
    assert outside(tmp_path) == before


@pytest.mark.usefixtures("token")
def test_a_token_that_a_hub_repeats_is_not_shown(
    python: Path, server: HubServer, home: Path
) -> None:
    server.listed = {"sha": TOKEN}
    with pytest.raises(ModelError) as refused:
        get(python, home)
    assert TOKEN not in str(refused.value)


def test_two_gguf_files_of_one_name_are_not_taken_for_one(
    python: Path, server: HubServer, home: Path
) -> None:
    files = server.repositories[NAME].commits[FIRST]
    files |= {"a/Tiny-Q4_0.gguf": b"1", "b/Tiny-Q4_0.gguf": b"2"}
    with pytest.raises(ModelError, match="several GGUF files match"):
        get(python, home, f"{NAME}:Q4_0")


@pytest.mark.usefixtures("token")
def test_a_redirect_takes_no_token_along(
    python: Path, server: HubServer, other: HubServer, home: Path
) -> None:
    """As hubs do it: large files are in another host's store, for which no token is meant."""
    other.repositories = server.repositories
    server.headers["model.safetensors"] = {
        "Location": f"{other.url}/{NAME}/resolve/{FIRST}/model.safetensors"
    }
    get(python, home)
    assert other.downloads("model.safetensors")
    assert other.tokens == {""}
    assert f"Bearer {TOKEN}" in server.tokens
