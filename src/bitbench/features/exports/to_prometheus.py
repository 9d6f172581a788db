"""Prometheus' text format: for the node exporter's textfile collector, or pushed to a Pushgateway.

The format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from collections.abc import Mapping
from urllib.error import HTTPError, URLError
from urllib.parse import quote
from urllib.request import Request, urlopen

from bitbench.features.exports.content import ExportedStudy, ExportError

_ENDINGS = {
    "s": "_seconds",
    "tok/s": "_tokens_per_second",
    "req/s": "_requests_per_second",
    "J/tok": "_joules_per_token",
}
_LIMITS = {"_low": "Lower limit of the interval of: ", "_high": "Upper limit of the interval of: "}
_IN_A_LABEL = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_PATIENCE_S = 10.0


def export(study: ExportedStudy, url: str | None) -> str:
    text = exposition(study)
    if url is None:
        return text
    place = f"{url.rstrip('/')}/metrics/job/bitbench/study/{quote(study.name, safe='')}"
    try:
        request = Request(place, text.encode(), {"Content-Type": "text/plain; version=0.0.4"}, method="PUT")
        with urlopen(request, timeout=_PATIENCE_S):
            return f"pushed {len(study.points)} points to {place}\n"
    except HTTPError as error:
        raise ExportError(f"{place} refused the figures: {error.code} {error.reason}; is it a Pushgateway?") from error
    except (URLError, OSError, ValueError) as error:
        raise ExportError(f"{place} cannot be reached ({getattr(error, 'reason', error)}); check --url.") from error


def exposition(study: ExportedStudy) -> str:
    """A family per figure and per limit of its interval; what is known of the study is `bitbench_study_info`."""
    families: dict[str, list[str]] = {}

    def add(name: str, meaning: str, labels: Mapping[str, str], value: float) -> None:
        head = [f"# HELP {name} {meaning.translate(_IN_HELP)}", f"# TYPE {name} gauge"]
        families.setdefault(name, head).append(_sample(name, labels, value))

    for point in study.points:
        labels = {"study": study.name, **point.labels}
        for figure in point.figures:
            for ending, value in figure.bounds():
                name = f"bitbench_{figure.name}{_ENDINGS.get(figure.unit, '')}{ending}"
                add(name, _LIMITS.get(ending, "") + figure.meaning, labels, value)
    about = {"study": study.name, **study.facts}
    add("bitbench_study_info", "What was measured, with what, and where.", about, 1)
    return "".join(line + "\n" for lines in families.values() for line in lines)


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{text.translate(_IN_A_LABEL)}"' for label, text in labels.items())
    return f"{name}{{{shown}}} {value!r}"
