"""`blocks.jsonl` of a study: the decisions about each block, written before the block begins and
read when a run resumes.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Literal

from bitbench.records.folder import StudyFolder
from bitbench.records.strict_reader import parse_record
from bitbench.study.base import Record
from bitbench.study.plan import Point
from bitbench.util.files import SafeFolder, read_bytes

BLOCK_FORMAT: Literal[1] = 1
# History of BLOCK_FORMAT:
#   1  first form
_NAME = "blocks.jsonl"


class BlockLine(Record):
    """A block that began on a host, ended on a node, or is void because its host was lost."""

    format: int = BLOCK_FORMAT
    block: int
    attempt: int
    event: Literal["begun", "ended", "void"]
    host: str
    at: str  # wall clock, ISO 8601 in UTC
    rounds: int  # planned rounds, or the rounds that it has if it ended
    decided: tuple[Point, ...] = ()  # points that were decided before it and do not run in it
    seconds: float | None = None  # its duration if it ended
    cause: str | None = None  # how the host was lost if it is void


class BlockLines:
    """The newest line of each block. An incomplete line, left by a killed process, is removed."""

    def __init__(self, folder: StudyFolder) -> None:
        path = folder.path / _NAME
        self._files = SafeFolder(folder.path)
        self._newest: dict[int, BlockLine] = {}
        text = b""
        if path.exists():
            text = read_bytes(path)
        complete = text[: text.rfind(b"\n") + 1]
        if complete != text:
            self._files.truncate(_NAME, len(complete))
        for number, raw in enumerate(complete.splitlines(), start=1):
            where = f"{_NAME}:{number} in {folder.path}"
            line = parse_record(
                raw, BlockLine, BLOCK_FORMAT, where, "remove that line to continue without it"
            )
            self._newest[line.block] = line

    @property
    def newest(self) -> Mapping[int, BlockLine]:
        return self._newest

    def begin(self, block: int, host: str, rounds: int, decided: tuple[Point, ...]) -> BlockLine:
        """Write that a block begins on a host."""
        attempt = 1
        if earlier := self._newest.get(block):
            attempt = earlier.attempt + 1
        line = BlockLine(
            block=block,
            attempt=attempt,
            event="begun",
            host=host,
            at=_format_now(),
            rounds=rounds,
            decided=decided,
        )
        return self._append(line)

    def change_rounds(self, block: int, rounds: int) -> None:
        """Write that a block under way gets another number of rounds."""
        self._append(self._newest[block].model_copy(update={"at": _format_now(), "rounds": rounds}))

    def end(self, line: BlockLine, rounds: int, seconds: float) -> BlockLine:
        """Write that a block ended, with its rounds and its duration."""
        return self._append(
            line.model_copy(
                update={"event": "ended", "at": _format_now(), "rounds": rounds, "seconds": seconds}
            )
        )

    def mark_void(self, line: BlockLine, cause: str) -> None:
        """Write that a block is void, and why."""
        self._append(line.model_copy(update={"event": "void", "at": _format_now(), "cause": cause}))

    def take(self, others: "BlockLines") -> None:
        """Add the newest lines of another folder."""
        for block, line in others.newest.items():
            if self._newest.get(block) != line:
                self._append(line)

    def _append(self, line: BlockLine) -> BlockLine:
        self._files.append(_NAME, line.model_dump_json().encode() + b"\n")
        self._newest[line.block] = line
        return line


def _format_now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
