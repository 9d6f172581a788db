"""Answers wait for the end of the trial to be decoded, in memory that stays bounded."""

from concurrent.futures import ThreadPoolExecutor

from bitbench.load.response import ResponseReader

# Bytes of answers that are kept as they came: a million events of 200 bytes. What comes after them is compressed, in a
# thread, to a seventieth: that took 1.5 µs of a core for each event, so short trials do without.
AS_THEY_CAME_BYTES = 256_000_000


class KeptAnswers:
    """Takes answers that have ended."""

    def __init__(self) -> None:
        self._room = AS_THEY_CAME_BYTES
        self._compressor: ThreadPoolExecutor | None = None

    def add(self, response: ResponseReader) -> None:
        self._room -= response.parts.about_bytes
        if self._room > 0:
            return
        if self._compressor is None:
            self._compressor = ThreadPoolExecutor(1)
        self._compressor.submit(response.compress)

    def close(self) -> None:
        if self._compressor is not None:
            self._compressor.shutdown(wait=True)
