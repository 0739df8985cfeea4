"""Copies a hash-pinned requirements file to standard output, without torch and what belongs to it.

AMD's base image brings its own torch and triton; PyPI's are for CUDA and would replace them. Run by
install_project.sh inside the image's build; standard library only.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

BELONGS_TO_TORCH = re.compile(r"(torch|triton|nvidia-.+|cuda-.+)")


def entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, text) of every requirement; one runs over the lines that end with a
    backslash."""
    gathered = ""
    for line in text.splitlines(keepends=True):
        if not gathered and (not line.strip() or line.lstrip().startswith("#")):
            continue
        gathered += line
        if not line.rstrip().endswith("\\"):
            name = re.match(r"[A-Za-z0-9._-]+", gathered.strip())
            if name is None:
                raise ValueError(f"not a requirement: {gathered.strip()}")
            yield name.group().lower(), gathered
            gathered = ""


def without_torch(text: str) -> str:
    return "".join(entry for name, entry in entries(text) if not BELONGS_TO_TORCH.fullmatch(name))


if __name__ == "__main__":
    sys.stdout.write(without_torch(Path(sys.argv[1]).read_text()))
