"""A record without what only its own machine needs to know: paths, hosts of URLs, values of secrets, tokens."""

import re
from collections.abc import Callable, Collection
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bitbench.study.base import RECORDED, Json, Record
from bitbench.study.secrets import is_secret, without_secret_options
from bitbench.util.quotation import HIDDEN

R = TypeVar("R", bound=Record)
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


def without_machine(record: R, secrets: Collection[str] = ()) -> R:
    """The same record: paths end in `…/` and their last part, a host that is not this machine is `…`, and none of these
    secrets is in any text."""
    content = _clean(record.model_dump(mode="json"), lambda text: without_secrets(text, secrets))
    return type(record).model_validate(content, context=RECORDED)


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Nor what `without_places` takes out."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return without_places(text)


def without_places(text: str) -> str:
    """Of a text: URLs keep scheme, port and path; paths keep their last part; what looks like a token is hidden."""
    text = _ADDRESS.sub("…", _TOKEN.sub(HIDDEN, text))
    hidden: list[str] = []

    def keep(found: re.Match[str]) -> str:
        hidden.append(_without_host(found[0]))
        return f"\0{len(hidden) - 1}\0"

    shortened = _PATH.sub(_last_part, _URL.sub(keep, text.replace("\0", "")))
    return re.sub("\0(\\d+)\0", lambda found: hidden[int(found[1])], shortened)


def _last_part(found: re.Match[str]) -> str:
    return f"…/{found[0].rstrip('/').rpartition('/')[2]}"


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


def _clean(value: Json, words: Callable[[str], str]) -> Any:
    match value:
        case str():
            return words(value)
        case dict():
            return {words(name): _field(name, inside, words) for name, inside in value.items()}
        case list() if all(isinstance(text, str) for text in value):
            return [words(text) for text in without_secret_options(value)]
        case list():
            return [_clean(item, words) for item in value]
    return value


def _field(name: str, value: Json, words: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        if is_secret(name):
            return HIDDEN
        if name.lower().endswith("url") and value and "://" not in value:  # `box.lan:8000` will do for an endpoint
            return _without_host(f"//{value}").lstrip(":/")
    return _clean(value, words)
