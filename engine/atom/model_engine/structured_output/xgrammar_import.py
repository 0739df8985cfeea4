"""Imports xgrammar without the libraries that it imports for conveniences we do not use.

xgrammar's package imports transformers (for tokenizer objects; ours gives it bytes) and torch (for
mask tensors; numpy arrays serve as well): seconds and half a gigabyte for names that are never
called. While it is imported, empty modules stand in for them; afterwards they are gone. Only the
compile server imports xgrammar.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from atom.errors import AtomError


class XGrammarMissingError(AtomError):
    """Raised where xgrammar cannot be imported; structured output is refused, all else works."""


def import_xgrammar() -> Any:
    """Return the module xgrammar, in a process that never loads torch or transformers. Raises
    `XGrammarMissingError`."""
    try:
        # Its binding layer checks whether torch exists; a stand-in would mislead it.
        with _replaced("torch", None):
            importlib.import_module("tvm_ffi")
        with contextlib.ExitStack() as stack:
            for name in ("torch", "transformers"):
                stack.enter_context(_replaced(name, _StandIn(name)))
            return importlib.import_module("xgrammar")
    except Exception as error:  # a library that fails while loading may raise anything
        raise XGrammarMissingError(
            f"structured output is not available on this server: xgrammar cannot be imported "
            f"({type(error).__name__}: {error}); install it with pip install xgrammar"
        ) from error


class _StandIn(ModuleType):
    """A module that has every name, each a class that can be subclassed, made and mentioned in
    annotations."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {"__init__": lambda self, *args, **kwargs: None})
        setattr(self, name, made)
        return made


@contextlib.contextmanager
def _replaced(name: str, module: ModuleType | None) -> Iterator[None]:
    before = sys.modules.get(name)
    sys.modules[name] = module  # type: ignore[assignment]  # None makes an import fail
    try:
        yield
    finally:
        if before is None:
            sys.modules.pop(name, None)
        else:
            sys.modules[name] = before
