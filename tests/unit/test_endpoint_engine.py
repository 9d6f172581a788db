"""An endpoint that runs already, as an engine: its URL, its models, its key."""

import re
from pathlib import Path

import pytest

from bitbench.engines.endpoint import (
    DEFAULT_VOCABULARY,
    LOW_IDS,
    EndpointEngine,
    EndpointUnusable,
    list_offered_models,
    parse_endpoint_url,
    read_endpoint_api_key,
)
from bitbench.engines.processes import free_port
from bitbench.ports import Endpoint, InstanceFailed, Launch, Load
from bitbench.records.trial import Outcome
from bitbench.study.study import Argument, EngineSetup
from bitbench.study.workload import BUILT_IN_WORKLOADS
from bitbench.util.errors import StudyFileError
from tests.support.null_instance import NOTHING, running


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://127.0.0.1:8000", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/v1/", "http://127.0.0.1:8000"),
        ("localhost:8000", "http://localhost:8000"),
        ("https://models.example/v1", "https://models.example"),
    ],
)
def test_a_url_is_taken_as_people_paste_it(given: str, meant: str) -> None:
    assert parse_endpoint_url(given) == meant


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("ftp://host", "expected a URL such as"),
        ("http://host/v2", "/v2 is not known"),
        ("http://me:secret@host", "a key belongs in an environment variable"),
        ("http://", "expected a URL such as"),
        ("http://host:99999", "Port out of range"),
        ("http://host:abc", "Port could not be cast"),
        ("http://host:0", "port 0"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(given: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_endpoint_url(given)


def launch(args: dict[str, Argument], folder: Path) -> Launch:
    setup = EngineSetup(name="e", engine="endpoint", args=args)
    return Launch(setup, NOTHING, None, folder / "log", loads=(Load(1, 1),), seed=0)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"url": "http://host"}, "needs the argument model"),
        (
            {"url": "http://host", "model": "m", "key": "x"},
            "has no argument key; it has url, model, api_key_env",
        ),
        ({"url": "http://host/v9", "model": "m"}, "the endpoint's argument url: the path /v9"),
    ],
)
def test_wrong_arguments_are_refused_in_a_sentence(args: dict[str, Argument], said: str) -> None:
    setup = EngineSetup(name="e", engine="endpoint", args=args)
    with pytest.raises(StudyFileError, match=re.escape(said)):
        EndpointEngine().refuse(setup, NOTHING, BUILT_IN_WORKLOADS["interactive"])


def test_a_running_server_is_ready_with_the_key_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running({}, tmp_path) as null:
        monkeypatch.setenv("MY_KEY", null.api_key)
        assert list_offered_models(null) == ("null",)
        args: dict[str, Argument] = {"url": null.url, "model": "null", "api_key_env": "MY_KEY"}
        instance = EndpointEngine().start(launch(args, tmp_path))
        endpoint = instance.wait_ready(60.0)
        assert endpoint.api_key == null.api_key
        assert null.api_key not in repr(endpoint)
        assert endpoint.vocabulary is not None
        assert endpoint.vocabulary.size == DEFAULT_VOCABULARY
        assert set(endpoint.vocabulary.excluded) == set(range(LOW_IDS))
        assert instance.pid is None
        instance.stop()
        assert list_offered_models(null) == ("null",), "it is not ours to stop"
        with pytest.raises(InstanceFailed, match="has no model other; it has null"):
            EndpointEngine().start(launch({**args, "model": "other"}, tmp_path)).wait_ready(60.0)


def test_nobody_there_and_a_wrong_key_are_told_apart(tmp_path: Path) -> None:
    with pytest.raises(EndpointUnusable, match="Connection refused") as nobody:
        list_offered_models(Endpoint(f"http://127.0.0.1:{free_port()}", "m"))
    assert nobody.value.failure.outcome is Outcome.CRASHED
    with running({}, tmp_path) as null:
        with pytest.raises(EndpointUnusable, match="it wants a key"):
            list_offered_models(Endpoint(null.url, "null"))
        with pytest.raises(EndpointUnusable, match="the key was refused"):
            list_offered_models(Endpoint(null.url, "null", "wrong"))


@pytest.mark.parametrize("key", ["two\nlines", "sk-\x00", "schlüssel", "\udcff"])
def test_a_key_that_no_header_can_carry_is_refused_without_showing_it(
    key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.environ", {"MY_KEY": f" {key}\n"})
    with pytest.raises(
        EndpointUnusable, match="the key in the environment variable MY_KEY has characters"
    ) as refused:
        read_endpoint_api_key("MY_KEY")
    assert key not in str(refused.value)


def test_its_records_say_that_no_start_of_it_was_seen(tmp_path: Path) -> None:
    instance = EndpointEngine().start(launch({"url": "http://127.0.0.1:1", "model": "m"}, tmp_path))
    assert instance.facts().was_running
