"""A running server, anywhere: bitbench sends requests to it and neither starts nor stops it."""

import json
import os
import urllib.error
import urllib.request
from http import HTTPStatus
from ipaddress import ip_address
from urllib.parse import urlsplit

from pydantic import Field, ValidationError, field_validator

from bitbench.core.asked.quality import Scoring
from bitbench.core.asked.study import EngineSetup
from bitbench.core.asked.use import Use, UseKind
from bitbench.core.asked.workload import Workload
from bitbench.core.base import Json, Spec
from bitbench.core.environment import Environment
from bitbench.core.ports import Endpoint, Instance, InstanceFailed, Launch, Vocabulary
from bitbench.core.recorded.trial import Failure, InstanceFacts, Outcome
from bitbench.core.recorded.variant import Variant
from bitbench.engines.options import explain_wrong
from bitbench.ground.units import show_duration

DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"
# Token ids that every model in use knows as plain text: vocabularies have 32,000 or more, and special tokens are among
# the first few hundred or behind the plain ones.
DEFAULT_VOCABULARY = 32_000
LOW_IDS = 1_000
_ANSWER_LIMIT_S = 10.0
_ANSWER_BYTES = 1_000_000


class EndpointArguments(Spec):
    """`args:` of an endpoint in a study file."""

    url: str = Field(description="http://host:port or https://host, with or without /v1")
    model: str = Field(min_length=1, description="as /v1/models calls it")
    api_key_env: str = Field(
        default=DEFAULT_KEY_VARIABLE, min_length=1, description="environment variable that holds the key; may be unset"
    )
    vocabulary: int | None = Field(
        default=None, gt=LOW_IDS, description="token ids of random prompts are from 1,000 up to this"
    )
    ignore_eos: bool = Field(default=True, description="ask for exactly output_tokens (vLLM, SGLang, TGI, llama.cpp)")

    @field_validator("url")
    @classmethod
    def _base(cls, value: str) -> str:
        return base_url(value)


def base_url(url: str) -> str:
    """`http://host:port` of what a person pastes; raises ValueError with what is expected."""
    text = url if "://" in url else f"http://{url}"
    parts = urlsplit(text)
    if parts.username or parts.password:
        raise ValueError("a key belongs in an environment variable, not in the URL")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("expected a URL such as http://127.0.0.1:8000 or https://host/v1")
    if parts.path.rstrip("/") not in ("", "/v1"):
        raise ValueError(
            f"the path {parts.path} is not known; give the URL up to /v1, such as http://127.0.0.1:8000/v1"
        )
    return f"{parts.scheme}://{parts.netloc}"


def _is_loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class EndpointEngine:
    """`core.ports.Engine` whose instance runs before it is started."""

    name = "endpoint"
    environment: str | None = None
    own_environment: Environment | None = None
    needs_model = False
    scoring: Scoring | None = None
    start_s = 0.1
    overhead_bytes = 0
    can_profile = False

    def refuse(self, setup: EngineSetup, variant: Variant, workload: Workload) -> str | None:  # noqa: ARG002
        return explain_wrong(setup.args, EndpointArguments, who="an endpoint", whose="the endpoint's")

    def uses(self, setup: EngineSetup) -> tuple[Use, ...]:
        """A key that goes to another host is always asked for, and on this one unless it is the usual variable's."""
        try:
            arguments = EndpointArguments.model_validate(setup.args)
        except ValidationError:
            return ()  # `refuse` says what is wrong
        is_elsewhere = not _is_loopback(arguments.url)
        variable, key_goes = arguments.api_key_env, f"its value is sent to {arguments.url} as the API key"
        return (
            Use(UseKind.URL, arguments.url, "requests are sent to it", asks=is_elsewhere),
            Use(UseKind.VARIABLE, variable, key_goes, asks=is_elsewhere or variable != DEFAULT_KEY_VARIABLE),
        )

    def can_freeze(self, setup: EngineSetup) -> bool:  # noqa: ARG002
        return False

    def start(self, launch: Launch) -> Instance:
        return EndpointInstance(EndpointArguments.model_validate(launch.setup.args))


class EndpointInstance:
    """A `core.ports.Instance` without a process: its memory is not ours to see, and it is not ours to stop."""

    pid = None

    def __init__(self, arguments: EndpointArguments) -> None:
        self._arguments = arguments

    def wait_ready(self, timeout_s: float) -> Endpoint:
        arguments = self._arguments
        endpoint = Endpoint(
            url=arguments.url,
            model=arguments.model,
            api_key=os.environ.get(arguments.api_key_env, ""),
            extra_body={"ignore_eos": True} if arguments.ignore_eos else {},
            vocabulary=Vocabulary(arguments.vocabulary or DEFAULT_VOCABULARY, tuple(range(LOW_IDS))),
        )
        try:
            offered = offered_models(endpoint, min(timeout_s, _ANSWER_LIMIT_S))
        except EndpointUnusable as problem:
            raise InstanceFailed(problem.failure) from None
        if offered and endpoint.model not in offered:
            cause = f"{endpoint.url} has no model {endpoint.model}; it has {', '.join(offered)}"
            raise InstanceFailed(Failure(outcome=Outcome.INVALID, cause=cause))
        return endpoint

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


class EndpointUnusable(Exception):
    """An endpoint that answers wrongly or not at all; the cause is one sentence for a person."""

    def __init__(self, outcome: Outcome, cause: str) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)


def offered_models(endpoint: Endpoint, timeout_s: float = _ANSWER_LIMIT_S) -> tuple[str, ...]:
    """What /v1/models lists; empty where the server has no such list. Raises EndpointUnusable."""
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    request = urllib.request.Request(f"{endpoint.url}/v1/models", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            return _names(answer.read(_ANSWER_BYTES))
    except urllib.error.HTTPError as error:
        if error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            given = "the key was refused" if endpoint.api_key else "it wants a key"
            raise EndpointUnusable(
                Outcome.INVALID, f"{endpoint.url} says {error.code} {error.reason}: {given}"
            ) from None
        return ()
    except TimeoutError:
        cause = f"{endpoint.url} did not answer within {show_duration(timeout_s)}"
        raise EndpointUnusable(Outcome.TIMEOUT, cause) from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        cause = f"no connection to {endpoint.url}: {getattr(reason, 'strerror', None) or reason}"
        raise EndpointUnusable(Outcome.CRASHED, cause) from None


def _names(body: bytes) -> tuple[str, ...]:
    try:
        content: Json = json.loads(body)
        return tuple(str(model["id"]) for model in content["data"])
    except (ValueError, KeyError, TypeError):
        return ()
