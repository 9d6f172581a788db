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


def test_no_variable_is_called_one() -> None:
    """A name says what it holds. Fields of a class may be called so: they are words of a file."""
    places: list[str] = []
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        bodies = [node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        fields = [statement.target for body in bodies for statement in body if isinstance(statement, ast.AnnAssign)]
        names = [(node.id, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in fields]
        arguments = [(node.arg, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.arg)]
        for name, line in (*names, *arguments):
            if name == "one":
                places.append(f"{path.relative_to(PACKAGE).as_posix()}:{line}")
    assert places == []
