"""What engines say against their own speed: a kernel without a tuned configuration, or a slower one in its place.

Phrases as in the sources of vLLM 0.32; SGLang took over the first of them. Not yet seen on a GPU.
"""

import re
from collections.abc import Iterable

from bitbench.util.quotation import printable

_SLOWER = re.compile(
    r"[Pp]erformance might be sub-?optimal|not fully optimized|may degrade performance"
    r"|(?:may be|is) slower than (?:a )?native|slow and unoptimized"
    r"|[Ff]all(?:ing|s)? ?back to .*(?:kernel|torch linear|backend|[Tt]riton|dispatch|path)"
    r"|[Cc]ustom allreduce is disabled"
)
_FOLDER = re.compile(r"(?:/[^/\s,\[\]']+)+/(?=[^/\s])")  # of a file that it names: says nothing elsewhere
_MOST, _LONGEST = 5, 300


def slowness_warnings(messages: Iterable[str]) -> tuple[str, ...]:
    """Each once, in their order, with the names of files and not their folders."""
    found = (_FOLDER.sub("", printable(message.strip())) for message in messages if _SLOWER.search(message))
    return tuple(warning[:_LONGEST].rstrip(".") for warning in dict.fromkeys(found))[:_MOST]
