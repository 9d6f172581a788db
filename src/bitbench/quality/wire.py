"""One connection to an instance, and how it fails."""

import http.client
import json
from urllib.parse import urlsplit

from bitbench.core.base import Json
from bitbench.core.ports import Endpoint
from bitbench.core.recorded.trial import Failure, Outcome
from bitbench.ground import machine_faults

_SHOWN = 300  # characters of a server's message that go into a cause


class AskingFailed(Exception):
    """The endpoint did not answer as it should; becomes the outcome of the measurement."""

    def __init__(self, outcome: Outcome, cause: str, status: int = http.client.OK) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)
        self.status = status  # of HTTP


class InstanceConnection:
    """Opened again where the server closes it."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint = endpoint
        parts = urlsplit(endpoint.url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)

    def __enter__(self) -> "InstanceConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, path: str, **fields: Json) -> dict[str, Json]:
        """The answer to a request with these fields, greedy; raises AskingFailed."""
        body = json.dumps({"model": self._endpoint.model, "temperature": 0, **fields})
        headers = {"Content-Type": "application/json"}
        if self._endpoint.api_key:
            headers["Authorization"] = f"Bearer {self._endpoint.api_key}"
        try:
            self._connection.request("POST", path, body, headers)
            response = self._connection.getresponse()
            content = response.read()
        except TimeoutError as error:
            raise AskingFailed(Outcome.TIMEOUT, "It did not answer within the study's limits.request.") from error
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, OSError) and machine_faults.explain_lack(error) is not None:
                raise  # this machine's fault, not the instance's
            raise AskingFailed(Outcome.CRASHED, f"The connection broke: {error}") from error
        if response.status != http.client.OK:
            said = content.decode(errors="replace")[:_SHOWN]
            raise AskingFailed(Outcome.INVALID, f"It answered with HTTP {response.status}: {said}", response.status)
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise AskingFailed(Outcome.INVALID, f"Its answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise AskingFailed(Outcome.INVALID, "Its answer is not a completion, but another kind of JSON.")
        return answer
