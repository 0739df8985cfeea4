"""Copies the entries of some packages from a hash-pinned requirements file to standard output.

For an image that needs a few of the locked packages and not the gigabytes of the others. Fails when
one is not in the lock. Run inside the image's build; standard library only.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path


def only(text: str, names: list[str]) -> str:
    """The entries, which run over the lines that end with a backslash. Raises `LookupError`."""
    entries = re.findall(r"^[A-Za-z0-9](?:.*\\\n)*.*\n", text, re.MULTILINE)
    known = {entry.split("==")[0].lower(): entry for entry in entries}
    missing = [name for name in names if name not in known]
    if missing:
        raise LookupError(f"not in the lock: {', '.join(missing)}")
    return "".join(known[name] for name in names)


if __name__ == "__main__":
    sys.stdout.write(only(Path(sys.argv[1]).read_text(), sys.argv[2:]))
