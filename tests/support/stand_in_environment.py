"""A Python whose only packages are stand-ins: workers run in it as they do in a real environment."""

import sys
from pathlib import Path


def stand_in_python(folder: Path, **modules: str) -> Path:
    """Its interpreter; `modules` are importable there, by name and code."""
    packages = folder / f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    packages.mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).parent}\n")
    for name, code in modules.items():
        (packages / name).mkdir()
        (packages / name / "__init__.py").write_text(code)
    return folder / "bin" / "python"
