"""The tables of docs/accuracy.md, from the rows of docs/accuracy.json."""

from collections.abc import Callable, Sequence
from typing import Any

from shootout_peers import PEERS
from written import between

BEGIN, END = "<!-- written by scripts/loadgen_shootout -->", "<!-- end -->"
Row = dict[str, Any]


def with_tables(page: str, rows: Sequence[Row]) -> str:
    parts = [
        _ttft(rows),
        _off(rows),
        _tpot(rows),
        _cost(rows),
        *_beside_the_reader(rows),
        *_problems(rows),
    ]
    return between(page, BEGIN, END, "\n\n" + "\n\n".join([*parts, *_processors(rows)]) + "\n\n")


def _ttft(rows: Sequence[Row]) -> str:
    def point(row: Row) -> str:
        return f"{1e3 * row['ttft_p50_s']:.2f} / {1e3 * row['ttft_p99_s']:.2f}"

    return "**TTFT p50 / p99 in ms** (the truth is of bitbench's own run)\n\n" + _table(
        rows, point, with_truth=True
    )


def _off(rows: Sequence[Row]) -> str:
    def point(row: Row) -> str:
        shares = (
            row[name] / row["truth"][name] - 1
            for name in ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s")
        )
        return " / ".join(f"{share:+.2%}" for share in shares)

    heading = "**Off the truth of its own run by**: TTFT p50 / TTFT p99 / TPOT p50"
    return f"{heading}\n\n{_table(rows, point, with_truth=False)}"


def _tpot(rows: Sequence[Row]) -> str:
    return "**TPOT p50 in ms**\n\n" + _table(
        rows, lambda row: f"{1e3 * row['tpot_p50_s']:.3f}", with_truth=True
    )


def _cost(rows: Sequence[Row]) -> str:
    own = [row for row in rows if row.get("tokens_per_cpu_s")]
    return (
        "**Tokens per CPU-second of the client**, from the first request to the last token\n\n"
        + _table(own, lambda row: f"{row['tokens_per_cpu_s']:,.0f}", with_truth=False)
    )


def _beside_the_reader(rows: Sequence[Row]) -> list[str]:
    """At the most streams, in words."""
    good = {(row["client"], row["streams"]): row for row in rows if not row["problem"]}
    most = max((streams for client, streams in good if client == "ours"), default=0)
    if not {("ours", most), ("reader", most)} <= good.keys():
        return []
    ours, reader = good["ours", most], good["reader", most]
    share = ours["tokens_per_cpu_s"] / reader["tokens_per_cpu_s"]
    return [
        f"At {most:,} streams bitbench reads {share:.2f} of the C++ reader's tokens per CPU-second. Counted from the "
        f"moment at which a stream was free, its TTFT p50 is {1e3 * ours['ttft_from_planned_p50_s']:.0f} ms there."
    ]


def _processors(rows: Sequence[Row]) -> list[str]:
    """Of rows that say where they were measured."""
    clients: dict[str, dict[str, None]] = {}
    for row in rows:
        if "processor" in row:
            clients.setdefault(row["processor"], {})[_name(row)] = None
    return [f"{', '.join(found)}: measured on {name}." for name, found in clients.items()]


def _problems(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"- {_name(row)} at {row['streams']:,}: {row['problem']}" for row in rows if row["problem"]
    ]
    return ["\n".join(["**What failed**", "", *lines])] if lines else []


def _table(rows: Sequence[Row], point: Callable[[Row], str], *, with_truth: bool) -> str:
    levels = sorted({row["streams"] for row in rows})
    order = ["ours", "reader", *PEERS]
    lines = [
        "| client | " + " | ".join(f"{level:,} streams" for level in levels) + " |",
        "|---" * (len(levels) + 1) + "|",
    ]
    if with_truth:
        truths = {
            row["streams"]: row["truth"]
            for row in rows
            if row["client"] == "ours" and not row["problem"]
        }
        lines.append(
            _line(
                "what the server sent",
                [point(truths[level]) if level in truths else "–" for level in levels],
            )
        )
    for client in order:
        found = {row["streams"]: row for row in rows if row["client"] == client}
        if not found:
            continue
        points = [_point(found.get(level), point) for level in levels]
        lines.append(_line(_name(next(iter(found.values()))), points))
    return "\n".join(lines)


def _point(row: Row | None, point: Callable[[Row], str]) -> str:
    if row is None:
        return "–"
    return "failed" if row["problem"] else point(row)


def _line(name: str, points: list[str]) -> str:
    return f"| {name} | {' | '.join(points)} |"


def _name(row: Row) -> str:
    client = row["client"]
    if client in PEERS:
        return PEERS[client].name + (f" {row['version']}" if row.get("version") else "")
    return {"ours": "**bitbench**", "reader": "C++ reader (the limit)"}[client]
