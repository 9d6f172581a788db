"""The records of a study without what only its machine needs to know: paths, hosts, names of machines, secrets."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
from pydantic import ValidationError

from bitbench.records.folder import StudyRecords
from bitbench.study.base import RECORDED, Json, Record
from bitbench.study.environment import venv_folder
from bitbench.study.secrets import is_secret, secret_values, without_secret_options
from bitbench.util.errors import StoreError
from bitbench.util.text import HIDDEN

R = TypeVar("R", bound=Record)
Clean = Callable[[str], str]

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
# Absolute and of two parts at least, or from somebody's home: a lone `/metrics` tells nothing of a machine.
_NAME = r"/[\w.@+=~%*-]+"
_PATH = re.compile(rf"(?<![\w./~$-])(?:~[\w.-]*(?:{_NAME})+|(?:\$\w+)?(?:{_NAME}){{2,}})/?")
# What the usual hubs, clouds and servers give out, wherever it stands: in a log line, an error, an argument.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z0-9]{20,}|glpat-[\w-]{20,}|A[KS]IA[0-9A-Z]{16}"
    r"|xox[a-z]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)|(?<=[Bb]earer )[^\s\"']+"
)
_ADDRESS = re.compile(r"(?<![\w./])(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?=:\d)")
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")


def clean_records(of: StudyRecords) -> StudyRecords:
    """Return the records as they may be published, rows of requests included."""
    clean = _cleaner(of)

    def cleaned(record: R) -> R:
        content = _cleaned(record.model_dump(mode="json"), clean)
        try:
            return type(record).model_validate(content, context=RECORDED)
        except ValidationError as error:
            reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            raise StoreError(
                f"without the paths of this machine names in the study would be equal: {reason}"
            ) from None

    return replace(
        of,
        lock=cleaned(of.lock),
        trials=[cleaned(trial) for trial in of.trials],
        instances=[cleaned(instance) for instance in of.instances],
        quality=[cleaned(record) for record in of.quality],
        profiles=[cleaned(profile) for profile in of.profiles],
        requests_of=lambda trial, columns: _clean_errors(of.requests_of(trial, columns), clean),
    )


def without_places(text: str) -> str:
    """Return a text in which URLs keep scheme, port and path, and paths their last part; tokens are hidden."""
    text = _ADDRESS.sub("…", _TOKEN.sub(HIDDEN, text))
    hidden: list[str] = []

    def keep(found: re.Match[str]) -> str:
        hidden.append(_without_host(found[0]))
        return f"\0{len(hidden) - 1}\0"

    def last_part(found: re.Match[str]) -> str:
        return f"…/{found[0].rstrip('/').rpartition('/')[2]}"

    shortened = _PATH.sub(last_part, _URL.sub(keep, text.replace("\0", "")))
    return re.sub("\0(\\d+)\0", lambda found: hidden[int(found[1])], shortened)


def _without_host(url: str) -> str:
    """Without user, password, query and fragment, too."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "…"
    if parts.scheme.lower() == "file":
        return f"file://…/{parts.path.rpartition('/')[2]}"
    host = parts.hostname if parts.hostname in _OWN_MACHINE else "…"
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _cleaner(of: StudyRecords) -> Clean:
    """Return what cleans a text of this study: its secrets, its machines and environments are known by name."""
    secrets = sorted({*secret_values(of.lock.model_dump(mode="json"))}, key=len, reverse=True)
    names = {**_machine_names(of), **_environment_names(of)}
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    name_of_study = re.compile(rf"(?<![\w.-])(?:{known})(?![\w-])") if names else None

    def clean(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        if name_of_study is not None:
            text = name_of_study.sub(lambda found: names[found[0]], text)
        return without_places(text)

    return clean


def _machine_names(of: StudyRecords) -> dict[str, str]:
    """Return what each machine is called in the published study; `local` is this machine's."""
    known = set(of.lock.hosts)
    known |= {instance.host for instance in of.instances if instance.host is not None}
    for trial in of.trials:
        if trial.client is not None:
            known |= {node.name for node in trial.client.nodes}
    others = sorted(name for name in known if not re.fullmatch(r"local(-\d+)?", name))
    return {name: f"machine-{place:03d}" for place, name in enumerate(others, start=1)}


def _environment_names(of: StudyRecords) -> dict[str, str]:
    """Return the name of each environment that somebody made, as a path that a study may have."""
    pythons = [setup.python for setup in of.study.engines if setup.python is not None]
    places = {
        *pythons,
        *(str(Path(python).expanduser()) for python in pythons),
        *of.lock.environments,
    }
    own = (place for place in places if Path(place).expanduser().is_absolute())
    return {place: f"/{venv_folder(Path(place)).name}" for place in own}


def _cleaned(value: Json, clean: Clean) -> Any:
    match value:
        case str():
            return clean(value)
        case dict():
            return {
                clean(name): _cleaned_field(name, inside, clean) for name, inside in value.items()
            }
        case list() if all(isinstance(text, str) for text in value):
            return [clean(text) for text in without_secret_options(value)]
        case list():
            return [_cleaned(item, clean) for item in value]
    return value


def _cleaned_field(name: str, value: Json, clean: Clean) -> Any:
    if isinstance(value, str):
        if is_secret(name):
            return HIDDEN
        if (
            name.lower().endswith("url") and value and "://" not in value
        ):  # `box.lan:8000` will do for an endpoint
            return _without_host(f"//{value}").lstrip(":/")
    return _cleaned(value, clean)


def _clean_errors(rows: pa.Table, clean: Clean) -> pa.Table:
    """What a server said of its errors may hold its paths, and whatever it was told."""
    place = rows.schema.get_field_index("error")
    if place < 0 or rows.column(place).null_count == rows.num_rows:
        return rows
    said = [None if text is None else clean(text) for text in rows.column(place).to_pylist()]
    return rows.set_column(place, rows.schema.field(place), pa.array(said, pa.string()))
