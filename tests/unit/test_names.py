"""Names lead to one place."""

import ast
from collections import defaultdict
from pathlib import Path

import bitbench

PACKAGE = Path(bitbench.__file__).parent


def test_a_class_name_occurs_once() -> None:
    """Those that begin with an underscore belong to their file."""
    places: dict[str, list[str]] = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert len(places) > 300
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
