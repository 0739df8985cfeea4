"""The installed version, and the sentence for a package that is not installed.

The wheel installs both programs whatever extras were asked for. Free of other packages, so that
their first import is this one.
"""

from __future__ import annotations

import sys
from importlib.metadata import PackageNotFoundError, version

_OWN = ("", "atom", "atom_operator")


def version_line(program: str) -> str:
    """Return a program's name and version, as --version prints them."""
    try:
        return f"{program} {version('atom-platform')}"
    except PackageNotFoundError:  # run from its sources
        return f"{program}, not installed"


def tell_missing(error: ModuleNotFoundError, program: str) -> int:
    """Print the sentence for an import that failed, and return the exit status, 2. Raises the error
    if the module is one of ours, which is a fault."""
    name = (error.name or "").partition(".")[0]
    if name in _OWN:
        raise error
    print(
        f"error: {program} needs the package {name}, which is not installed; "
        "run: pip install atom-platform[operator]",
        file=sys.stderr,
    )
    return 2
