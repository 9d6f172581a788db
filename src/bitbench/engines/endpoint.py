"""A running server, anywhere: bitbench sends requests to it and neither starts nor stops it."""

import json
import os
import ssl
from collections.abc import Collection, Mapping
from dataclasses import replace
from http import HTTPStatus
from urllib.parse import urlsplit

from pydantic import Field, field_validator

from bitbench.engines import registry
from bitbench.engines.options import check_arguments
from bitbench.engines.server import EngineDefaults
from bitbench.ports import Counting, Endpoint, Instance, InstanceFailed, Launch, Vocabulary
from bitbench.records.trial import Failure, InstanceFacts, Outcome
from bitbench.study.base import Json, Spec
from bitbench.study.study import EngineSetup, Study
from bitbench.study.variant import Variant
from bitbench.study.workload import Workload
from bitbench.util.errors import StudyFileError
from bitbench.util.http.connection import (
    REDIRECTS,
    BadAnswer,
    PlainAnswer,
    PlainConnection,
    error_in_answer,
    fetch_samples,
    redirection,
)
from bitbench.util.http.response import MODEL_NAMES, PLAIN_BYTES
from bitbench.util.text import quote
from bitbench.util.units import show_duration

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
# Token ids that every model in use knows as plain text: vocabularies have 32,000 or more, and special tokens are among
# the first few hundred or behind the plain ones.
DEFAULT_VOCABULARY = 32_000
LOW_IDS = 1_000
KEY_REFUSED, KEY_WANTED = "the key was refused", "it wants a key"
KEY_UNSENDABLE = "characters that no header can carry"
_ANSWER_LIMIT_S = 10.0
_SHOWN_NAMES = 20


class EndpointArguments(Spec):
    """`args:` of an endpoint in a study file."""

    url: str = Field(description="http://host:port or https://host, with or without /v1")
    model: str = Field(min_length=1, description="as /v1/models calls it")
    api_key_env: str = Field(
        default=DEFAULT_KEY_VARIABLE,
        min_length=1,
        description="environment variable that holds the key; may be unset",
    )
    ignore_eos: bool = Field(
        default=True, description="ask for exactly output_tokens (vLLM, SGLang, TGI, llama.cpp)"
    )

    @field_validator("url")
    @classmethod
    def _base(cls, value: str) -> str:
        return endpoint_url(value)


def endpoint_url(url: str) -> str:
    """`http://host:port` of what a person pastes; raises ValueError with what is expected."""
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise ValueError("a key belongs in an environment variable, not in the URL")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("expected a URL such as http://127.0.0.1:8000 or https://host/v1")
    parts.hostname.encode("idna")  # raises where it cannot be a name
    if parts.port == 0:  # one that is no number, or too large, raises by itself
        raise ValueError("port 0 cannot be connected to; give the one that the server listens on")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise ValueError(
            f"the path {parts.path} is not known; give the URL up to /v1, such as http://127.0.0.1:8000/v1"
        )
    return f"{parts.scheme}://{parts.netloc}"


def endpoint_key_variable(setup: EngineSetup) -> str | None:
    """Return the variable whose value goes to the setup's server as the API key; None for an engine of our own."""
    if setup.engine != EndpointEngine.name:
        return None
    return str(setup.args.get("api_key_env", DEFAULT_KEY_VARIABLE))


def refuse_unusual_keys(study: Study, given: Collection[str]) -> None:
    """Raise StudyFileError if the study sends a key that is neither a usual one nor `given` by its name."""
    for index, setup in enumerate(study.engines):
        name = endpoint_key_variable(setup)
        if (
            name is None
            or name in given
            or name == DEFAULT_KEY_VARIABLE
            or name.startswith("BITBENCH_")
        ):
            continue
        raise StudyFileError(
            f"{setup.name} sends the value of {name} to {setup.args.get('url')}; if you want that, give it to "
            f"`bitbench run` with --key-from {name}",
            ("engines", index, "args", "api_key_env"),
        )


class EndpointEngine(EngineDefaults):
    """`ports.Engine` whose instance runs before it is started."""

    name = "endpoint"
    needs_model = False
    start_s = 0.1
    overhead_bytes = 0

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:  # noqa: ARG002
        check_arguments(setup.args, EndpointArguments, who="an endpoint", whose="the endpoint's")
        return None

    def can_freeze(self, setup: EngineSetup) -> bool:  # noqa: ARG002
        return False

    def start(self, launch: Launch) -> Instance:
        return EndpointInstance(EndpointArguments.model_validate(launch.setup.args))


