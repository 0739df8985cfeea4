"""Refuse files that have grown past what a newcomer can read (design/style: 500 lines, models and
kernels 800). Run by `make lint`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

LIMIT = 500
LARGE_LIMIT = 800
LARGE = ("engine/atom/models/", "engine/atom/model_ops/backends/")
ROOT = Path(__file__).resolve().parent.parent


def limit_of(path: str) -> int:
    return LARGE_LIMIT if path.startswith(LARGE) else LIMIT


def too_long(paths: list[str]) -> list[str]:
    """A sentence per file over its limit."""
    found = []
    for path in paths:
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > limit_of(path):
            found.append(f"{path}: {lines} lines, at most {limit_of(path)}; split it by concept")
    return found


def python_files() -> list[str]:
    """List the project's Python files that are there, as paths from ROOT."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.split() if (ROOT / path).exists()]


def main() -> int:
    problems = too_long(python_files())
    print("\n".join(problems) or "file sizes: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
