"""Removal of paths, hosts, machine names and secrets from records that are to be published."""

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
from bitbench.study.environment import find_venv_folder
from bitbench.study.secrets import hide_secret_options, is_secret, iter_secret_values
from bitbench.util.errors import StoreError
from bitbench.util.text import HIDDEN

R = TypeVar("R", bound=Record)
Clean = Callable[[str], str]

_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s\"'<>]+", re.IGNORECASE)
# Absolute paths of at least two parts, or below a home. A lone `/metrics` reveals nothing.
_NAME = r"/[\w.@+=~%*-]+"
_PATH = re.compile(rf"(?<![\w./~$-])(?:~[\w.-]*(?:{_NAME})+|(?:\$\w+)?(?:{_NAME}){{2,}})/?")
# Tokens of the usual hubs, clouds and servers, in a log line, an error or an argument.
_TOKEN = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,}|gh[a-z]_[A-Za-z0-9]{20,}|glpat-[\w-]{20,}"
    r"|A[KS]IA[0-9A-Z]{16}"
    r"|xox[a-z]-[\w-]{10,}|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)|(?<=[Bb]earer )[^\s\"']+"
)
_ADDRESS = re.compile(r"(?<![\w./])(?!127\.)(?:\d{1,3}\.){3}\d{1,3}(?=:\d)")
_OWN_MACHINE = ("localhost", "127.0.0.1", "::1")


def clean_records(records: StudyRecords) -> StudyRecords:
    """Return the records as they may be published, request rows included. Raise StoreError if names
    in the study become equal without their paths."""
    clean = _make_cleaner(records)

    def clean_record(record: R) -> R:
        content = _clean_value(record.model_dump(mode="json"), clean)
        try:
            return type(record).model_validate(content, context=RECORDED)
        except ValidationError as error:
            reason = str(error.errors()[0]["msg"]).removeprefix("Value error, ")
            raise StoreError(
                f"without the paths of this machine names in the study would be equal: {reason}"
            ) from None

    return replace(
        records,
        lock=clean_record(records.lock),
        trials=[clean_record(trial) for trial in records.trials],
        instances=[clean_record(instance) for instance in records.instances],
        quality=[clean_record(record) for record in records.quality],
        profiles=[clean_record(profile) for profile in records.profiles],
        requests_of=lambda trial, columns: _clean_errors(
            records.requests_of(trial, columns), clean
        ),
    )


def hide_places(text: str) -> str:
    """Return the text with URLs cut to scheme, port and path, and paths to their last part. Tokens
    are hidden."""
    text = _ADDRESS.sub("…", _TOKEN.sub(HIDDEN, text))
    urls: list[str] = []

    def hide_url(match: re.Match[str]) -> str:
        urls.append(_hide_host(match[0]))
        return f"\0{len(urls) - 1}\0"

    def last_part(match: re.Match[str]) -> str:
        return f"…/{match[0].rstrip('/').rpartition('/')[2]}"

    shortened = _PATH.sub(last_part, _URL.sub(hide_url, text.replace("\0", "")))
    return re.sub("\0(\\d+)\0", lambda match: urls[int(match[1])], shortened)


def _hide_host(url: str) -> str:
    """Return the URL without host, user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return "…"
    if parts.scheme.lower() == "file":
        return f"file://…/{parts.path.rpartition('/')[2]}"
    host = parts.hostname if parts.hostname in _OWN_MACHINE else "…"
    return f"{parts.scheme}://{host}{port}{parts.path}"


def _make_cleaner(records: StudyRecords) -> Clean:
    """Return a function that cleans a text of this study. It replaces the study's secrets, machines
    and environments."""
    secrets = sorted(
        {*iter_secret_values(records.lock.model_dump(mode="json"))}, key=len, reverse=True
    )
    names = {**_make_machine_names(records), **_make_environment_names(records)}
    pattern: re.Pattern[str] | None = None
    if names:
        escaped = (re.escape(name) for name in sorted(names, key=len, reverse=True))
        pattern = re.compile(rf"(?<![\w.-])(?:{'|'.join(escaped)})(?![\w-])")

    def clean(text: str) -> str:
        for secret in secrets:
            text = text.replace(secret, HIDDEN)
        if pattern is not None:
            text = pattern.sub(lambda match: names[match[0]], text)
        return hide_places(text)

    return clean


def _make_machine_names(records: StudyRecords) -> dict[str, str]:
    """Return the published name of each machine. `local`, the study's own machine, has none."""
    names = set(records.lock.hosts)
    names |= {instance.host for instance in records.instances if instance.host is not None}
    for trial in records.trials:
        if trial.client is not None:
            names |= {node.name for node in trial.client.nodes}
    others = sorted(name for name in names if not re.fullmatch(r"local(-\d+)?", name))
    return {name: f"machine-{number:03d}" for number, name in enumerate(others, start=1)}


def _make_environment_names(records: StudyRecords) -> dict[str, str]:
    """Return the published path of each environment that the user made."""
    paths = set(records.lock.environments)
    for setup in records.study.engines:
        if setup.python is not None:
            paths |= {setup.python, str(Path(setup.python).expanduser())}
    absolute = (path for path in paths if Path(path).expanduser().is_absolute())
    return {path: f"/{find_venv_folder(Path(path)).name}" for path in absolute}


def _clean_value(value: Json, clean: Clean) -> Any:
    """Return the value with all texts in it cleaned, names of fields included."""
    match value:
        case str():
            return clean(value)
        case dict():
            return {
                clean(name): _clean_field(name, inside, clean) for name, inside in value.items()
            }
        case list() if all(isinstance(text, str) for text in value):
            return [clean(text) for text in hide_secret_options(value)]
        case list():
            return [_clean_value(item, clean) for item in value]
    return value


def _clean_field(name: str, value: Json, clean: Clean) -> Any:
    """Return the cleaned value of a field. Its name may show that it is a secret or a URL."""
    if not isinstance(value, str):
        return _clean_value(value, clean)
    if is_secret(name):
        return HIDDEN
    # An endpoint may be written as `box.lan:8000`.
    if name.lower().endswith("url") and value and "://" not in value:
        return _hide_host(f"//{value}").lstrip(":/")
    return _clean_value(value, clean)


def _clean_errors(rows: pa.Table, clean: Clean) -> pa.Table:
    """Return the rows with clean error messages, since a server may write its paths or its input
    into them."""
    index = rows.schema.get_field_index("error")
    if index < 0 or rows.column(index).null_count == rows.num_rows:
        return rows
    errors: list[str | None] = []
    for text in rows.column(index).to_pylist():
        errors.append(None if text is None else clean(text))
    return rows.set_column(index, rows.schema.field(index), pa.array(errors, pa.string()))
