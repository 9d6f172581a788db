"""From exchanges to the rows of requests/*.parquet."""

import time
from collections.abc import Sequence

import pyarrow as pa

from bitbench.loadgen.answer import StreamedAnswer, read_answer, server_sentence
from bitbench.loadgen.connection import Exchange
from bitbench.records.requests import REQUEST_COLUMNS
from bitbench.study.base import Json
from bitbench.util.http.limits import trial_decoding_s
from bitbench.util.http.redirects import REDIRECTS, redirection
from bitbench.util.http.response import ResponseReader
from bitbench.util.quotation import quote
from bitbench.util.units import show_bytes

_ARROW_TYPES = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "float64": pa.float64(),
    "string": pa.string(),
    "list<float64>": pa.list_(pa.float64()),
}

_TOO_MANY = 429  # HTTP's "Too Many Requests"
_SHOWN = 80  # characters of a header

REQUEST_SCHEMA = pa.schema([(column.name, _ARROW_TYPES[column.arrow_type]) for column in REQUEST_COLUMNS])


def request_table(exchanges: Sequence[Exchange], zero: float, key: str) -> pa.Table:
    """One row per request that was begun, in planned order; times count from `zero`. The key is in none of them."""
    ordered = sorted(exchanges, key=lambda exchange: exchange.request.number)
    tokens = sum(exchange.request.most_output_tokens for exchange in ordered)
    until = time.thread_time() + trial_decoding_s(tokens)
    return pa.Table.from_pylist([_row(exchange, zero, until, key) for exchange in ordered], schema=REQUEST_SCHEMA)


def _row(exchange: Exchange, zero: float, until: float, key: str) -> dict[str, Json]:
    request = exchange.request
    left_s = min(exchange.limits.decoding_s, until - time.thread_time())
    answer = read_answer(exchange.response, exchange.limits._replace(decoding_s=left_s), key)
    status, error = _status(exchange, answer, key)
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
        "cached_tokens": answer.cached_tokens,
        "status": status,
        "http_status": exchange.response.http_status,
        "error": error,
    }


def _status(exchange: Exchange, answer: StreamedAnswer, key: str) -> tuple[str, str | None]:
    """One of REQUEST_STATUSES and, but for ok, a sentence."""
    response = exchange.response
    if response.oversized:
        limit, tokens = show_bytes(exchange.limits.body_bytes), exchange.request.most_output_tokens
        return "oversized", f"the answer is larger than {limit}, several times what {tokens:,} output tokens take"
    if response.malformed is not None:
        return "broken", f"the answer is not HTTP: {response.malformed.show(key)}"
    if response.http_status not in (None, 200):
        return _refusal(response, key)
    if exchange.failure is not None:
        status, error = exchange.failure
        if status == "broken" and answer.chunk_times:
            error += f", after {len(answer.chunk_times)} chunks"
        return status, error
    return answer.problem or ("ok", None)


def _refusal(response: ResponseReader, key: str) -> tuple[str, str]:
    """A status other than 200."""
    said = server_sentence(response.body, key)
    if response.http_status == _TOO_MANY:
        wait = quote(response.headers.get("retry-after", ""), key, _SHOWN)
        when = f"; it says to try again after {_seconds_or_date(wait)}" if wait else ""
        return "rate_limited", f"{said.rstrip('.')}{when}"
    if response.http_status in REDIRECTS:
        return "http_error", redirection(response.headers, key)
    return "http_error", said


def _seconds_or_date(retry_after: str) -> str:
    return f"{retry_after} s" if retry_after.isdigit() else retry_after
