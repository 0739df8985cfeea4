"""Spares Triton's interpreter what it does again at every call of a function, always the same.

It puts its own operations into `triton.language` at each launch, and once more at each call of a
function from a kernel; it makes a table of types wherever it needs one of them; and it computes
whole numbers a second time, with more bits, to see whether they overflow, which cases so small
cannot.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any


def spare_repeated_work() -> None:
    """Before the first launch of a process that does nothing but interpret."""
    import triton.language as tl
    from triton.runtime import interpreter

    everything: Any = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    interpreter._patch_lang(everything)
    interpreter._patch_lang = lambda _: interpreter._LangPatchScope()

    builder = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)

    of_scalar = cache(interpreter._get_np_dtype)
    interpreter._get_np_dtype = lambda kind: of_scalar(
        tl.uint64 if kind.scalar.is_ptr() else kind.scalar
    )
