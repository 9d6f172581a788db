"""How much of an answer is taken from a server, whatever it sends: bytes, events, and time to decode them.

Each limit is several times what servers in use send, so that none of them meets it, and small enough that a server that
sends without end is given up while this machine is still well.
"""

from typing import NamedTuple

HEAD_BYTES = 65_536  # status line and headers; servers themselves refuse heads of 8 to 64 KiB
LINE_BYTES = 4_096  # a chunk-size or trailer line
# Heads of 1xx before the real one (servers send one or two) and trailer lines after the body (most send none).
EXTRA_LINES = 64

# An answer that is no stream: a list of models (OpenRouter's 400 take 500 kB), log-probabilities of a window of 4,096
# tokens with 100 alternatives each at 60 bytes (25 MB).
PLAIN_BYTES = 1_000_000
LOGPROB_BYTES = 256_000_000
MODEL_NAMES = 10_000

# An event of one token takes 150 to 400 bytes, with a gateway's filter results 1,000; error bodies may repeat the
# request with every character escaped.
_STREAM_BYTES, _BYTES_PER_TOKEN, _REQUEST_REPEATED = 1_000_000, 4_096, 2
# Beside tokens there are a role, an end, a usage and pings, one in several seconds; some gateways cut a token in parts.
_EVENTS, _EVENTS_PER_TOKEN = 1_000, 4
# A megabyte of the densest JSON becomes 30 MB of objects; no event of a token comes near.
EVENT_BYTES = 1_000_000
# An event takes 5 to 10 µs of a core to decode. In processor time: a busy machine makes no answer too large.
_DECODING_S, _DECODING_S_PER_TOKEN = 10.0, 100e-6
_TRIAL_DECODING_S = 60.0
# What one worker holds of a trial's answers, in flight and kept: 1,024 streams with 8,000 tokens of 250 bytes each.
TRIAL_BYTES = 2 * 2**30


class AnswerLimits(NamedTuple):
    """Of one streamed answer."""

    body_bytes: int
    events: int
    decoding_s: float

    @classmethod
    def of(cls, output_tokens: int, request_bytes: int) -> "AnswerLimits":
        return cls(
            _STREAM_BYTES + _BYTES_PER_TOKEN * output_tokens + _REQUEST_REPEATED * request_bytes,
            _EVENTS + _EVENTS_PER_TOKEN * output_tokens,
            _DECODING_S + _DECODING_S_PER_TOKEN * output_tokens,
        )


def trial_decoding_s(output_tokens: int) -> float:
    """For all answers of a trial together."""
    return _TRIAL_DECODING_S + _DECODING_S_PER_TOKEN * output_tokens
