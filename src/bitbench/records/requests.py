"""The columns of requests/*.parquet: one row per request of a trial.

Times are seconds on one monotonic clock, counted from the trial's start (its wall clock is `started_at` of the
trial record). What did not happen is null: a request without a token has no `first_token_s`.
"""

from typing import NamedTuple


class RequestColumn(NamedTuple):
    name: str
    arrow_type: str
    meaning: str
    is_later: bool = False  # rows that were written before it existed lack it: it is null there


REQUEST_COLUMNS = (
    RequestColumn("request", "int32", "number within the trial, in planned order"),
    RequestColumn("planned_s", "float64", "when it should be sent; latencies count from here"),
    RequestColumn("scheduled_s", "float64", "planned_s where a schedule said when; null where it followed an answer"),
    RequestColumn("sent_s", "float64", "when its bytes were handed to the socket"),
    RequestColumn("first_token_s", "float64", "when the first chunk with text arrived, reasoning or answer"),
    RequestColumn("first_answer_s", "float64", "when the first chunk of the answer arrived, after any reasoning"),
    RequestColumn("last_token_s", "float64", "when the last chunk with text arrived"),
    RequestColumn("end_s", "float64", "when the stream was complete, or had failed"),
    RequestColumn("chunk_s", "list<float64>", "arrival of each chunk with text; a chunk may carry several tokens"),
    RequestColumn(
        "asked_input_tokens", "int32", "prompt tokens asked for; null for text, whose tokens only the server counts"
    ),
    RequestColumn("asked_output_tokens", "int32", "output tokens asked for"),
    RequestColumn("input_tokens", "int32", "prompt tokens, from the engine's usage"),
    RequestColumn("output_tokens", "int32", "output tokens, from the engine's usage"),
    RequestColumn(
        "cached_tokens",
        "int32",
        "prompt tokens that came from a prefix cache, from the engine's usage; null: unknown",
        is_later=True,
    ),
    RequestColumn(
        "status",
        "string",
        "ok, refused, http_error, rate_limited, broken, oversized, contradictory, stalled or timeout",
    ),
    RequestColumn("http_status", "int16", "status code of the answer"),
    RequestColumn("error", "string", "what went wrong, in the server's words where it gave some"),
)

REQUEST_STATUSES = (
    "ok",  # complete, with usage
    "refused",  # no connection
    "http_error",  # the server answered with an error
    "rate_limited",  # the server said that it has too many requests (HTTP 429)
    "broken",  # the stream ended before it was complete
    "oversized",  # the answer was given up: more bytes, events or time to decode than `util.http.limits` allows
    "contradictory",  # complete, but its chunks are more than the tokens that its usage counts
    "stalled",  # no byte for longer than the stall limit
    "timeout",  # longer than the request limit in all
)
