"""What figures use of Vega-Lite, as plain data: which rows, as which mark, and what each channel shows of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from bitbench.study.base import Json

Spec = dict[str, Json]
SCHEMA = "https://vega.github.io/schema/vega-lite/v6.4.1.json"
TYPES = {"N": "nominal", "O": "ordinal", "Q": "quantitative"}


@dataclass(frozen=True)
class Layer:
    """Rows of a figure and how they are drawn. Each method gives another layer, so that layers share a beginning."""

    transform: tuple[Spec, ...] = ()
    look: Spec = field(default_factory=dict)
    encoding: Spec = field(default_factory=dict)

    def where(self, condition: str | Spec) -> "Layer":
        """Those rows for which it holds: an expression, or a field and what it equals."""
        return replace(self, transform=(*self.transform, {"filter": condition}))

    def first(self) -> "Layer":
        """The first row alone."""
        numbered = {"window": [{"op": "row_number", "as": "place"}]}
        return replace(self, transform=(*self.transform, numbered)).where("datum.place == 1")

    def mark(self, type: str, **look: Json) -> "Layer":
        return replace(self, look={"type": type, **_in_order(look)})

    def encode(self, **channels: str | Spec | Sequence[Spec]) -> "Layer":
        """A text is a field with its type (`x:Q`); that of `x2` and `y2` has none, since they share that of x and y."""
        read = {name: channel(what) if isinstance(what, str) else what for name, what in channels.items()}
        return replace(self, encoding=self.encoding | read)

    @property
    def spec(self) -> Spec:
        made: Spec = {"mark": self.look, "encoding": _in_order(self.encoding)}
        return made | ({"transform": list(self.transform)} if self.transform else {})


def channel(shown: str, **options: Json) -> Spec:
    """`x:Q` is the field x, a quantity; N names, O has an order."""
    name, _, kind = shown.partition(":")
    return {"field": name, **({"type": TYPES[kind]} if kind else {}), **options}


def legend(title: str | None = None) -> Spec:
    """Above the figure, a line per entry."""
    return {"title": title, "orient": "top", "direction": "vertical", "columns": 1}


def value(constant: Json) -> Spec:
    """A channel that is the same for every row: pixels, or `width`."""
    return {"value": constant}


def layered(layers: Sequence[Layer], rows: str, *, height: int | Spec, description: str) -> Spec:
    """As wide as what it stands in; its rows are named, not held."""
    return {
        "layer": [layer.spec for layer in layers],
        "data": {"name": rows},
        "description": description,
        "height": height,
        "width": "container",
        "$schema": SCHEMA,
    }


def _in_order(value: Json) -> Json:
    """Whichever order they were written in: the same figure is the same text."""
    if isinstance(value, Mapping):
        return {key: _in_order(value[key]) for key in sorted(value)}
    return [_in_order(item) for item in value] if isinstance(value, list | tuple) else value
