"""scripts/fleet_lab: studies on simulated machines."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

LAB = Path(__file__).parents[3] / "scripts" / "fleet_lab"
CANNOT = 77


def in_fleet_lab(*arguments: str) -> dict[str, Any]:
    """What it found, once it says that all is well. Skips the test where it cannot run."""
    done = subprocess.run([sys.executable, LAB, *arguments], check=False, capture_output=True, text=True)
    if done.returncode == CANNOT:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    print(done.stdout)
    found: dict[str, Any] = json.loads(done.stdout)
    return found
