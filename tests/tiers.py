"""`python -m tests.tiers`: the tests of tests/touched whose files were changed since $BITBENCH_BASE, a line for each.

Without that variable: since the branch left origin/main. What is not committed yet counts, too.
"""

import os
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOUCHED = ROOT / "tests" / "touched"
KERNELS = ("test_kernels", "test_triton", "test_vptq_with_torch")
FLEET = ("test_gpu_blocks",)
LOAD = ("test_load_search",)
# Files by pattern (a star also stands for slashes), and the tests that are run where one of them was changed.
TABLE: dict[str, tuple[str, ...]] = {
    "native/*": KERNELS,
    "src/bitbench/features/vptq/*": KERNELS,
    "src/bitbench/features/kernels/*": KERNELS,
    "src/bitbench/quantize/*": ("test_quantize", "test_mixture", "test_four_bits"),
    "src/bitbench/engines/workers/checkpoint_layers.py": ("test_vptq_with_torch",),
    "src/bitbench/quality/*": ("test_four_bits",),
    "src/bitbench/analysis/*quality*": ("test_four_bits",),
    "src/bitbench/engines/*vllm*": ("test_refused_recipe",),
    "src/bitbench/engines/*transformers*": ("test_profile", "test_explain"),
    "src/bitbench/features/explain/*": ("test_profile", "test_explain"),
    "src/bitbench/analysis/roofline.py": ("test_profile", "test_explain"),
    "src/bitbench/reports/*": ("test_page",),
    "src/bitbench/features/*words.py": ("test_page",),
    "src/bitbench/features/fleet/*": FLEET,
    "src/bitbench/running/offers.py": FLEET,
    "src/bitbench/loadgen/*": LOAD,
    "src/bitbench/endpoint/*": LOAD,
    "src/bitbench/endpoint/endpoint_run*": ("test_load_search",),
    "src/bitbench/analysis/rate_search.py": ("test_load_search",),
    "src/bitbench/engines/environments.py": ("test_example_engine",),
    "src/bitbench/engines/registry.py": ("test_example_engine",),
    "src/bitbench/feature.py": ("test_example_engine",),
    "tests/example_engine/*": ("test_example_engine",),
    "src/bitbench/*quick*": ("test_quick_variants",),
    "src/bitbench/*llamacpp*": ("test_quick_variants",),
}


def tests_of(changed: list[str]) -> list[str]:
    """A test that was changed itself is run, too."""
    named = {
        name
        for pattern, names in TABLE.items()
        if any(fnmatch(path, pattern) for path in changed)
        for name in names
    }
    named |= {Path(path).stem for path in changed if fnmatch(path, "tests/touched/test_*.py")}
    return [
        f"tests/touched/{path.name}"
        for path in sorted(TOUCHED.glob("test_*.py"))
        if path.stem in named
    ]


def changed_files(base: str | None) -> list[str] | None:
    """None: what it is to be compared with is not known here."""
    since = base or _git("merge-base", "HEAD", "origin/main")
    if not since or _git("cat-file", "-t", since) != "commit":
        return None
    changed = f"{_git('diff', '--name-only', since)}\n{_git('ls-files', '--others', '--exclude-standard')}".split()
    return changed if changed or base else None  # a clone of main does not say what is new in it


def _git(*arguments: str) -> str | None:
    done = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    found = changed_files(os.environ.get("BITBENCH_BASE"))
    if found is None:
        sys.exit(
            "what was changed is not known, so that nothing of tests/touched is run; BITBENCH_BASE names a commit"
        )
    print(*tests_of(found), sep="\n")
