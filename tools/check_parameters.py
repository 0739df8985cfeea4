"""Refuse functions of more than five parameters that may be passed by position.

Parameters behind a `*` are named at each call, and `self` and `cls` are no arguments: neither is
counted. Kernels are exempt, whose parameters are pointers and sizes (check_kernels.py holds their
own limit). Run by `make lint`.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from tools.remembered import per_file

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = (
    "engine/atom",
    "engine/atom_nvidia",
    "operator/atom_operator",
    "devcluster",
    "benchmarks",
    "tools",
)
MOST_PARAMETERS = 5


def too_wide(path: str, source: str) -> list[str]:
    """Write a sentence per function of a file with too many parameters."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or _is_kernel(node):
            continue
        count = len(_positional(node))
        if count > MOST_PARAMETERS:
            found.append(
                f"{path}:{node.lineno}: {node.name} has {count} parameters, at most "
                f"{MOST_PARAMETERS}; give those that travel together one frozen value"
            )
    return found


def _positional(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args)]
    return names[1:] if names[:1] in (["self"], ["cls"]) else names


def _is_kernel(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return any(ast.unparse(each) == "triton.jit" for each in called)


def main() -> int:
    texts = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
    }
    judged = per_file(Path(__file__), texts, too_wide)
    found = [problem for problems in judged.values() for problem in problems]
    print("\n".join(found) or "parameters: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
