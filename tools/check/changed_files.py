"""Ask git which files changed against a branch."""

from __future__ import annotations

import subprocess
from pathlib import Path


class UnknownBranchError(Exception):
    """The checkout has no such branch; the text says what to do."""


def changed_files(root: Path, base: str) -> list[str]:
    """List the files that differ from where this branch left `base`, and the new ones.

    Paths are as seen from `root`; deleted files are left out. Raises UnknownBranchError.
    """
    fork = subprocess.run(
        ["git", "merge-base", base, "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    if fork.returncode:
        raise UnknownBranchError(
            f"no branch {base} to compare with: name the files (make check FILES=…) or a branch "
            "(python -m tools.check --base BRANCH)"
        )
    against = _lines(root, "diff", "--name-only", "--diff-filter=d", fork.stdout.strip())
    new = _lines(root, "ls-files", "--others", "--exclude-standard")
    return sorted({*against, *new})


def _lines(root: Path, *arguments: str) -> list[str]:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()
