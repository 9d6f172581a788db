"""What was probably meant by a name that does not exist."""

import difflib
from collections.abc import Iterable

LEAST_BEGUN = 3  # characters: fewer begin too many names


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean `tpot`? `, to go into a sentence; empty where nothing is near. Who wrote the beginning of a name
    meant that one: `output` is `output_throughput`."""
    names = list(known)
    begun = [other for other in names if len(name) >= LEAST_BEGUN and other.startswith(name)]
    guess = begun or difflib.get_close_matches(name, names, n=1)
    return f"did you mean `{guess[0]}`? " if guess else ""
