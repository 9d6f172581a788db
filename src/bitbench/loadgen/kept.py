"""Answers wait for the end of the trial to be decoded, in memory that stays bounded."""

from concurrent.futures import ThreadPoolExecutor

from bitbench.util.http.response import ResponseReader

# Bytes of answers that are kept as they came: a million events of 200 bytes. What comes after them is compressed, in a
# thread, to a seventieth: that took 1.5 µs of a core for each event, so short trials do without.
AS_THEY_CAME_BYTES = 256_000_000


class KeptAnswers:
    """Takes answers that have ended."""

    def __init__(self) -> None:
        self._added_bytes = 0
        self._saved_bytes = 0  # written by the compressor's thread alone
        self._compressor: ThreadPoolExecutor | None = None

    @property
    def held_bytes(self) -> int:
        return self._added_bytes - self._saved_bytes

    def add(self, response: ResponseReader) -> None:
        self._added_bytes += response.held_bytes
        if self._added_bytes < AS_THEY_CAME_BYTES:
            return
        if self._compressor is None:
            self._compressor = ThreadPoolExecutor(1)
        self._compressor.submit(self._compress, response)

    def _compress(self, response: ResponseReader) -> None:
        before = response.held_bytes
        response.compress()
        self._saved_bytes += before - response.held_bytes

    def close(self) -> None:
        if self._compressor is not None:
            self._compressor.shutdown(wait=True)
