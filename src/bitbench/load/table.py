"""From exchanges to the rows of requests/*.parquet."""

from collections.abc import Sequence

import pyarrow as pa

from bitbench.core.base import Json
from bitbench.core.recorded.requests import REQUEST_COLUMNS
from bitbench.load.answer import StreamedAnswer, read_answer, server_sentence
from bitbench.load.connection import Exchange

_ARROW_TYPES = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "list<float64>": pa.list_(pa.float64()),
}

_TOO_MANY = 429  # HTTP's "Too Many Requests"

REQUEST_SCHEMA = pa.schema([(column.name, _ARROW_TYPES[column.arrow_type]) for column in REQUEST_COLUMNS])


def request_table(exchanges: Sequence[Exchange], zero: float) -> pa.Table:
    """One row per request that was begun, in planned order; times count from `zero`."""
    return pa.Table.from_pylist([_row(exchange, zero) for exchange in exchanges], schema=REQUEST_SCHEMA)


def _row(exchange: Exchange, zero: float) -> dict[str, Json]:
    request = exchange.request
    answer = read_answer(exchange.response)
    status, error = _status(exchange, answer)
    chunk_times = [arrived - zero for arrived in answer.chunk_times]
    return {
        "request": request.number,
        "planned_s": exchange.planned - zero,
        "scheduled_s": None if request.at_s is None else exchange.planned - zero,
        "sent_s": None if exchange.sent is None else exchange.sent - zero,
        "first_token_s": chunk_times[0] if chunk_times else None,
        "first_answer_s": None if answer.first_answer is None else answer.first_answer - zero,
        "last_token_s": chunk_times[-1] if chunk_times else None,
        "end_s": None if exchange.end is None else exchange.end - zero,
        "chunk_s": chunk_times,
        "asked_input_tokens": request.asked_input_tokens,
        "asked_output_tokens": request.asked_output_tokens,
        "input_tokens": answer.input_tokens,
        "output_tokens": answer.output_tokens,
        "status": status,
        "http_status": exchange.response.http_status,
        "error": error,
    }


def _status(exchange: Exchange, answer: StreamedAnswer) -> tuple[str, str | None]:
    """One of REQUEST_STATUSES and, but for ok, a sentence."""
    response = exchange.response
    if response.malformed is not None:
        return "broken", f"the answer is not HTTP: {response.malformed}"
    if response.http_status == _TOO_MANY:
        wait = response.headers.get("retry-after")
        when = f"; it says to try again after {_seconds_or_date(wait)}" if wait else ""
        return "rate_limited", f"{server_sentence(bytes(response.body)).rstrip('.')}{when}"
    if response.http_status not in (None, 200):
        return "http_error", server_sentence(bytes(response.body))
    if exchange.failure is not None:
        status, error = exchange.failure
        if status == "broken" and answer.chunk_times:
            error += f", after {len(answer.chunk_times)} chunks"
        return status, error
    if answer.problem is not None:
        return "broken", answer.problem
    return "ok", None


def _seconds_or_date(retry_after: str) -> str:
    return f"{retry_after} s" if retry_after.isdigit() else retry_after
