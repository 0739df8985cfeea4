"""How far every test file is from a source file: by imports, and by the names that texts have.

A module that is started as a process or imported by its name (`python -m atom…`, a registry) is in
no import statement, so the name of a module in a text counts as an import of it, at a price. Files
that are no Python, such as charts and documents, belong to the tests whose text names them.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Container, Iterator
from functools import cached_property
from heapq import heappop, heappush
from pathlib import Path

import grimp

PACKAGES = ("atom", "atom_nvidia", "atom_operator", "benchmarks", "devcluster", "tests", "tools")
_FOLDERS = {
    "atom": "engine/atom",
    "atom_nvidia": "engine/atom_nvidia",
    "atom_operator": "operator/atom_operator",
}
_NAMED = re.compile(rf"\b(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
_EVERYWHERE = {"engine", "operator", *PACKAGES}  # folders whose names say nothing of a file
_CLUSTER = re.compile(r"^pytestmark = [^\n]*(?:\[[^\]]*)?mark\.cluster", re.M)
_BY_NAME = 2  # steps that a name in a text is worth, where an import is one


class ImportGraph:
    """Imports of the checkout at `root`, read once."""

    def __init__(self, root: Path, cache: Path) -> None:
        self.root = root
        self._cache = cache

    @cached_property
    def tests(self) -> list[str]:
        """List the test files, as seen from the root."""
        return sorted(
            path.relative_to(self.root).as_posix()
            for path in (self.root / "tests").rglob("test_*.py")
        )

    def distances(self, file: str) -> dict[str, int]:
        """Return the steps from each test file that can see `file`: 0 is the file itself."""
        if (self.root / file).name == "conftest.py":
            folder = str(Path(file).parent)
            return {test: 1 for test in self.tests if test.startswith(f"{folder}/")}
        module = module_of(file)
        if module is None or module not in self._importers:
            return self._by_text(file)
        found: dict[str, int] = {}
        frontier = [(0, module)]
        while frontier:
            steps, nearest = heappop(frontier)
            if nearest not in found:
                found[nearest] = steps
                for importer, more in self._importers[nearest].items():
                    heappush(frontier, (steps + more, importer))
        tests = {module_of(test): test for test in self.tests}
        seen = {tests[each]: steps for each, steps in found.items() if each in tests}
        return seen or self._by_text(file)

    def _by_text(self, file: str) -> dict[str, int]:
        """Return the tests whose text names the file (1) or a folder that it is in (2, 3, …)."""
        found: dict[str, int] = {}
        folders = [name for name in reversed(Path(file).parts[:-1]) if name not in _EVERYWHERE]
        for steps, name in enumerate((Path(file).name, *folders), start=1):
            word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
            for test in self.tests:
                if test not in found and word.search(self._texts[test]):
                    found[test] = steps
        return found

    def needs_cluster(self, test: str) -> bool:
        """Return whether every test of the file needs a Kubernetes."""
        return bool(_CLUSTER.search(self._texts[test]))

    @cached_property
    def _texts(self) -> dict[str, str]:
        texts = {}
        for package in PACKAGES:
            for path in (self.root / _FOLDERS.get(package, package)).rglob("*.py"):
                texts[path.relative_to(self.root).as_posix()] = path.read_text(encoding="utf-8")
        return texts

    @cached_property
    def _importers(self) -> dict[str, dict[str, int]]:
        """Map each module to the modules that import it, with the steps that this costs."""
        graph = self._read_imports()
        importers: dict[str, dict[str, int]] = defaultdict(dict)
        for module in graph.modules:
            importers[module] = {}
        for module in graph.modules:
            package = module.rpartition(".")[0]
            if package in importers:  # it is imported with each of its modules
                importers[package][module] = _BY_NAME
            for imported in graph.find_modules_directly_imported_by(module):
                importers[imported][module] = 1
        for file, text in self._texts.items():
            module = module_of(file) or ""
            for named in _modules_named(text, importers.keys()):
                if named != module:
                    importers[named].setdefault(module, _BY_NAME)
        return dict(importers)

    def _read_imports(self) -> grimp.ImportGraph:
        folders = [str(self.root / each) for each in ("engine", "operator", "")]
        before = sys.path[:]
        # grimp takes the place of a package that is imported already, whatever the path says.
        imported = {name: sys.modules.pop(name) for name in PACKAGES if name in sys.modules}
        sys.path[:0] = folders
        try:
            return grimp.build_graph(*PACKAGES, cache_dir=str(self._cache))
        finally:
            sys.path[:] = before
            sys.modules.update(imported)


def module_of(file: str) -> str | None:
    """Return the name that a source file is imported by, or None if it is not ours to import."""
    path = Path(file)
    for prefix in ("engine", "operator"):
        if path.parts[:1] == (prefix,):
            path = path.relative_to(prefix)
    if path.suffix != ".py" or path.parts[0] not in PACKAGES:
        return None
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _modules_named(text: str, known: Container[str]) -> Iterator[str]:
    for match in _NAMED.finditer(text):
        name = match[0]
        while "." in name and name not in known:
            name = name.rpartition(".")[0]
        if "." in name:
            yield name
