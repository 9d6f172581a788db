"""Whether a study file may run: what it uses has been allowed by a person on this machine, or nothing needs to be.

A study is code: it can send a file or a key to any host, and have a program run what it names. What was allowed is
remembered by a hash of exactly these uses and the study's folder, so that another seed asks nothing and another URL
does. What a path holds is not part of it.
"""

import hashlib
import json
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bitbench.engines.registry import registered_engines_of
from bitbench.measure.plan import planned_engine_setup
from bitbench.models import library
from bitbench.models.catalog import CATALOG
from bitbench.models.folder import has_code
from bitbench.models.hub import parse_hub_reference
from bitbench.ports import Engine
from bitbench.quality.tasks import task_files
from bitbench.quantize import catalog
from bitbench.study.environment import Use, UseKind
from bitbench.study.study import EngineSetup, Study
from bitbench.study.study_file import StudySource
from bitbench.util.child_processes import is_unsafe_child_variable
from bitbench.util.errors import NotTrustedError, StudyFileError
from bitbench.util.files import SafeFolder

FOLDER = "trusted"  # in bitbench's home; a file per answer, which says what was allowed
MOST_TOLD = 5  # uses in an error; `bitbench plan` shows all
SENT = "its text is sent to the engines"
_WITH_CODE = "a model with Python code, which an engine may run"


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


def trust_in(study: Path | Study | StudySource, home: Path) -> Trust:
    """What a study uses beyond measuring, and whether that has been allowed here."""
    source = StudySource.of(study)
    try:
        uses = _uses_to_trust(source.study, source.folder, registered_engines_of(source.study), home)
    except StudyFileError as error:
        raise source.located(error) from error
    return Trust(uses, source, home)


def _uses_to_trust(study: Study, folder: Path, engines: Mapping[str, Engine], home: Path) -> tuple[Use, ...]:
    """Each once, in the order of the file. `folder` is the study file's: what lies in there came with it. `home` is
    where models were downloaded to."""
    found: list[Use] = []
    for index, setup in enumerate(study.engines):
        engine = engines[setup.engine]
        found += [*engine.uses(planned_engine_setup(setup, engine, index)), *_variables(setup), *_python(setup)]
    found += [*_texts(study, folder), *_tasks(study, folder), *_recipes(study, folder), *_models(study, home)]
    return tuple(dict.fromkeys(found))


def _python(setup: EngineSetup) -> Iterator[Use]:
    """Whatever the file leads to is run."""
    if setup.python is not None and (place := setup.environment(None)) is not None:
        yield Use(UseKind.FILE, place, f"its Python runs {setup.name}", asks=True)


def _variables(setup: EngineSetup) -> Iterator[Use]:
    for name, value in setup.env.items():
        purpose = f"runs code in {setup.name}" if is_unsafe_child_variable(name) else f"set for {setup.name}"
        yield Use(UseKind.VARIABLE, f"{name}={value}", purpose, asks=True)


def _texts(study: Study, folder: Path) -> Iterator[Use]:
    for workload in study.workloads:
        for _, name in workload.files:
            yield _file(folder / name, folder, SENT if workload.text else "decides when requests are sent")
    for name in study.quality.corpus if study.quality else ():
        yield _file(folder / name, folder, SENT)


def _tasks(study: Study, folder: Path) -> Iterator[Use]:
    """lm-eval's task files name functions and templates, which it runs."""
    for name in task_files(study.quality) if study.quality else ():
        yield Use(UseKind.FILE, str((folder / name).resolve()), "runs code in lm-eval", asks=True)


def _recipes(study: Study, folder: Path) -> Iterator[Use]:
    for reference in study.recipes:
        if catalog.is_recipe_file_name(reference):
            yield _file(folder / Path(reference).expanduser(), folder, "says how models are compressed")
            if source := catalog.find_recipe(reference, folder).calibration.source:
                yield _file(source, folder, "its text is what compression is calibrated with")


def _models(study: Study, home: Path) -> Iterator[Use]:
    for model in (*study.models, *(variant.checkpoint for variant in study.variants)):
        if model not in CATALOG and library.source_of(model) is None:
            yield _model(model, home)


def _model(model: str, home: Path) -> Use:
    """Only a person downloads one of a hub, with `bitbench model get`: it is shown, not asked about."""
    path = Path(model).expanduser()
    named = None if path.exists() else parse_hub_reference(model)
    if named is not None:
        downloaded = library.resolve_downloaded_model(model, home)
        contains = downloaded is not None and has_code(downloaded.path)
        return Use(
            UseKind.URL, named.url, _WITH_CODE if contains else "a model of a hub, loaded by engines", asks=contains
        )
    contains = has_code(path.resolve())
    purpose = _WITH_CODE if contains else "a model, loaded by engines"
    return Use(UseKind.FILE, str(path.resolve()), purpose, asks=contains)


def _file(path: Path, folder: Path, purpose: str) -> Use:
    """By where it really is: a link out of the folder is not in the folder."""
    place = path.resolve()
    return Use(UseKind.FILE, str(place), purpose, asks=not place.is_relative_to(folder.resolve()))
