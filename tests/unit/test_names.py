"""Names lead to one place."""

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

import bitbench

PACKAGE = Path(bitbench.__file__).parent
ROOT = Path(__file__).parents[2]


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
        fields = [
            statement.target
            for body in bodies
            for statement in body
            if isinstance(statement, ast.AnnAssign)
        ]
        names = [
            (node.id, node.lineno)
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and node not in fields
        ]
        arguments = [
            (node.arg, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.arg)
        ]
        for name, line in (*names, *arguments):
            if name == "one":
                places.append(f"{path.relative_to(PACKAGE).as_posix()}:{line}")
    assert places == []


def test_what_only_its_own_file_uses_has_a_private_name() -> None:
    paths = [
        *PACKAGE.rglob("*.py"),
        *ROOT.glob("tests/**/*.py"),
        *ROOT.glob("scripts/*"),
        *ROOT.glob("*.md"),
    ]
    words = [
        {*re.findall(r"\w+", path.read_text(encoding="utf-8"))} for path in paths if path.is_file()
    ]
    users = Counter(word for found in words for word in found)
    places = [
        f"{path.relative_to(PACKAGE).as_posix()}: {node.name}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and users[node.name] == 1
    ]
    assert places == []
