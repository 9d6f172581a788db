"""The lock of an environment with another version of its engine, written from that of the version that bitbench pins.

What is compared shall differ in the engine alone: every other package keeps its version, or takes an older one that the
engine requires; only where that cannot be, newer ones are taken.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, run
from tempfile import TemporaryDirectory

from bitbench.engines.environments.installed import plain_name, python_in
from bitbench.engines.environments.installer import Installer, pins, telling
from bitbench.study.environment import Device, Environment
from bitbench.util.child_environment import tool_environment
from bitbench.util.child_python import NOWHERE, isolated
from bitbench.util.errors import EngineEnvironmentError
from bitbench.util.safe_files import SafeFolder

_HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def write_lock(
    wanted: Environment, pinned: Environment, device: Device, installer: Installer, sources: Sequence[str]
) -> None:
    """Write the lock of `wanted` for this device; raises EngineEnvironmentError with what the installer says."""
    before = dict(pin.split("==", 1) for pin in pins(pinned.lock_for(device)))
    package = next((name for name in pinned.main_packages if name in before), None)
    if package is None:
        raise EngineEnvironmentError(f"No package in the lock of {pinned.name} for {device} is its engine.")
    version = wanted.name.partition("==")[2]
    said: list[str] = []
    with TemporaryDirectory(prefix="bitbench-lock-") as temporary:
        folder = Path(temporary)
        for others in _candidates({name: known for name, known in before.items() if name != package}):
            lines = "\n".join((f"{package}=={version}", *others, ""))
            requirements = SafeFolder(folder).write("requirements.txt", lines)
            found = (_by_uv if installer == "uv" else _by_pip)(requirements, sources, said)
            if found is not None:
                lock = wanted.lock_for(device)
                SafeFolder(lock.parent.parent).write(
                    f"{lock.parent.name}/{lock.name}", _text(found, before, wanted, pinned)
                )
                return
    raise EngineEnvironmentError(
        f"{installer} found no packages for {package} {version}: {telling(said)}. "
        f"`pip index versions {package}` lists the versions; --find-links or --index-url name another package source."
    )


def _candidates(others: Mapping[str, str]) -> Iterator[list[str]]:
    """Requirements for the other packages, the closest to the pinned ones first. A local version (2.13.0+cpu) is a
    build for this device, which no order of versions chooses, so it is given up last."""
    builds = [f"{name}=={version}" for name, version in others.items() if "+" in version]
    ordinary = {name: version for name, version in others.items() if "+" not in version}
    yield [*builds, *(f"{name}<={version}" for name, version in ordinary.items())]
    yield [*builds, *ordinary]
    yield [*others]


Pins = dict[str, list[str]]  # NAME==VERSION to the hashes of its wheels


def _by_pip(requirements: Path, sources: Sequence[str], said: list[str]) -> Pins | None:
    """In an environment of its own: the Python that runs bitbench may have no pip."""
    folder = requirements.parent / "pip"
    if not folder.exists() and not _call(isolated(sys.executable, "-m", "venv", folder), said):
        return None
    report = requirements.with_name("report.json")
    options = ("--dry-run", "--ignore-installed", "--only-binary=:all:", "--no-input", "--quiet", f"--report={report}")
    command = isolated(python_in(folder), "-m", "pip", "install", *options, *sources, "-r", requirements)
    if not _call(command, said):
        return None
    found: Pins = {}
    for chosen in json.loads(report.read_text(encoding="utf-8"))["install"]:
        named = chosen["metadata"]
        found[f"{named['name']}=={named['version']}"] = [chosen["download_info"]["archive_info"]["hashes"]["sha256"]]
    return found


def _by_uv(requirements: Path, sources: Sequence[str], said: list[str]) -> Pins | None:
    options = ("--generate-hashes", "--only-binary=:all:", "--no-header", "--no-annotate", "--no-progress", "--quiet")
    lock = requirements.with_name("lock.txt")
    where = (f"--python={sys.executable}", f"--output-file={lock}")
    if not _call(["uv", "pip", "compile", *where, *options, *sources, str(requirements)], said):
        return None
    found: Pins = {}
    for line in lock.read_text(encoding="utf-8").splitlines():
        if line[:1].isalnum():
            hashes = found[line.removesuffix("\\").strip()] = []
        elif match := _HASH.search(line):
            hashes.append(match[0].rpartition(":")[2])
    return found


def _call(command: Sequence[str], said: list[str]) -> bool:
    """Whether it worked; its words are in `said` then."""
    finished = run(
        command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, text=True, check=False, cwd=NOWHERE, env=tool_environment()
    )
    said[:] = finished.stdout.splitlines()
    return finished.returncode == 0


def _text(found: Pins, before: Mapping[str, str], wanted: Environment, pinned: Environment) -> str:
    """The lock, with what it changes in its first lines."""
    known = {plain_name(name): version for name, version in before.items()}
    lines = [f"# {wanted.name}, resolved from the lock of {pinned.name}; what differs:"]
    for pin in sorted(found, key=str.lower):
        name, version = pin.split("==", 1)
        if known.get(plain_name(name)) != version:
            lines.append(f"#   {name} {known.get(plain_name(name), 'none')} -> {version}")
    for pin in sorted(found, key=str.lower):
        lines.append(" \\\n".join([pin, *(f"    --hash=sha256:{digest}" for digest in found[pin])]))
    return "\n".join(lines) + "\n"
