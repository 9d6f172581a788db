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
    describe_error,
    describe_redirect,
    fetch_samples,
)
from bitbench.util.http.response import MODEL_NAMES, PLAIN_BYTES
from bitbench.util.text import quote
from bitbench.util.units import show_duration

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
# Token ids that every model in use has as plain text: vocabularies have 32,000 or more, and special
# tokens are among the first few hundred or after the plain ones.
DEFAULT_VOCABULARY = 32_000
LOW_IDS = 1_000
KEY_REFUSED = "the key was refused"
KEY_WANTED = "it wants a key"
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
        return parse_endpoint_url(value)


def parse_endpoint_url(url: str) -> str:
    """Return `http://host:port` of a URL that a person pastes.

    Raise ValueError, with a sentence that explains which URL is expected.
    """
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise ValueError("a key belongs in an environment variable, not in the URL")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("expected a URL such as http://127.0.0.1:8000 or https://host/v1")
    parts.hostname.encode("idna")  # raises if it cannot be a host name
    if parts.port == 0:  # a port that is not a number, or too large, raises by itself
        raise ValueError("port 0 cannot be connected to; give the one that the server listens on")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise ValueError(
            f"the path {parts.path} is not known; "
            "give the URL up to /v1, such as http://127.0.0.1:8000/v1"
        )
    return f"{parts.scheme}://{parts.netloc}"


def find_endpoint_key_variable(setup: EngineSetup) -> str | None:
    """Return the variable that holds the API key of an endpoint, or None for other engines."""
    if setup.engine != EndpointEngine.name:
        return None
    return str(setup.args.get("api_key_env", DEFAULT_KEY_VARIABLE))


def refuse_unusual_keys(study: Study, given: Collection[str]) -> None:
    """Raise StudyFileError if the study sends a key that is neither usual nor in `given`.

    OPENAI_API_KEY and variables that begin with BITBENCH_ are usual.
    """
    usual = {None, DEFAULT_KEY_VARIABLE, *given}
    for index, setup in enumerate(study.engines):
        name = find_endpoint_key_variable(setup)
        if name in usual or str(name).startswith("BITBENCH_"):
            continue
        raise StudyFileError(
            f"{setup.name} sends the value of {name} to {setup.args.get('url')}; "
            f"if you want that, give it to `bitbench run` with --key-from {name}",
            ("engines", index, "args", "api_key_env"),
        )


class EndpointEngine(EngineDefaults):
    """A `ports.Engine` whose instance was already running."""

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
    """A `ports.Instance` without a process: bitbench cannot see its memory and must not stop it."""

    pid = None

    def __init__(self, arguments: EndpointArguments) -> None:
        self._arguments = arguments

    def wait_ready(self, timeout_s: float) -> Endpoint:
        arguments = self._arguments
        extra_body: dict[str, Json] = {"ignore_eos": True} if arguments.ignore_eos else {}
        try:
            endpoint = Endpoint(
                url=arguments.url,
                model=arguments.model,
                api_key=read_endpoint_api_key(arguments.api_key_env),
                extra_body=extra_body,
                vocabulary=Vocabulary(DEFAULT_VOCABULARY, tuple(range(LOW_IDS))),
            )
            models = list_offered_models(endpoint, min(timeout_s, _ANSWER_LIMIT_S))
        except EndpointUnusable as problem:
            raise InstanceFailed(problem.failure) from None
        if models and endpoint.model not in models:
            names = ", ".join(models[:_SHOWN_NAMES])
            if len(models) > _SHOWN_NAMES:
                names += f" and {len(models) - _SHOWN_NAMES:,} more"
            cause = f"{endpoint.url} has no model {endpoint.model}; it has {names}"
            raise InstanceFailed(Failure(outcome=Outcome.INVALID, cause=cause))
        return replace(endpoint, metrics=_find_engine_counters(endpoint))

    def facts(self) -> InstanceFacts:
        return InstanceFacts(
            was_running=True,
            notes=(
                f"bitbench did not start this server ({self._arguments.model} at "
                f"{self._arguments.url}): its flags are unknown, "
                "and the intervals do not cover a restart.",
            ),
        )

    def failure(self) -> Failure | None:
        return None

    def freeze(self) -> None:
        """Do nothing: bitbench must not stop this server."""

    def thaw(self) -> None:
        """Do nothing: the server was never frozen."""

    def stop(self) -> None:
        """Do nothing: the server ran before the study and continues to run."""


