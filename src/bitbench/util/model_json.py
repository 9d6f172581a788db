"""The JSON files of a model's folder, which others wrote."""

import json
from pathlib import Path
from typing import Any

from bitbench.util.errors import ModelError

_LARGEST_BYTES = 36 * 10**6  # the largest tokenizers have 34 MB; configurations, a few kB
# As objects, a file takes many times its size where it holds little but brackets. Large tokenizers have a list for each
# of 500,000 merges, and some thousand objects.
_MOST_LISTS, _MOST_OBJECTS = 1_000_000, 100_000


def read_object(path: Path) -> dict[str, Any]:
    """Raises ModelError where it is missing, no JSON object, or larger than such a file ever is."""
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ModelError(f"{path} is larger than {_LARGEST_BYTES // 10**6} MB; no model needs that.")
        text = path.read_text(encoding="utf-8")
        if text.count("[") > _MOST_LISTS or text.count("{") > _MOST_OBJECTS:
            raise ModelError(f"{path} has more lists or objects than such a file ever needs; download the model again.")
        content = json.loads(text)
    except OSError as error:
        raise ModelError(f"{path} cannot be read ({error.strerror}); a model folder needs it.") from error
    except (ValueError, RecursionError) as error:
        cause = "nested too deeply" if isinstance(error, RecursionError) else error
        raise ModelError(f"{path} is not JSON ({cause}); download the model again.") from error
    if not isinstance(content, dict):
        raise ModelError(f"{path} should contain a JSON object; download the model again.")
    return content
