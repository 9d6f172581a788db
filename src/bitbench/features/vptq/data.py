"""Where the recipes of this feature lie, and what runs its checkpoints."""

from pathlib import Path

RECIPES = Path(__file__).with_name("recipes")
COMPATIBILITY = Path(__file__).with_name("compatibility.yaml")
