"""Prints a digest of what each kernel compiles to, per card, to compare two states of the sources.

python -m tests.engine.ops.compiled_code [H200 MI300X MI355X] > FILE; then the same elsewhere, and
diff. Where lines come from in the sources is no part of a digest.
"""

from __future__ import annotations

import hashlib
import re
import sys
from typing import Any

from tests.engine.ops.kernel_cases import CASES
from tests.engine.ops.test_kernels_compile import TARGETS, compiled

# Labels, comments and directives that say where in the sources an instruction comes from.
_PLACES = re.compile(r"//.*|;(?!$).*|^\s*\.(loc|file)\b.*|^(\$L__|\.L)(tmp|func)\w*:", re.MULTILINE)


def instructions(binary: Any) -> str:
    """PTX, from which NVIDIA's assembler makes the same code whoever compiled it, or AMD's
    assembly; nothing of debuggers' sections."""
    text = binary.asm.get("ptx") or binary.asm["amdgcn"]
    text = re.split(r"^\s*\.section\s+\.debug", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = _PLACES.sub("", text).splitlines()
    return "\n".join(line.rstrip() for line in lines if line.strip())


def digest(binary: Any) -> str:
    return hashlib.sha256(instructions(binary).encode()).hexdigest()[:16]


def main(cards: list[str]) -> None:
    for case in CASES:
        for card in cards or TARGETS:
            print(f"{case.id} | {card} | {digest(compiled(*case.values, card))}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
