"""A workload in a sentence."""

from bitbench.reports.document.model import Name, Phrase
from bitbench.reports.document.numbers import percent
from bitbench.reports.document.words import Words, joined, say
from bitbench.study.arrival import AnyArrival, Arrival, Constant, Gamma, Poisson, Ramp, Trace
from bitbench.study.prompts import Api, show_length
from bitbench.study.workload import ShapePart, Workload
from bitbench.util.units import UNKNOWN, show_seconds


def shape(workload: Workload) -> Phrase:
    """`Concurrency 8, input 256 tokens, output 128 tokens, all at once, 8 requests per trial.`"""
    most = "up to " if workload.text is not None or isinstance(workload.arrival, Trace) else ""
    most_out = most if isinstance(workload.arrival, Trace) else ""
    what = "request" if workload.turns == 1 else "conversation"

    def known(part: ShapePart, value: str) -> str:
        return UNKNOWN if part in workload.unknown else value

    parts: list[Words] = [
        *([] if workload.open_loop else [f"concurrency {known('concurrency', f'{workload.concurrency:,}')}"]),
        f"input {known('input_tokens', most + show_length(workload.input_tokens))} tokens",
        f"output {known('output_tokens', most_out + show_length(workload.output_tokens))} tokens",
        *_prompts(workload),
        f"arrival {UNKNOWN}" if "arrival" in workload.unknown else _arrival(workload.arrival, what),
        *([f"{UNKNOWN} requests per trial"] if "requests" in workload.unknown else _how_many(workload)),
    ]
    first = parts[0]
    assert isinstance(first, str)  # a number of streams, or of tokens
    return say(joined([first.capitalize(), *parts[1:]], ", "), ".")


def _arrival(arrival: AnyArrival, what: str) -> Words:
    match arrival:
        case Constant():
            return f"one {what} each {show_seconds(1 / arrival.rate)}"
        case Poisson():
            return f"Poisson arrivals at {arrival.rate:,g} {what}s/s"
        case Gamma():
            return f"gamma arrivals at {arrival.rate:,g} {what}s/s with burstiness {arrival.burstiness:g}"
        case Ramp():
            return f"a ramp from {arrival.from_rate:,g} to {arrival.to_rate:,g} {what}s/s"
        case Trace():
            speed = "" if arrival.speed == 1 else f" at {arrival.speed:g} times its speed"
            return say("arrivals of the trace ", Name(arrival.file), speed)
        case _:
            return "all at once" if arrival.kind is Arrival.BATCH else "closed loop"


def _how_many(workload: Workload) -> list[str]:
    count = workload.request_count
    if count is not None:
        return [f"{count:,} {'request' if count == 1 else 'requests'} per trial"]
    return [f"{show_seconds(workload.duration)} per trial"]


def _prompts(workload: Workload) -> list[Words]:
    parts: list[Words] = []
    if workload.text is not None:
        parts.append(say("texts from ", Name(workload.text.file)))
    if workload.api is Api.CHAT:
        parts.append("through the chat endpoint")
    if (shared := workload.shared_prefix) is not None:
        of = "one prefix" if shared.prefixes == 1 else f"one of {shared.prefixes} prefixes"
        parts.append(f"{percent(shared.share)} of the prompts with {of} of {shared.tokens:,} tokens")
    if (talk := workload.conversation) is not None:
        think = f" with {show_seconds(talk.think)} of thinking between them" if talk.think else ""
        parts.append(f"conversations of {talk.turns} turns{think}")
    return parts
