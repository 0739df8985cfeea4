"""Write the times of a suite's parts to a page that a person commits (docs/results)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tools.suite.parts import Suite
from tools.suite.summary import PartResult

_HEAD = """# Times of the tests

Seconds of each part of `make test` and `make test-all`, which run side by side: the wall time of
the part, its processor time, and its dearest file. `python -m tools.suite test --write-times PAGE`
writes the section of its suite after the run.
"""


def write_times(page: Path, suite: Suite, results: Sequence[PartResult]) -> None:
    """Write the suite's section of the page, and leave the other one as it is."""
    text = page.read_text(encoding="utf-8") if page.exists() else _HEAD
    name = "make test" if suite is Suite.TEST else "make test-all"
    section = "\n".join(_section(name, results))
    old = re.compile(rf"## {name} \(.*?(?=\n## |\Z)", re.DOTALL)
    kept = text if old.search(text) else f"{text.rstrip()}\n\n## {name} ("
    text = old.sub(lambda _: section, kept)
    page.write_text(f"{text.rstrip()}\n", encoding="utf-8")


def _section(name: str, results: Sequence[PartResult]) -> list[str]:
    lines = [
        f"## {name} ({os.cpu_count()} cores)",
        "| part | tests | seconds | of processor | dearest file | its seconds |",
        "|---|---|---|---|---|---|",
    ]
    for each in results:
        seconds = each.record.seconds if each.record else {}
        dearest = max(seconds, key=lambda file: seconds[file], default="")
        tests = sum(each.record.ran.values()) if each.record else 0
        took = f"{seconds[dearest]:.0f}" if dearest else ""
        times = f"{each.seconds.wall:.0f} | {each.seconds.processor:.0f}"
        lines.append(f"| {each.name} | {tests} | {times} | {dearest} | {took} |")
    return lines
