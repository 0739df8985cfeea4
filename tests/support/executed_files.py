"""Record which files of the product each test file executes: a pytest plugin of `make test`.

    python -m pytest -p tests.support.executed_files --executed FILE …

Each function of the product gets one statement more in front, which sets its module's mark; a mark
costs some nanoseconds, where a trace function would slow the tests by half. Behind the last test of
a file, the marks that are set are the files that it executed. What imports alone execute, such as
tables, sets no mark: there the import graph knows as much. Processes that tests start are not
recorded, so a file without a mark may still have been executed.

`make check` reads the index (`tools/check/executions.py`).
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

import pytest

from tools.check.executions import FILE, Executions, add_executions

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("atom", "atom_nvidia", "atom_operator", "benchmarks", "devcluster", "tools")
MARK = "__executed__"
# Of bytecode with marks, which Python must not take for its own.
_SUFFIX = ".marked-1.pyc"  # another number if marks are set otherwise
# Files with kernels: Triton reads functions' sources, and their names must all be its own.
_LEFT_OUT = ("import triton", "from triton")


class Marks:
    """The mark of each module, by its file as seen from the root: a list of one truth value."""

    def __init__(self) -> None:
        self._marks: dict[str, list[bool]] = {}

    def of(self, file: str) -> list[bool]:
        """Return the mark of a file, one for all modules that are made of it."""
        return self._marks.setdefault(file, [False])

    def take(self) -> set[str]:
        """Return the files whose mark is set, and unset all marks."""
        found = {file for file, mark in self._marks.items() if mark[0]}
        for file in found:
            self._marks[file][0] = False
        return found


class MarkingLoader(SourceFileLoader):
    """Loads a module whose functions set its mark."""

    marks: Marks

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> CodeType:  # type: ignore[override]
        tree = data if isinstance(data, ast.AST) else ast.parse(data, path)
        if isinstance(tree, ast.Module) and not _is_left_out(data):
            mark_functions(tree)
        code: CodeType = compile(tree, path, "exec", dont_inherit=True, optimize=_optimize)
        return code

    def get_data(self, path: str) -> bytes:
        return super().get_data(_own(path))

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        super().set_data(_own(path), data, _mode=_mode)

    def exec_module(self, module: ModuleType) -> None:
        file = Path(self.path).resolve().relative_to(ROOT).as_posix()
        setattr(module, MARK, self.marks.of(file))
        super().exec_module(module)


class MarkingFinder(MetaPathFinder):
    """Finds the product's modules, and nothing else, for the loader that marks them."""

    def __init__(self, marks: Marks) -> None:
        self._marks = marks

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] not in PACKAGES:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        if Path(spec.loader.path).resolve().is_relative_to(ROOT):
            spec.loader = MarkingLoader(spec.loader.name, spec.loader.path)
            spec.loader.marks = self._marks
        return spec


def mark_functions(tree: ast.Module) -> None:
    """Put a statement that sets the mark in front of every function, behind its docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            statement = ast.parse(f"{MARK}[0] = True").body[0]
            for part in ast.walk(statement):
                ast.copy_location(part, first)
            node.body.insert(int(ast.get_docstring(node, clean=False) is not None), statement)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--executed", type=Path, default=FILE, help="the index to add to")


def pytest_configure(config: pytest.Config) -> None:
    marks = Marks()
    sys.meta_path.insert(0, MarkingFinder(marks))
    config.pluginmanager.register(_Recorder(marks, config.getoption("--executed")))


class _Recorder:
    def __init__(self, marks: Marks, file: Path) -> None:
        self._marks = marks
        self._file = file
        self._executions: Executions = {}

    def pytest_collection_finish(self) -> None:
        self._marks.take()  # of what imports alone called

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        test = nodeid.partition("::")[0]
        self._executions.setdefault(test, set()).update(self._marks.take())

    def pytest_sessionfinish(self) -> None:
        try:
            add_executions(self._file, self._executions)
        except OSError as error:  # a checkout that cannot be written to
            print(f"no index of executed files: {error}", file=sys.stderr)


def _is_left_out(data: Any) -> bool:
    text = bytes(data).decode(errors="replace") if not isinstance(data, ast.AST) else ""
    return any(line.lstrip().startswith(_LEFT_OUT) for line in text.splitlines())


def _own(path: str) -> str:
    return f"{path.removesuffix('.pyc')}{_SUFFIX}" if path.endswith(".pyc") else path
