"""An answer of a server, read at once."""

from bitbench.loadgen.answer import StreamedAnswer, answer_steps
from bitbench.util.http.response import ResponseReader


def read_answer(response: ResponseReader, key: str) -> StreamedAnswer:
    steps = answer_steps(response, key)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            answer: StreamedAnswer = end.value
            return answer
