"""docs/published-tables.md is what the records give, and a program without bitbench finds the same figures."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "published-tables.md"
PARTS = re.findall(
    r"<!-- published: (\w+) of ([\w-]+) -->\n(.*?)<!-- end -->", PAGE.read_text(), re.DOTALL
)


def recompute(*arguments: Path) -> subprocess.CompletedProcess[str]:
    """Run the script where no path leads to bitbench or any other package."""
    command = [sys.executable, "-E", "-S", ROOT / "scripts" / "recompute", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)


def test_the_page_is_what_the_records_give() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "published_tables", "--check"], check=False
    )
    assert done.returncode == 0, (
        "docs/published-tables.md is not what scripts/published_tables writes"
    )


def test_every_section_has_its_table_what_is_beside_it_and_its_record() -> None:
    sections = {section for _, section, _ in PARTS}
    assert sections == {"kernels", "recipes-by-workload", "backends", "speed-by-length"}
    assert len(PARTS) == 3 * len(sections)
    assert all(text.strip() for _, _, text in PARTS)


@pytest.mark.parametrize(
    ("part", "section", "text"), PARTS, ids=[f"{part}-{section}" for part, section, _ in PARTS]
)
def test_a_table_fits_on_a_screen(part: str, section: str, text: str) -> None:
    for block in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        lines = block.splitlines()
        assert len(lines) - 2 <= 25, f"{part} of {section}"
        assert lines[0].count("|") - 1 <= 8, f"{part} of {section}"


def test_a_program_without_bitbench_computes_the_same() -> None:
    done = recompute()
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.fullmatch(r"(\d+) figures checked, 0 differences\n", done.stdout)
    assert found is not None
    assert int(found[1]) > 400


# A ratio of kernels, an end of an interval, a mean and a deviation, each of which is in one place.
CHANGED = {
    "a ratio": (
        r"(\| *`interactive` .*\| )(\d)(\.\d\d× \[[^]]*\] \|)",
        "recipes-by-workload: .* vs\\. `bf16 @ vllm`, ratio",
    ),
    "an end": (
        r"(`avx2`, kernels-skylake .* \[\d\.\d\d, )(\d)(\.\d\d\] \| .*)",
        "kernels-skylake: .*, ratio, high",
    ),
    "a mean": (
        r"(?s)(### Our backends table.*?\| +)(\d+)(\.\d\d ± )",
        "backends: .*TTFT.*, mean",
    ),
    "a deviation": (
        r"(193\.82 ± )(\d+)(\.87)",
        "recipes-by-workload: w8a8_sparse_smooth_gptq .*, sd",
    ),
}


@pytest.mark.parametrize("what", CHANGED)
def test_a_changed_figure_is_found(what: str, tmp_path: Path) -> None:
    pattern, named = CHANGED[what]
    text = PAGE.read_text()
    changed = re.sub(
        pattern, lambda found: f"{found[1]}{int(found[2]) + 1}{found[3]}", text, count=1
    )
    assert changed != text
    page = tmp_path / "page.md"
    page.write_text(changed)
    done = recompute(page)
    assert done.returncode == 1
    assert re.search(named, done.stdout), done.stdout
    assert re.search(r"^\d+ figures checked, 1 differences$", done.stdout, re.MULTILINE)


def test_a_page_without_figures_is_not_a_success(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("Nothing.\n")
    assert recompute(page).returncode == 1


def test_the_readme_says_what_the_page_says() -> None:
    said = re.search(
        r"Of the (\d+) pairs on all 7 workloads they tell (\d+) apart", PAGE.read_text()
    )
    assert said is not None
    readme = " ".join((ROOT / "README.md").read_text().split())
    assert f"three runs of each variant tell {said[2]} of {said[1]} pairs apart" in readme


def test_recompute_imports_the_standard_library_alone() -> None:
    scripts = [*(ROOT / "scripts").glob("recompute_*.py"), ROOT / "scripts" / "recompute"]
    trees = [ast.parse(path.read_text()) for path in scripts]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    own = {path.stem for path in scripts}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names | own
