"""Refuse tests that hope for time to pass: a fixed sleep, a poll of their own, a short bound.

A machine that is busy takes ten times as long as the one where a test was written. So tests wait
on conditions, by `tests/support/waiting.py`, whose bound ends only a hang. Refused in `tests`:

- `time.sleep` of a constant, or in a loop that waits for a condition;
- `asyncio.sleep` of a constant or in such a loop, unless the file runs on a virtual clock
  (`tests/support/virtual_time.py`), where no real time passes;
- a bound shorter than the suite's: of `wait_until`, `eventually` and `within`, of
  `asyncio.wait_for` and `asyncio.timeout`, and of a process that a test started.

`tests/e2e` waits for a cluster, with its own helper and bounds. Run by `make lint`.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.support.waiting import HANG_SECONDS
from tools.remembered import per_file

ROOT = Path(__file__).resolve().parents[2]
HELPER = "tests/support/waiting.py"
EXEMPT = (HELPER, "tests/e2e/", "tests/support/cluster/", "tests/devcluster/")
_SLEEPS = ("time.sleep", "asyncio.sleep")
# Of these calls, the place of the bound, and its name.
_BOUNDS = {
    "wait_until": (2, "seconds"), "eventually": (2, "seconds"), "within": (2, "seconds"),
    "asyncio.wait_for": (1, "timeout"), "asyncio.timeout": (0, "delay"),
    "subprocess.run": (None, "timeout"), "subprocess.check_output": (None, "timeout"),
    "communicate": (1, "timeout"),
}  # fmt: skip
_CONDITION = "wait for the condition by wait_until or eventually (tests/support/waiting.py)"
_BOUND = "use HANG_SECONDS (tests/support/waiting.py)"


def hopeful(path: str, source: str) -> list[str]:
    """Write a sentence per wait of a file that time decides rather than a condition."""
    tree = ast.parse(source)
    constants, polls = dict(_constants(tree)), set(_sleeps_of_polls(tree))
    sleeps = {"time.sleep"} if "virtual" in source else {"time.sleep", "asyncio.sleep"}
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        bound = _short_bound(node, name, constants)
        if bound is not None:
            problem = f"{name} gives up after {bound:g} s, which a busy machine may take; {_BOUND}"
        elif name in sleeps and node in polls:
            problem = f"a poll of its own has another bound than the suite's; {_CONDITION}"
        elif name in sleeps and _value(_argument(node, 0, "delay"), constants):
            problem = f"{name} of a constant hopes that the time is enough; {_CONDITION}"
        else:
            continue
        found.append(f"{path}:{node.lineno}: {problem}")
    return found


def _constants(tree: ast.Module) -> Iterator[tuple[str, float]]:
    """Yield the numbers that a file gives names to."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and (value := _value(node.value, {})) is not None:
            yield from ((each.id, value) for each in node.targets if isinstance(each, ast.Name))


def _sleeps_of_polls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yield the sleeps in loops `while` whose body does nothing but look, judge and sleep."""
    for loop in ast.walk(tree):
        if isinstance(loop, ast.While) and not _is_endless(loop):
            for statement in loop.body:
                call = statement.value if isinstance(statement, ast.Expr) else None
                call = call.value if isinstance(call, ast.Await) else call
                if isinstance(call, ast.Call) and ast.unparse(call.func) in _SLEEPS:
                    yield call


def _is_endless(loop: ast.While) -> bool:
    """Return whether the loop ends otherwise than by its own condition: a server of a test."""
    return isinstance(loop.test, ast.Constant) and not any(
        isinstance(node, ast.Break | ast.Return) for node in ast.walk(loop)
    )


def _short_bound(call: ast.Call, name: str, constants: dict[str, float]) -> float | None:
    known = _BOUNDS.get(name) or _BOUNDS.get(name.rpartition(".")[2])
    if known is None:
        return None
    value = _value(_argument(call, *known), constants)
    return value if value is not None and value < HANG_SECONDS else None


def _argument(call: ast.Call, place: int | None, name: str) -> ast.expr | None:
    named = next((each.value for each in call.keywords if each.arg == name), None)
    if named is None and place is not None and place < len(call.args):
        return call.args[place]
    return named


def _value(node: ast.expr | None, constants: dict[str, float]) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return float(node.value)
    return constants.get(node.id) if isinstance(node, ast.Name) else None


def main() -> int:
    texts = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted((ROOT / "tests").rglob("*.py"))
    }
    judged = {path: text for path, text in texts.items() if not path.startswith(EXEMPT)}
    found = [
        each for all_of in per_file(Path(__file__), judged, hopeful).values() for each in all_of
    ]
    print("\n".join(found) or "waits: fine")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