def _find_engine_counters(endpoint: Endpoint) -> Mapping[str, str]:
    """Return the counters of the engine whose metric names appear at GET /metrics, or {}."""
    samples = fetch_samples(endpoint.url, endpoint.api_key)
    if samples is None:
        return {}
    for engine in registry.engines().values():
        if isinstance(engine, Counting) and samples.kinds.keys() & set(engine.metrics.values()):
            return engine.metrics
    return {}


class EndpointUnusable(Exception):
    """An endpoint that answers wrongly or not at all. The cause is one sentence for a person."""

    def __init__(self, outcome: Outcome, cause: str) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)


def read_endpoint_api_key(variable: str) -> str:
    """Return the key in this environment variable, or "" if it is not set.

    Raise EndpointUnusable, without the key, if no header can carry it.
    """
    key = os.environ.get(variable, "").strip()
    if not (key.isascii() and key.isprintable()):
        cause = f"the key in the environment variable {variable} has {KEY_UNSENDABLE}"
        raise EndpointUnusable(Outcome.INVALID, cause)
    return key


def list_offered_models(
    endpoint: Endpoint, timeout_s: float = _ANSWER_LIMIT_S, *, needs_list: bool = False
) -> tuple[str, ...]:
    """Return the models that /v1/models lists, or () if the server lacks it.

    Raise EndpointUnusable, also for a missing list if `needs_list` is set.
    """
    url = endpoint.url
    key = endpoint.api_key
    status, headers, body = _ask_for_models(endpoint, timeout_s)
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        problem = KEY_REFUSED if key else KEY_WANTED
        phrase = HTTPStatus(status).phrase  # the server's own phrase may contain anything
        raise EndpointUnusable(Outcome.INVALID, f"{url} says {status} {phrase}: {problem}")
    if status in REDIRECTS:
        raise EndpointUnusable(
            Outcome.INVALID, f"{url}/v1/models: {describe_redirect(headers, key)}"
        )
    if status == HTTPStatus.OK:
        return _parse_model_names(body, key)
    if needs_list:
        message = describe_error(body, key).rstrip(".")
        raise EndpointUnusable(Outcome.INVALID, f"{url}/v1/models says {status}: {message}")
    return ()


def _ask_for_models(endpoint: Endpoint, timeout_s: float) -> PlainAnswer:
    url = endpoint.url
    key = endpoint.api_key
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    outcome = Outcome.INVALID
    try:
        with PlainConnection(url, limit_s=timeout_s, limit_bytes=PLAIN_BYTES) as connection:
            return connection.ask("GET", "/v1/models", headers)
    except TimeoutError:
        outcome = Outcome.TIMEOUT
        cause = f"{url} did not answer within {show_duration(timeout_s)}"
    except ssl.SSLCertVerificationError as error:
        message = quote(error.verify_message, key)
        trusted = "the environment variable SSL_CERT_FILE names a file with authorities to trust"
        cause = f"the certificate of {url} is not trusted here: {message}; {trusted}"
    except OSError as error:
        outcome = Outcome.CRASHED
        cause = f"no connection to {url}: {quote(error.strerror or str(error), key)}"
    except BadAnswer as problem:
        cause = f"{url}/v1/models has no usable answer: {problem.fault.show(key)}"
    raise EndpointUnusable(outcome, cause)


def _parse_model_names(body: bytes, key: str) -> tuple[str, ...]:
    """Return the names in a list of models, or () if the body is not such a list.

    One name is written to the study and shown. So a name is left out if it contains the key, or if
    it is not one printable line.
    """
    try:
        content: Json = json.loads(body)
        names = [str(model["id"]) for model in content["data"][:MODEL_NAMES]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ()
    return tuple(name for name in names if name and quote(name, key) == name)
