"""Studies of examples/gallery that tests read."""

from pathlib import Path

GALLERY = Path(__file__).parents[1] / "examples" / "gallery"
TWINS, SHOOTOUT = GALLERY / "twins", GALLERY / "cpu-shootout"
