"""Simulated machines in namespaces of their own: faults of all kinds, in a short form."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

LAB = Path(__file__).parents[2] / "scripts" / "fleet_lab"
NO_RIGHTS = 77


def test_random_faults() -> None:
    done = subprocess.run([sys.executable, LAB, "faults", "4", "3"], check=False, capture_output=True, text=True)
    if done.returncode == NO_RIGHTS:
        pytest.skip("no right to make namespaces here")
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    found = json.loads(done.stdout)
    assert sum(found["faults"].values()) >= 1
