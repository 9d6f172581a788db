"""What the import contract in pyproject.toml cannot say: within a layer, too, no module imports one that imports it;
and one module alone writes files."""

import ast
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = {
    ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in (SOURCE / "bitbench").rglob("*.py")
}


def imported(tree: ast.AST) -> Iterator[str]:
    """Also within functions, where an import is only later; not for the eyes of a type checker alone."""
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name("TYPE_CHECKING")):
                continue
            case ast.ImportFrom(module=str(module)):
                whole = (f"{module}.{alias.name}" for alias in node.names)
                yield from (name if name in MODULES else module for name in whole)
            case ast.Import():
                yield from (alias.name for alias in node.names)
        yield from imported(node)


def graph() -> dict[str, set[str]]:
    return {
        name: {*imported(ast.parse(path.read_text()))} & MODULES.keys() - {name}
        for name, path in MODULES.items()
    }


def test_no_import_leads_back() -> None:
    order = [
        *TopologicalSorter(graph()).static_order()
    ]  # raises CycleError, which names the circle
    assert {*order} == MODULES.keys()


ONE = "bitbench.study.plan"


@pytest.mark.parametrize(
    "code",
    [
        f"import {ONE}",
        "from bitbench.study import plan",
        f"from {ONE} import Plan",
        f"def f():\n    import {ONE}",
    ],
)
def test_every_form_of_import_is_seen(code: str) -> None:
    assert [*imported(ast.parse(code))] == [ONE]


WRITING_CALLS = {"write_text", "write_bytes", "mkdir", "makedirs", "copyfile", "move", "rmtree"}
DOOR = "bitbench.util.files"
# What runs in another environment's Python, in a folder that was made for it or in the cache of a hub's own library.
ELSEWHERE = ("bitbench.quantize.workers.", "bitbench.models.workers.hub_worker")


def writing(tree: ast.AST) -> Iterator[str]:
    """Calls that make, change or delete files by path. `open` counts where it has a mode to write."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="formatter"))):
                pass  # of click: it writes the text of --help
            case ast.Call(func=ast.Attribute(attr=name)) if name in WRITING_CALLS:
                yield f"{name}, line {node.lineno}"
            case ast.Call(func=ast.Attribute(attr="open"), args=[ast.Constant(str(mode)), *_]) if {
                *mode
            } & {*"wax+"}:
                yield f"open, line {node.lineno}"


def test_files_are_written_through_one_door() -> None:
    others = {
        name: path
        for name, path in MODULES.items()
        if name != DOOR and not name.startswith(ELSEWHERE)
    }
    found = {
        name: calls
        for name, path in others.items()
        if (calls := [*writing(ast.parse(path.read_text()))])
    }
    assert found == {}
    assert [*writing(ast.parse("path.open('wb'); path.write_text(''); path.open()"))] == [
        "open, line 1",
        "write_text, line 1",
    ]


ARCHITECTURE = (SOURCE.parent / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize("name", re.findall(r"`([\w/]+(?:/|\.py|\.yaml|\.cpp))`", ARCHITECTURE))
def test_files_and_folders_of_the_page_exist(name: str) -> None:
    """Below the package, in one of its packages (`workers/` of `quality/`), or in the repository."""
    package = SOURCE / "bitbench"
    assert any(
        place.exists()
        for place in (package / name, SOURCE.parent / name, *package.glob(f"*/{name}"))
    )


def test_the_page_has_a_line_for_each_package() -> None:
    tree = {*re.findall(r"^\| `(\w+)(?:/|\.py)` \|", ARCHITECTURE, re.MULTILINE)}
    package = SOURCE / "bitbench"
    assert {path.parent.name for path in package.glob("*/__init__.py")} <= tree