class EndpointInstance:
    """A `ports.Instance` without a process: its memory is not ours to see, and it is not ours to stop."""

    pid = None

    def __init__(self, arguments: EndpointArguments) -> None:
        self._arguments = arguments

    def wait_ready(self, timeout_s: float) -> Endpoint:
        arguments = self._arguments
        try:
            endpoint = Endpoint(
                url=arguments.url,
                model=arguments.model,
                api_key=endpoint_api_key(arguments.api_key_env),
                extra_body={"ignore_eos": True} if arguments.ignore_eos else {},
                vocabulary=Vocabulary(DEFAULT_VOCABULARY, tuple(range(LOW_IDS))),
            )
            offered = offered_models(endpoint, min(timeout_s, _ANSWER_LIMIT_S))
        except EndpointUnusable as problem:
            raise InstanceFailed(problem.failure) from None
        if offered and endpoint.model not in offered:
            more = (
                f" and {len(offered) - _SHOWN_NAMES:,} more" if len(offered) > _SHOWN_NAMES else ""
            )
            cause = f"{endpoint.url} has no model {endpoint.model}; it has {', '.join(offered[:_SHOWN_NAMES])}{more}"
            raise InstanceFailed(Failure(outcome=Outcome.INVALID, cause=cause))
        return replace(endpoint, metrics=_counters(endpoint))

    def facts(self) -> InstanceFacts:
        return InstanceFacts(
            was_running=True,
            notes=(
                f"bitbench did not start this server ({self._arguments.model} at {self._arguments.url}): its flags are "
                "unknown, and the intervals do not cover a restart.",
            ),
        )

    def failure(self) -> Failure | None:
        return None

    def freeze(self) -> None:
        """It is not ours to stop."""

    def thaw(self) -> None:
        """It was never frozen."""

    def stop(self) -> None:
        """It ran before us and stays."""


def _counters(endpoint: Endpoint) -> Mapping[str, str]:
    """Those of the engine that the names at its GET /metrics tell; none where it has no such page."""
    samples = fetch_samples(endpoint.url, endpoint.api_key)
    if samples is None:
        return {}
    known = (
        engine.metrics for engine in registry.engines().values() if isinstance(engine, Counting)
    )
    return next((names for names in known if samples.kinds.keys() & set(names.values())), {})


class EndpointUnusable(Exception):
    """An endpoint that answers wrongly or not at all; the cause is one sentence for a person."""

    def __init__(self, outcome: Outcome, cause: str) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)


def endpoint_api_key(variable: str) -> str:
    """The key in this environment variable, empty where it is not set. Raises EndpointUnusable, without the key."""
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        cause = f"the key in the environment variable {variable} has {KEY_UNSENDABLE}"
        raise EndpointUnusable(Outcome.INVALID, cause)
    return key


def offered_models(
    endpoint: Endpoint, timeout_s: float = _ANSWER_LIMIT_S, *, needs_list: bool = False
) -> tuple[str, ...]:
    """What /v1/models lists; empty if there is no such list, unless it is needed. Raises EndpointUnusable."""
    url, key = endpoint.url, endpoint.api_key
    status, headers, body = _ask_for_models(endpoint, timeout_s)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        given = KEY_REFUSED if key else KEY_WANTED
        phrase = HTTPStatus(status).phrase  # not the server's own: that may say anything
        raise EndpointUnusable(Outcome.INVALID, f"{url} says {status} {phrase}: {given}")
    if status in REDIRECTS:
        raise EndpointUnusable(Outcome.INVALID, f"{url}/v1/models: {redirection(headers, key)}")
    if status != HTTPStatus.OK and needs_list:
        said = error_in_answer(body, key).rstrip(".")
        raise EndpointUnusable(Outcome.INVALID, f"{url}/v1/models says {status}: {said}")
    return _names(body, key) if status == HTTPStatus.OK else ()


def _ask_for_models(endpoint: Endpoint, timeout_s: float) -> PlainAnswer:
    url, key = endpoint.url, endpoint.api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with PlainConnection(url, limit_s=timeout_s, limit_bytes=PLAIN_BYTES) as connection:
            return connection.ask("GET", "/v1/models", headers)
    except TimeoutError:
        outcome, cause = Outcome.TIMEOUT, f"{url} did not answer within {show_duration(timeout_s)}"
    except ssl.SSLCertVerificationError as error:
        said = quote(error.verify_message, key)
        trusted = "the environment variable SSL_CERT_FILE names a file with authorities to trust"
        outcome, cause = (
            Outcome.INVALID,
            f"the certificate of {url} is not trusted here: {said}; {trusted}",
        )
    except OSError as error:
        outcome, cause = (
            Outcome.CRASHED,
            f"no connection to {url}: {quote(error.strerror or str(error), key)}",
        )
    except BadAnswer as problem:
        outcome, cause = (
            Outcome.INVALID,
            f"{url}/v1/models has no usable answer: {problem.fault.show(key)}",
        )
    raise EndpointUnusable(outcome, cause)


def _names(body: bytes, key: str) -> tuple[str, ...]:
    """Those that can be written down as they are: a name goes into the study and is shown."""
    try:
        content: Json = json.loads(body)
        listed = [str(model["id"]) for model in content["data"][:MODEL_NAMES]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(name for name in listed if name and quote(name, key) == name)
