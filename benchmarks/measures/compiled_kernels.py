"""Which Triton kernels are made ready for a first call, compiled or loaded, while something runs.

A kernel has a form for every set of types, constants and alignments that it meets; each is compiled
when it is first met, or loaded if a cache on disk has it. Counted per process, whether cached or
not: what a served step meets first would hold it up on a machine with an empty cache.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any


@contextmanager
def compiled_kernels() -> Iterator[Counter[str]]:
    """Kernel's name → forms made ready so far inside the block; empty where there is no Triton."""
    seen: Counter[str] = Counter()
    if find_spec("triton") is None:
        yield seen
        return
    from triton import knobs

    def note(*_: Any, fn: Any, **__: Any) -> None:
        seen[fn.name.rpartition(".")[2]] += 1

    previous = knobs.runtime.jit_post_compile_hook
    knobs.runtime.jit_post_compile_hook = note
    try:
        yield seen
    finally:
        knobs.runtime.jit_post_compile_hook = previous
