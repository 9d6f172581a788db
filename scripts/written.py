"""Documents that a script writes, whole or between two marks."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path


def write_documents(about: str | None, wanted: Callable[[], Mapping[Path, str]]) -> int:
    """The command line of a script that writes documents. Gives its exit code: 1 where --check finds another text."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; exit code 1 where a text is another"
    )
    check: bool = parser.parse_args().check
    stale = {
        path: text
        for path, text in wanted().items()
        if not path.exists() or path.read_text("utf-8") != text
    }
    for path, text in stale.items():
        if check:
            print(
                f"{path} is not what scripts/{Path(sys.argv[0]).name} writes; run it",
                file=sys.stderr,
            )
        else:
            path.write_text(text, encoding="utf-8")
            print(path)
    return 1 if check and stale else 0


def between(text: str, begin: str, end: str, new: str) -> str:
    """The text, with something new between the two marks."""
    before, found, rest = text.partition(begin)
    _, also_found, after = rest.partition(end)
    if not (found and also_found):
        raise SystemExit(f"There is no place for what this script writes: {begin} … {end}")
    return f"{before}{begin}{new}{end}{after}"
