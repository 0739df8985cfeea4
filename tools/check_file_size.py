"""Refuse files and folders that have grown past what a newcomer can read: files of 500 lines
(models and kernels 800), folders of 25 modules, tests included. Run by `make lint`."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

LIMIT = 500
LARGE_LIMIT = 800
FOLDER_LIMIT = 25
LARGE = ("engine/atom/models/", "engine/atom/model_ops/backends/")
ROOT = Path(__file__).resolve().parent.parent


def limit_of(path: str) -> int:
    return LARGE_LIMIT if path.startswith(LARGE) else LIMIT


def too_long(paths: list[str]) -> list[str]:
    """Write a sentence per file over its limit."""
    found = []
    for path in paths:
        lines = len((ROOT / path).read_text(encoding="utf-8").splitlines())
        if lines > limit_of(path):
            found.append(f"{path}: {lines} lines, at most {limit_of(path)}; split it by concept")
    return found


def too_crowded(paths: list[str]) -> list[str]:
    """Write a sentence per folder with too many modules of its own."""
    folders = Counter(str(Path(path).parent) for path in paths)
    return [
        f"{folder}: {modules} modules, at most {FOLDER_LIMIT}; move those of one concept into a "
        "package below it that is named after the concept"
        for folder, modules in sorted(folders.items())
        if modules > FOLDER_LIMIT
    ]


def python_files() -> list[str]:
    """List the project's Python files that are there, as paths from ROOT."""
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [path for path in listed.stdout.split() if (ROOT / path).exists()]


def main() -> int:
    paths = python_files()
    problems = [*too_long(paths), *too_crowded(paths)]
    print("\n".join(problems) or "file and folder sizes: fine")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
