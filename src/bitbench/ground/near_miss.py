"""What was probably meant by a name that does not exist."""

import difflib
from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`did you mean `tpot`? `, to go into a sentence; empty where nothing is near."""
    guess = difflib.get_close_matches(name, list(known), n=1)
    return f"did you mean `{guess[0]}`? " if guess else ""
