"""Documents say what is true: names exist, links lead somewhere, every dependency has its reason."""

import hashlib
import importlib
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from textwrap import dedent

import jsonschema
import pytest
import yaml
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from bitbench.cli.app import app
from bitbench.cli.help import LazyCommand
from bitbench.quantize.catalog import make_recipe_schema
from bitbench.records.folder import StudyFolder
from bitbench.reports.document.html import read_vega_bundle, render_html
from bitbench.reports.write import StudyReport
from bitbench.study.recipe import Recipe
from bitbench.study.study import Study
from bitbench.study.study_file import make_study_schema, parse_study
from tests.gallery import GALLERY

ROOT = Path(__file__).parents[2]
READMES = [folder / "README.md" for folder in (GALLERY, ROOT / "scripts", ROOT / "tests")]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *READMES])
PICTURED = GALLERY / "cpu-shootout"
NAMES = sorted(
    set(re.findall(r"`(bitbench(?:\.\w+)+)`", "\n".join(path.read_text() for path in DOCUMENTS)))
)


COMMAND_LINE = get_command(app)


@pytest.mark.parametrize("name", [name for name in NAMES if name != "bitbench.engines"])
def test_names_in_documents_exist(name: str) -> None:
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return
    pytest.fail(f"{name} does not exist")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text()):
        assert (path.parent / target).exists(), f"{path.name} links to {target}"


def blocks(path: Path, language: str) -> list[str]:
    """Code of a page, also within an item of a list."""
    found = re.finditer(
        rf"^( *)```{language}\n(.*?)^\1```", path.read_text(), re.DOTALL | re.MULTILINE
    )
    return [dedent(block[2]) for block in found]


EXAMPLES = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(blocks(path, "yaml"))
    if yaml.safe_load(block).keys() & Study.model_fields.keys() - Recipe.model_fields.keys()
]
RECIPES = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(blocks(path, "yaml"))
    if yaml.safe_load(block).keys() <= Recipe.model_fields.keys()
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_parts_of_a_study_in_documents_are_accepted(example: str) -> None:
    """By the reader and by the published schema, with what they leave out added."""
    whole = {
        "name": "x",
        "engines": [{"engine": "null"}],
        "workloads": ["interactive"],
        **yaml.safe_load(example),
    }
    parse_study(yaml.safe_dump(whole), name="example")
    jsonschema.validate(whole, make_study_schema())


@pytest.mark.parametrize("example", RECIPES)
def test_recipes_in_documents_are_accepted(example: str) -> None:
    Recipe.model_validate(yaml.safe_load(example))
    jsonschema.validate(yaml.safe_load(example), make_recipe_schema())


def test_every_dependency_has_its_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    reasons = (ROOT / "docs" / "internals" / "dependencies.md").read_text()
    for requirement in [*project["project"]["dependencies"], *project["build-system"]["requires"]]:
        name = re.split(r"[<>=;\[ ]", requirement)[0]
        assert re.search(rf"\b{name}\b", reasons), (
            f"{name} has no line in docs/internals/dependencies.md"
        )


STUDIES = [
    *sorted((ROOT / "examples").glob("*.yaml")),
    *sorted((ROOT / "examples" / "gpu").glob("*.yaml")),
]
SOURCES = [
    *DOCUMENTS,
    *STUDIES,
    ROOT / "examples" / "github-actions.yml",
    ROOT / "examples" / "gpu" / "kernels.sh",
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_command_lines_in_documents_are_accepted(path: Path) -> None:
    """Those that stand in lines of their own, with all their arguments."""
    for line in _command_lines(path):
        words = shlex.split(line.replace("\\\n", " "), comments=True)[1:]
        command, arguments = _find(words[: words.index(">")] if ">" in words else words)
        command.make_context(line, arguments)  # raises where an option or an argument is wrong


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_commands_named_in_a_sentence_have_these_options(path: Path) -> None:
    for words in re.findall(r"`bitbench ([^`]+)`", path.read_text()):
        command, rest = _find(re.split(r"[\s|]+", words))
        known = {
            option
            for parameter in command.params
            for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {word for word in rest if word.startswith("--")} <= known | {"--help"}, words


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_no_example_averages_a_figure_over_workloads(path: Path) -> None:
    """One stream and a batch of 32 differ by an order of magnitude: their mean is no speed of anything."""
    for query in re.findall(r"SELECT[^;`]*?FROM trials[^;`]*", path.read_text()):
        assert "avg(" not in query or "workload" in query, query


def _command_lines(path: Path) -> list[str]:
    """In code of a page, or in a comment or a step of a file; with what a quote or a backslash continues."""
    text = "\n".join(blocks(path, r"\w*")) if path.suffix == ".md" else path.read_text()
    return re.findall(
        r"""^[ #$]*(?:- run: )?(bitbench [a-z](?:"[^"]*"|\\\n|[^"\n])*)""", text, re.MULTILINE
    )


def _find(words: list[str]) -> tuple[TyperGroup | TyperCommand, list[str]]:
    command: object = COMMAND_LINE
    rest = list(words)
    while isinstance(command, TyperGroup) and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, " ".join(words)
        command = command.commands[rest.pop(0)]
        if isinstance(command, LazyCommand):
            command = command.whole
    assert isinstance(command, TyperGroup | TyperCommand)
    return command, rest


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = re.findall(r": ([\w-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(navigation) == sorted(path.name for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("script", ["cli_reference", "gpu_plans", "recipe_fields", "quotes"])
def test_what_scripts_write_into_documents_is_current(script: str) -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / script, "--check"], check=False)
    assert done.returncode == 0, (
        f"run scripts/{script}: a document says something else than the code or the gallery"
    )


def test_the_picture_of_a_report_is_of_the_page_that_records_give(tmp_path: Path) -> None:
    page = render_html(
        StudyReport(StudyFolder.existing(PICTURED), tmp_path).document, read_vega_bundle()
    )
    picture = (ROOT / "docs" / "images" / "report.png").read_bytes()
    assert b"tEXtsource\0" + hashlib.sha256(page.encode()).hexdigest().encode() in picture, (
        f"scripts/screenshot {PICTURED.relative_to(ROOT)} docs/images/report.png takes it"
    )


def test_the_workflow_in_the_documents_is_the_example() -> None:
    """And it is YAML in which a job compares and comments."""
    text = (ROOT / "examples" / "github-actions.yml").read_text()
    (block,) = re.findall(
        r"^```yaml\n(on: pull_request.*?)^```",
        (ROOT / "docs" / "compare.md").read_text(),
        re.S | re.M,
    )
    assert text.split("\n", 1)[1] == block
    workflow = yaml.safe_load(text)
    steps = workflow["jobs"]["compare"]["steps"]
    assert any("bitbench compare" in step.get("run", "") for step in steps)
    assert workflow["permissions"]["pull-requests"] == "write"


@pytest.mark.parametrize("path", STUDIES, ids=lambda path: path.name)
def test_examples_are_studies(path: Path) -> None:
    parse_study(path.read_text(), name=path.name)
