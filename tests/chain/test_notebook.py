"""The page about Python runs as it stands, on the null engine."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from bitbench.analysis.results.estimate import Verdict

pytestmark = pytest.mark.alone
PAGE = Path(__file__).parents[2] / "docs" / "notebook.md"


def test_the_notebook_page_runs_and_says_what_is_true(tmp_path: Path) -> None:
    code = "\n".join(
        re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "['steady · single', 'quick · single']"
    assert any(re.fullmatch(r"1 quick (1\.[89]|2\.[01])\d×", line) for line in lines), done.stdout
    assert any(re.fullmatch(r"quick \d+ tok/s, n = 6, sd [\d.e-]+", line) for line in lines), (
        done.stdout
    )
    outcomes, exit_code = set(lines[-3:-1]), lines[-1].rpartition(" ")[2]
    assert outcomes <= {Verdict.MET.value, Verdict.INCONCLUSIVE.value}, (
        done.stdout
    )  # a busy machine may leave it open
    assert exit_code == ("2" if Verdict.INCONCLUSIVE.value in outcomes else "0")
    assert {path.name for path in tmp_path.iterdir()} == {"tour", "tour-later"}
