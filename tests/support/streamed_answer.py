"""An answer of a server, read at once."""

from bitbench.loadgen.answer import StreamedAnswer, decode_answer
from bitbench.util.http.response import ResponseReader


def read_answer(response: ResponseReader, key: str) -> StreamedAnswer:
    steps = decode_answer(response, key)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: StreamedAnswer = end.value
            return answer
