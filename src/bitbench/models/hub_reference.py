"""How a study names a model on a hub: ORG/NAME, ORG/NAME@REVISION, ORG/NAME:TYPE for a file of a GGUF repository."""

import os
import re
from dataclasses import dataclass

DEFAULT_REVISION = "main"
_DEFAULT_ENDPOINT = "https://huggingface.co"
_PART = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,95}"
_PATH = r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}(?:/[A-Za-z0-9_][A-Za-z0-9_.+-]{0,95}){0,4}"  # leads to no folder above
_REFERENCE = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:@(?P<revision>{_PATH}))?(?::(?P<file>{_PATH}))?")
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubReference:
    repository: str  # "Qwen/Qwen3-4B"
    revision: str = DEFAULT_REVISION  # a branch, a tag or a commit
    file: str | None = None  # of a GGUF repository: a file's name, or its type, such as Q4_K_M

    @property
    def name(self) -> str:
        """Without whose it is: "Qwen3-4B"."""
        return self.repository.partition("/")[2]

    @property
    def is_pinned(self) -> bool:
        """A commit never means anything else; a branch or a tag may move."""
        return _COMMIT.fullmatch(self.revision) is not None

    @property
    def url(self) -> str:
        endpoint = os.environ.get("HF_ENDPOINT", _DEFAULT_ENDPOINT).rstrip("/")
        return f"{endpoint}/{self.repository}/tree/{self.revision}"

    def __str__(self) -> str:
        revision = "" if self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return f"{self.repository}{revision}{f':{self.file}' if self.file else ''}"


def parse_reference(text: str) -> HubReference | None:
    """None where it cannot be the name of a model on a hub."""
    found = _REFERENCE.fullmatch(text)
    if found is None:
        return None
    return HubReference(found["repository"], found["revision"] or DEFAULT_REVISION, found["file"])
