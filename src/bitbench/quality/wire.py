"""One connection to an instance, and how it fails."""

import json
from http import HTTPStatus

from bitbench.ports import Endpoint
from bitbench.records.trial import Failure, Outcome
from bitbench.study.base import Json
from bitbench.util import machine_faults
from bitbench.util.http.connection import BadAnswer, PlainConnection
from bitbench.util.http.limits import LOGPROB_BYTES
from bitbench.util.quotation import quote


class AskingFailed(Exception):
    """The endpoint did not answer as it should; becomes the outcome of the measurement."""

    def __init__(self, outcome: Outcome, cause: str, status: int = HTTPStatus.OK) -> None:
        super().__init__(cause)
        self.failure = Failure(outcome=outcome, cause=cause)
        self.status = status  # of HTTP


class InstanceConnection:
    """Opened again where the server closes it."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._connection = PlainConnection(endpoint.url, limit_s=timeout_s, limit_bytes=LOGPROB_BYTES)

    def __enter__(self) -> "InstanceConnection":
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def ask(self, path: str, **fields: Json) -> dict[str, Json]:
        """The answer to a request with these fields, greedy; raises AskingFailed."""
        key = self._endpoint.api_key
        body = json.dumps({"model": self._endpoint.model, "temperature": 0, **fields}).encode()
        headers = {"Content-Type": "application/json"}
        if key:
            headers["Authorization"] = f"Bearer {key}"
        try:
            status, _, content = self._connection.ask("POST", path, headers, body)
        except TimeoutError as error:
            raise AskingFailed(Outcome.TIMEOUT, "It did not answer within the study's limits.request.") from error
        except OSError as error:
            if machine_faults.explain_lack(error) is not None:
                raise  # this machine's fault, not the instance's
            raise AskingFailed(Outcome.CRASHED, f"The connection broke: {quote(str(error), key)}") from error
        except BadAnswer as problem:
            raise AskingFailed(Outcome.INVALID, f"Its answer is unusable: {problem.fault.show(key)}") from problem
        if status != HTTPStatus.OK:
            raise AskingFailed(Outcome.INVALID, f"It answered with HTTP {status}: {quote(content, key)}", status)
        try:
            answer = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise AskingFailed(Outcome.INVALID, f"Its answer is not JSON: {error}") from error
        if not isinstance(answer, dict):
            raise AskingFailed(Outcome.INVALID, "Its answer is not a completion, but another kind of JSON.")
        return answer
