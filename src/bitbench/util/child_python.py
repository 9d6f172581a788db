"""How bitbench starts a Python, and where it starts what needs no folder. No other place spells such a command.

`python -m` and `python -c` import from the folder they are started in before they look anywhere else, and other
programs read settings there (uv) or load what lies there (llama.cpp). A folder that somebody was sent must be no such
place: each child gets a working folder by name, and a Python is told besides not to look there.
"""

import sys
from pathlib import Path

NOWHERE = Path("/")  # a working folder for what reads and writes nothing by a relative path; root alone writes there


def isolated(python: Path | str, *words: Path | str) -> list[str]:
    """For the Python of any environment: it sees its own packages, and no variable or folder of ours."""
    return [str(python), "-I", *map(str, words)]


def own(module: str, *words: str) -> list[str]:
    """For a module of bitbench in the Python that runs it now, with PYTHONPATH, which may lead to its packages."""
    return [sys.executable, "-P", "-m", module, *words]
