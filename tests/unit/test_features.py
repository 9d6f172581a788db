"""The port: every name that a feature declares leads to something of its kind, and none is imported for --help."""

import ast
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec, resolve_name
from pathlib import Path

import pytest

from bitbench import feature
from bitbench.cli.app import collect_commands
from bitbench.cli.help import LazyCommand
from bitbench.cli.json_answers import make_answer_schema
from bitbench.feature import Command, Feature, Offer
from bitbench.study.base import Record
from bitbench.study.study import StudySection

FEATURES = [*feature.features().values()]
BUILT_IN = [entry for entry in FEATURES if entry.is_built_in]
ARCHITECTURE = Path(__file__).parents[2] / "ARCHITECTURE.md"
IMPORTED_ELSEWHERE = ("kernel_cases", "checkpoints")  # where torch is


@pytest.mark.parametrize(
    ("command", "offer"), collect_commands().values(), ids=lambda value: getattr(value, "name", "")
)
def test_a_command_can_be_called_and_says_the_same_of_itself(
    command: Command, offer: Offer
) -> None:
    said = LazyCommand(command, offer).whole.help or ""
    assert said.partition("\n")[0] == command.help
    assert (
        command.answer is None
        or make_answer_schema(command.name)["title"] == f"bitbench {command.name} --json"
    )


@pytest.mark.parametrize("declared", FEATURES, ids=lambda declared: declared.name)
def test_names_lead_to_what_they_promise(declared: Feature) -> None:
    assert declared.package.endswith(f".{declared.name}") or not declared.is_built_in
    for target in declared.study_keys.values():
        assert issubclass(kind := Offer(declared, target).load(), StudySection)
        assert kind.description
    for part in declared.report_parts:
        assert issubclass(Offer(declared, part.type).load(), Record)
        for target in (part.compute, part.section, *filter(None, (part.sentences, part.lead))):
            assert callable(Offer(declared, target).load())
    for group, targets in declared.offers.items():
        for target in targets.values():
            if group in IMPORTED_ELSEWHERE:
                assert_defined(Offer(declared, target))
            else:
                assert Offer(declared, target).load() is not None


def assert_defined(offer: Offer) -> None:
    """Without importing it: what it needs is in another environment."""
    module, _, name = offer.target.partition(":")
    spec = find_spec(resolve_name(module, offer.feature.package))
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    named = {node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
    assigned = {
        ast.unparse(target)
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
    }
    assert name in named | assigned


def test_names_are_given_once() -> None:
    """Two features with the same command, study key or report part would hide each other."""
    for names in (
        [command.name for declared in FEATURES for command in declared.commands],
        [key for declared in FEATURES for key in declared.study_keys],
        [part.name for declared in FEATURES for part in declared.report_parts],
    ):
        assert len(names) == len(set(names))


@pytest.mark.parametrize("declared", BUILT_IN, ids=lambda declared: declared.name)
def test_a_feature_introduces_itself_on_one_screen(declared: Feature) -> None:
    folder = Path(import_module(declared.package).__path__[0])
    text = (folder / "README.md").read_text(encoding="utf-8")
    assert f"\n| `{declared.name}` | " in ARCHITECTURE.read_text(encoding="utf-8")
    assert text.startswith(f"# {declared.name}\n")
    assert len(text.splitlines()) <= 40


def test_help_imports_no_code_of_features() -> None:
    script = (
        "import sys; sys.argv = ['bitbench', '--help']\n"
        "from bitbench.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*(name for name in sys.modules if name.startswith('bitbench.features.') or name == 'pydantic'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout
    assert {*said.splitlines()[-1].split()} == {declared.package for declared in BUILT_IN}


def test_a_feature_that_cannot_be_imported_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    real = import_module

    def broken(name: str, package: str | None = None) -> object:
        if name == FEATURES[0].package:
            raise ImportError("no such library")
        return real(name, package)

    monkeypatch.setattr(feature, "import_module", broken)
    feature.features.cache_clear()
    try:
        with pytest.warns(UserWarning, match="no such library"):
            left = feature.features()
    finally:
        feature.features.cache_clear()
    assert FEATURES[0].name not in left


def test_what_a_third_party_raises_is_a_warning_and_what_a_built_in_feature_raises_is_not() -> None:
    with (
        pytest.warns(
            UserWarning, match=r"The feature shop \(shop\) is left out here: KeyError: 'price'"
        ),
        feature.handle_feature_errors(Feature("shop", package="shop")),
    ):
        raise KeyError("price")
    with pytest.raises(KeyError), feature.handle_feature_errors(BUILT_IN[0]):
        raise KeyError("price")
