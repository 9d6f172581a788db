"""Whether a study file may run: what it uses has been allowed by a person on this machine, or nothing needs to be.

A study is code: it can send a file or a key to any host, and have a program run what it names. What was allowed is
remembered by a hash of exactly these uses and the study's folder, so that another seed asks nothing and another URL
does. What a path holds is not part of it.
"""

import hashlib
import json
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from bitbench.study.source import StudySource
from bitbench.study.use import Use
from bitbench.util.errors import NotTrustedError
from bitbench.util.safe_files import SafeFolder

FOLDER = "trusted"  # in bitbench's home; a file per answer, which says what was allowed
MOST_TOLD = 5  # uses in an error; `bitbench plan` shows all


@dataclass(frozen=True)
class Trust:
    """What a study uses, and what was answered about it."""

    uses: tuple[Use, ...]
    source: StudySource
    home: Path

    @property
    def asked(self) -> tuple[Use, ...]:
        """What a person must allow. Nothing where a person made the study in Python, or from options."""
        return () if self.source.file is None else tuple(use for use in self.uses if use.asks)

    @property
    def is_given(self) -> bool:
        return not self.asked or _is_ours(self._answer)

    def give(self) -> None:
        """Remember that it is allowed."""
        if self.is_given:
            return
        SafeFolder(self.home).write(str(self._answer.relative_to(self.home)), self._content, mode=0o600)

    def require(self) -> None:
        """Raises NotTrustedError with what is missing."""
        if self.is_given:
            return
        told = [f"{use.what} ({use.purpose})" for use in self.asked[:MOST_TOLD]]
        told += [f"{len(self.asked) - MOST_TOLD} more"] if len(self.asked) > MOST_TOLD else []
        raise NotTrustedError(
            f"{self.source.file} uses what has not been allowed on this machine: {'; '.join(told)}. "
            f"Look at `bitbench plan {self.source.file}`, then allow it with --trust (in Python: trust=True)."
        )

    @property
    def _content(self) -> str:
        uses = sorted((use.kind.value, use.what, use.purpose) for use in self.asked)
        return json.dumps({"folder": str(self.source.folder.resolve()), "uses": uses}, indent=1) + "\n"

    @property
    def _answer(self) -> Path:
        return self.home / FOLDER / f"{hashlib.sha256(self._content.encode()).hexdigest()}.json"


def _is_ours(path: Path) -> bool:
    """A file that only this account could have put there."""
    try:
        state = path.lstat()
    except OSError:
        return False
    only_we_write = state.st_uid == os.getuid() and not state.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return stat.S_ISREG(state.st_mode) and only_we_write
