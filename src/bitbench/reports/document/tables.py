"""Tables by column: each says its title, its unit, and what it shows of an item; a row is an item."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from bitbench.reports.document.model import Column, Mark, Quantity, Row, Table, TableCell, Unit
from bitbench.reports.document.words import Words, say
from bitbench.reports.quantities import number

Item = TypeVar("Item")
Shown = Words | float  # a bare number is one of the column's unit


@dataclass(frozen=True)
class ColumnOf(Generic[Item]):
    column: Column
    of: Callable[[Item], Shown]
    decimals: int | None = None  # of bare numbers, in tables whose layout others have set

    def cell(self, item: Item) -> TableCell:
        shown = self.of(item)
        if isinstance(shown, int | float):
            fixed = Quantity(shown, self.column.unit, decimals=self.decimals)
            return number(shown, self.column.unit) if self.decimals is None else fixed
        return shown if shown is None or isinstance(shown, Quantity) else say(shown)


def words_column(title: Words, of: Callable[[Item], Words], *, shown_from: int = 0) -> ColumnOf[Item]:
    return ColumnOf(Column(say(title), is_words=True, shown_from=shown_from), of)


def number_column(
    title: Words,
    unit: str,
    of: Callable[[Item], Shown],
    *,
    shown_from: int = 0,
    intervals_from: int = 130,
    decimals: int | None = None,
) -> ColumnOf[Item]:
    return ColumnOf(Column(say(title), unit, shown_from=shown_from, intervals_from=intervals_from), of, decimals)


def ratio_column(title: Words, of: Callable[[Item], Shown]) -> ColumnOf[Item]:
    """Its interval is shown in every terminal: a ratio without it says little."""
    return number_column(title, Unit.RATIO, of, intervals_from=0)


def table(
    items: Iterable[Item],
    *columns: ColumnOf[Item],
    mark: Callable[[Item], Mark | None] = lambda _: None,
    drop_empty: bool = False,
) -> Table:
    """`drop_empty`: without the columns whose values are all unknown."""
    rows = [(item, [column.cell(item) for column in columns]) for item in items]
    known = [
        place for place in range(len(columns)) if not drop_empty or any(cells[place] is not None for _, cells in rows)
    ]
    return Table(
        tuple(columns[place].column for place in known),
        tuple(Row(tuple(cells[place] for place in known), mark(item)) for item, cells in rows),
    )
