"""Name definitions of engine and operator that nothing but tests uses.

    python -m tools.check_dead_code

A definition is a function, method, class or constant of a module; fields of a record may be written
whole, so nothing is said of them. It is used where its name stands in code or in a text of code
(names are looked up by text, too), in a page that people follow, or in a file that is no Python,
other than where it is defined. Docstrings, comments and tests are no use. Names that a framework
calls are: what is decorated by another's decorator, and methods of a class with a base of
another's. Exits with 1 where it finds any.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

from tools.remembered import per_file

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("engine/atom", "engine/atom_nvidia", "operator/atom_operator")
# Where a name is used: not tests, nor pages that tell how things came to be.
_USERS = ("engine", "operator", "benchmarks", "devcluster", "tools", "examples", "images", "charts",
          "docs/guides", "README.md", "pyproject.toml", "Makefile")  # fmt: skip
_WORD = re.compile(r"[A-Za-z_]\w*")
# Decorators that say how a function is called, and not by whom.
_PLAIN_DECORATORS = {
    "property", "staticmethod", "classmethod", "cache", "lru_cache", "contextmanager", "jit",
    "asynccontextmanager", "dataclass", "abstractmethod", "inference_mode", "override", "setter",
    "cached_property", "total_ordering", "runtime_checkable", "no_grad", "overload", "final",
}  # fmt: skip
# Bases of others' whose subclasses have methods of our own.
_PLAIN_BASES = {
    "Protocol", "Generic", "NamedTuple", "ABC", "Exception", "Enum", "IntEnum", "StrEnum", "Module",
    "TypedDict", "BaseModel", "Struct", "ValueError", "RuntimeError",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Definition:
    """One name, and where it is given."""

    name: str
    path: str
    line: int
    bases: tuple[str, ...] = ()  # of a method those of its class

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name} is used by tests alone, or by nothing"


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file: its definitions, its classes, and how often it uses each word."""

    definitions: list[Definition]
    classes: list[str]
    used: dict[str, int]

    @classmethod
    def of(cls, path: str, text: str) -> FileFacts:
        if not path.endswith(".py"):
            return cls([], [], dict(Counter(_WORD.findall(text))))
        tree = ast.parse(text)
        classes = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        return cls(list(definitions(path, tree)), classes, dict(used_words(tree)))

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> FileFacts:
        found = [Definition(**{**each, "bases": tuple(each["bases"])})
                 for each in stored["definitions"]]  # fmt: skip
        return cls(found, stored["classes"], stored["used"])


def definitions(path: str, tree: ast.Module) -> Iterator[Definition]:
    """Yield what a module defines that another module is to use by its name."""
    for statement in tree.body:
        for name in _assigned(statement):
            yield Definition(name, path, statement.lineno)
        if _is_function(statement) and not _is_registered(statement):
            yield Definition(statement.name, path, statement.lineno)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield Definition(node.name, path, node.lineno)
            bases = tuple(sorted(_bases(node)))
            for member in node.body:
                if _is_function(member) and not _is_registered(member):
                    yield Definition(member.name, path, member.lineno, bases)


def used_words(tree: ast.Module) -> Counter[str]:
    """Count the words of a module's code and texts, without docstrings and without definitions."""
    docstrings = {id(text) for node in ast.walk(tree) for text in _docstring(node)}
    found: Counter[str] = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            found[node.id] += 1
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            found[node.attr] += 1
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            found.update(_WORD.findall(node.value))
    return found


def dead(modules: dict[str, str], users: dict[str, str]) -> list[Definition]:
    """List the definitions of `modules` (path: text) that neither they nor `users` use."""
    facts = {path: FileFacts.of(path, text) for path, text in {**users, **modules}.items()}
    return _dead_of(facts, modules.keys())


def _dead_of(facts: dict[str, FileFacts], modules: Collection[str]) -> list[Definition]:
    used: Counter[str] = Counter()
    for each in facts.values():
        used.update(each.used)
    own = {name for path in modules for name in facts[path].classes} | _PLAIN_BASES
    return [
        each
        for path in modules
        for each in facts[path].definitions
        if not used[each.name] and own.issuperset(each.bases) and not each.name.startswith("__")
    ]


def find() -> list[Definition]:
    """List those of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *_USERS],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    texts = {}
    for name in listed.stdout.splitlines():
        try:
            texts[name] = (ROOT / name).read_text(encoding="utf-8")
        except (UnicodeDecodeError, FileNotFoundError):
            continue
    modules = [name for name in texts if name.endswith(".py") and name.startswith(SOURCES)]
    stored = per_file(Path(__file__), texts, lambda path, text: asdict(FileFacts.of(path, text)))
    return _dead_of({path: FileFacts.from_json(each) for path, each in stored.items()}, modules)


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    if isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _is_function(node: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _bases(node: ast.ClassDef) -> set[str]:
    return {_last_name(base) for base in node.bases}


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression: of `a.b[c](d)` that is b."""
    while isinstance(node, ast.Subscript | ast.Call):
        node = node.value if isinstance(node, ast.Subscript) else node.func
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_registered(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether a decorator gives the function to a framework, which calls it."""
    return any(_last_name(each) not in _PLAIN_DECORATORS for each in node.decorator_list)


def _docstring(node: ast.AST) -> list[ast.expr]:
    body = getattr(node, "body", None)
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    if isinstance(node, kinds) and body and isinstance(body[0], ast.Expr):
        return [body[0].value]
    return []


def main() -> int:
    found = find()
    print("\n".join(map(str, found)) or "dead code: none")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
