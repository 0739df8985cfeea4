"""Programs of the wheel as they run where only some of its extras are installed.

`python -m tests.support.without_packages EXTRA,…` reads lines of commands (JSON lists, the first
word is the program) from stdin, runs each in this one process, in which packages of other extras
cannot be imported, and writes a JSON list of results: status and text of each.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import re
import sys
import traceback
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

from packaging.requirements import Requirement

_OWN = {"atom", "atom_operator", "atom_nvidia", "tests", "tools"}
PROGRAMS = {
    "atom": ("atom.entrypoints.cli", "main"),
    "atom-operator": ("atom_operator.__main__", "main"),
    "kubectl-atom": ("atom_operator.kubectl_atom", "main"),
    "preflight": ("atom.preflight", "main"),
}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def installed_with(extras: Sequence[str]) -> set[str]:
    """The distributions that the wheel brings with these extras, and what these need."""
    found: set[str] = set()
    rest = [("atom-platform", extra) for extra in ("", *extras)]
    seen = set(rest)
    while rest:
        name, extra = rest.pop()
        found.add(_plain(name))
        try:
            lines = requires(name) or []
        except PackageNotFoundError:
            continue
        for line in lines:
            need = Requirement(line)
            if need.marker is not None and not need.marker.evaluate({"extra": extra}):
                continue
            for each in [(need.name, ""), *((need.name, one) for one in need.extras)]:
                if each not in seen:
                    seen.add(each)
                    rest.append(each)
    return found


class _Absent(MetaPathFinder):
    """Finds nothing of some packages, as if they were not installed."""

    def __init__(self, names: set[str]) -> None:
        self._names = names
        self.asked: set[str] = set()

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self._names:
            return None
        self.asked.add(name.partition(".")[0])
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def hide(extras: Sequence[str]) -> _Absent:
    """Hide the packages that the extras do not bring."""
    kept = installed_with(extras)
    absent = {
        module
        for module, owners in packages_distributions().items()
        if not kept.intersection(map(_plain, owners))
    }
    finder = _Absent(absent - _OWN - set(sys.stdlib_module_names))
    for name in list(sys.modules):  # such as what a hook of the interpreter has imported
        if name.partition(".")[0] in absent:
            del sys.modules[name]
    sys.meta_path.insert(0, finder)
    return finder


def run(words: Sequence[str]) -> dict[str, object]:
    """Run a command as its script does."""
    module, name = PROGRAMS[words[0]]
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            status = getattr(importlib.import_module(module), name)(list(words[1:]))
        except SystemExit as end:
            status = end.code
        except BaseException:
            status = None
            traceback.print_exc()
    return {"status": status, "text": text.getvalue()}


def main() -> None:
    extras = [each for each in sys.argv[1].split(",") if each]
    commands = json.load(sys.stdin)
    absent = hide(extras)
    results = []
    for words in commands:
        absent.asked.clear()
        results.append({**run(words), "asked": sorted(absent.asked)})
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
