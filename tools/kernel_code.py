"""Compare the machine code of every kernel between two trees of the sources, with no card present.

    python -m tools.kernel_code OLD_TREE [NEW_TREE] [--cards H200 MI300X MI355X] [--module PART]
                                [--keep FOLDER]

Each tree compiles the tables of its own compile tests (tests/engine/ops/kernel_cases.py and
batch_invariant_cases.py) for sm_90, gfx942 and gfx950 in a process of its own; cases are matched by
their place in a table, so names may change. Compared is PTX, from which NVIDIA's assembler makes
the same code, or AMD's assembly, without comments, places in the sources, debug sections, names,
and what arguments a kernel does not read. Exits with 1 where instructions differ, not where the
same ones stand in another order.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_CASES = "tests.engine.ops.kernel_cases"
_BATCH_INVARIANT = "tests.engine.ops.batch_invariant_cases"
_COMPILES = "tests.engine.ops.test_kernels_compile"
# Labels, comments and directives that say where in the sources an instruction comes from.
_PLACES = re.compile(r"//.*|;(?!$).*|^\s*\.(loc|file)\b.*|^(\$L__|\.L)(tmp|func)\w*:", re.MULTILINE)
# How many arguments a kernel has is no instruction.
_ARGUMENTS = re.compile(r"\.amdhsa_(kernarg_size|user_sgpr_kernarg_preload_length).*|"
                        r"\.kernarg_segment_size.*|.*\.param \.[a-z]+\d+.*")  # fmt: skip


def instructions(text: str, name: str) -> str:
    """Take from a kernel's PTX or assembly what a card executes."""
    text = re.split(r"^\s*\.section\s+\.debug", text, maxsplit=1, flags=re.MULTILINE)[0]
    text = _ARGUMENTS.sub("", _PLACES.sub("", text.replace(name, "KERNEL")))
    text = re.sub(r"KERNEL_param_\d+", "ARGUMENT", text)
    return "\n".join(line.rstrip() for line in text.splitlines() if line.strip())


def verdict(old: str, new: str) -> str:
    """Say how two kernels' instructions relate."""
    if old == new:
        return "same"
    opcodes = [Counter(line.split()[0] for line in text.splitlines()) for text in (old, new)]
    return "same instructions in another order" if opcodes[0] == opcodes[1] else "differs"


def dump(folder: Path, cards: list[str], module: str) -> None:
    """Compile every case of the tree that is imported, a file each."""
    compiles: Any = importlib.import_module(_COMPILES)
    for number, case, card in _cases(cards, module):
        binary = compiles.compiled(*case.values, card)
        text = binary.asm.get("ptx") or binary.asm["amdgcn"]
        body = instructions(text, binary.metadata.name)
        (folder / f"{number}.{card}").write_text(f"{case.id}\n{body}")


def _cases(cards: list[str], module: str) -> Iterator[tuple[str, Any, str]]:
    table: Any = importlib.import_module(_CASES)
    reproducible: Any = importlib.import_module(_BATCH_INVARIANT)
    for kind, cases in (("", table.CASES), ("reproducible", reproducible.CASES)):
        for number, case in enumerate(cases):
            for card in cards:
                if module in case.values[0].fn.__module__:
                    yield f"{kind}{number:04}", case, card
    for number, case in enumerate(table.DEALT_CASES):  # orders that only AMD's dies have
        for card in cards:
            if card != "H200" and module in case.values[0].fn.__module__:
                yield f"dies{number:04}", case, card


def _dump_apart(tree: Path, folder: Path, args: argparse.Namespace) -> None:
    """Dump a tree by a process whose imports are the tree's."""
    folder.mkdir(parents=True)
    path = os.pathsep.join(str(part) for part in (tree / "engine", tree))
    subprocess.run(
        [
            *(sys.executable, __file__, "--dump", str(folder), "--module", args.module),
            *("--cards", *args.cards),
        ],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": path, "TRITON_CACHE_DIR": str(folder) + ".cache"},
        check=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trees", nargs="*", type=Path, help="the old tree, and the new (this one)")
    parser.add_argument("--cards", nargs="+", default=["H200", "MI300X", "MI355X"])
    parser.add_argument("--keep", type=Path, help="where the compared texts stay")
    parser.add_argument("--module", default="", help="compare kernels of these modules alone")
    parser.add_argument("--dump", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.dump is not None:
        dump(args.dump, args.cards, args.module)
        return 0
    if not 1 <= len(args.trees) <= 2:
        parser.error("name one tree to compare this one with, or two")
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or Path(temporary)
        trees = [*args.trees, ROOT][:2]
        for tree, name in zip(trees, ("old", "new"), strict=True):
            _dump_apart(tree.resolve(), folder.resolve() / name, args)
        return _report(folder / "old", folder / "new")


def _report(old: Path, new: Path) -> int:
    counts: Counter[str] = Counter()
    for path in sorted(old.iterdir()):
        other = new / path.name
        if not other.exists():
            counts["only in the old tree"] += 1
            continue
        before, after = (each.read_text().split("\n", 1) for each in (path, other))
        found = verdict(before[1], after[1])
        counts[found] += 1
        if found != "same":
            lines = (len(text[1].splitlines()) for text in (before, after))
            print(path.suffix[1:], after[0], found, *lines, sep=" | ")
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()))
    return 1 if counts["differs"] or counts["only in the old tree"] else 0


if __name__ == "__main__":
    sys.exit(main())
