"""Refuse Triton kernels that cannot be read: too long, too many parameters, too few reasons.

Measures every function of the engine that Triton compiles, in whatever folder it is: its lines, its
parameters, and the share of comment lines in all of them. Comments that only speak to a tool
(formatter, linter, types) do not count. Run by `make lint`; `--table` prints what was measured
instead.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENGINE = ROOT / "engine"

MOST_LINES, MOST_PARAMETERS = 90, 24
LEAST_SHARE = 0.08
# A function of so many lines or more explains something.
EXPLAINED_LINES = 30
_FOR_TOOLS = ("# fmt:", "# noqa", "# type:", "# mypy:")


@dataclass(frozen=True, slots=True)
class JitFunction:
    """Measures of one compiled function."""

    file: str
    line: int
    name: str
    lines: int
    parameters: int
    comments: int


def measure(path: str, source: str) -> list[JitFunction]:
    """Measure every function of a file that `triton.jit` decorates."""
    commented = _comment_lines(source)
    return [
        JitFunction(
            file=path,
            line=node.lineno,
            name=node.name,
            lines=(node.end_lineno or node.lineno) - node.lineno + 1,
            parameters=len(node.args.args) + len(node.args.kwonlyargs),
            comments=sum(node.lineno <= n <= (node.end_lineno or 0) for n in commented),
        )
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef) and any(map(_is_jit, node.decorator_list))
    ]


def kernels() -> list[JitFunction]:
    """Measure every compiled function of the engine."""
    return [
        each
        for path in sorted(ENGINE.rglob("*.py"))
        if "triton.jit" in (source := path.read_text(encoding="utf-8"))
        for each in measure(str(path.relative_to(ROOT)), source)
    ]


def problems(functions: list[JitFunction]) -> list[str]:
    """Write a sentence per fault."""
    found = []
    for each in functions:
        where = f"{each.file}:{each.line}: {each.name}"
        if each.lines > MOST_LINES:
            found.append(
                f"{where} has {each.lines} lines, more than {MOST_LINES}; give a part of it a name"
            )
        if each.parameters > MOST_PARAMETERS:
            found.append(
                f"{where} has {each.parameters} parameters, more than {MOST_PARAMETERS}; compute "
                "what follows from others, or pass what belongs together as one tuple"
            )
        if each.lines >= EXPLAINED_LINES and not each.comments:
            found.append(f"{where} has {each.lines} lines and no comment; say why it is as it is")
    if functions and share(functions) < LEAST_SHARE:
        found.append(
            f"comments are {share(functions):.1%} of kernels' lines, fewer than {LEAST_SHARE:.0%}; "
            "say why: layout, numerics, registers, differences between cards"
        )
    return found


def share(functions: list[JitFunction]) -> float:
    """Comment lines among all lines of the functions."""
    return sum(each.comments for each in functions) / sum(each.lines for each in functions)


def _is_jit(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return ast.unparse(called) == "triton.jit"


def _comment_lines(source: str) -> list[int]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [
        token.start[0]
        for token in tokens
        if token.type == tokenize.COMMENT and not token.string.startswith(_FOR_TOOLS)
    ]


def main() -> int:
    functions = kernels()
    if "--table" in sys.argv[1:]:
        for each in sorted(functions, key=lambda each: each.lines, reverse=True):
            print(f"{each.lines:4} {each.parameters:4} {each.comments:4}  {each.file} {each.name}")
        return 0
    found = problems(functions)
    lines = sum(each.lines for each in functions)
    print(
        "\n".join(found)
        or f"kernels: fine ({len(functions)} functions, {lines} lines, {share(functions):.1%} "
        "comments)"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
