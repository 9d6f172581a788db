"""Sizes that a Parquet file of a stranger states of itself, read before anything in it is unpacked.

pyarrow has them, too, but a footer that contradicts itself ends its process (an exception of C++ that nothing catches).
The footer is a Thrift structure in the compact protocol; only what is needed of it is looked at.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

_MAGIC = b"PAR1"
_TAIL = 8  # the footer's length, and the magic
_DEEPEST = 16
_TRUE, _FALSE, _BYTE, _WHOLE, _DOUBLE, _BINARY, _LISTS, _STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12
_LONG_LIST = 15
# Fields by their numbers in parquet.thrift.
_ROW_GROUPS, _COLUMNS, _COLUMN_FACTS, _VALUES, _UNPACKED = 4, 1, 3, 5, 6


class GroupSize(NamedTuple):
    values: int
    unpacked_bytes: int


def group_sizes(content: bytes) -> list[GroupSize]:
    """Return the size of each row group; raises ValueError where this is no Parquet file, or its footer is damaged."""
    size = int.from_bytes(content[-_TAIL:-4], "little")
    if content[-4:] != _MAGIC or not 0 < size <= len(content) - _TAIL:
        raise ValueError("it is no Parquet file")
    try:
        footer = _Compact(content[-_TAIL - size : -_TAIL]).structure()
        return [_group_size(group) for group in footer.get(_ROW_GROUPS, [])]
    except (IndexError, KeyError, TypeError, AttributeError) as error:
        raise ValueError("its footer is damaged") from error


def _group_size(group: dict[int, Any]) -> GroupSize:
    chunks = [chunk[_COLUMN_FACTS] for chunk in group[_COLUMNS]]
    if any(chunk[field] < 0 for chunk in chunks for field in (_VALUES, _UNPACKED)):
        raise ValueError("its footer states a size below zero")
    return GroupSize(sum(chunk[_VALUES] for chunk in chunks), sum(chunk[_UNPACKED] for chunk in chunks))


@dataclass
class _Compact:
    """Values of Thrift's compact protocol: structures as dicts by field number. Raises IndexError at the end."""

    content: bytes
    place: int = 0

    def structure(self, depth: int = 0) -> dict[int, Any]:
        if depth > _DEEPEST:
            raise ValueError("its footer is nested too deeply")
        fields: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            number = number + (head >> 4) if head >> 4 else self._whole()
            fields[number] = self._value(head & 15, depth)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_TRUE, _FALSE):
            return kind == _TRUE
        if kind == _BYTE:
            return self._byte()
        if kind in _WHOLE:
            return self._whole()
        if kind in (_DOUBLE, _BINARY):
            return self._bytes(8 if kind == _DOUBLE else self._unsigned())
        if kind in _LISTS:
            return self._list(depth)
        if kind == _STRUCT:
            return self.structure(depth + 1)
        raise ValueError("its footer is damaged")

    def _list(self, depth: int) -> list[Any]:
        if depth > _DEEPEST:
            raise ValueError("its footer is nested too deeply")
        head = self._byte()
        length = self._unsigned() if head >> 4 == _LONG_LIST else head >> 4
        kind = head & 15
        return [self._byte() if kind in (_TRUE, _FALSE) else self._value(kind, depth + 1) for _ in range(length)]

    def _byte(self) -> int:
        self.place += 1
        return self.content[self.place - 1]

    def _bytes(self, length: int) -> bytes:
        if length > len(self.content) - self.place:
            raise IndexError
        self.place += length
        return self.content[self.place - length : self.place]

    def _unsigned(self) -> int:
        found = shift = 0
        while (byte := self._byte()) & 0x80:
            found |= (byte & 0x7F) << shift
            shift += 7
        return found | byte << shift

    def _whole(self) -> int:
        """Zigzag: the sign is the lowest bit."""
        found = self._unsigned()
        return found >> 1 ^ -(found & 1)
