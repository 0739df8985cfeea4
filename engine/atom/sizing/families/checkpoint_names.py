"""Names that a checkpoint has for the parts of a decoder, where they are not the ones here. Pure.

A family's table has a pair for each: a piece of a tensor's name in a checkpoint, between dots, and
the piece that stands for it here. The first pairs count first, and no pair makes what another one
takes: a name can be read in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence

NamePairs = Sequence[tuple[str, str]]


def engine_name(name: str, pairs: NamePairs) -> str:
    """Return what a checkpoint's tensor or module is called here."""
    return _replaced(name, pairs)


def checkpoint_name(name: str, pairs: NamePairs) -> str:
    """Return what a checkpoint calls a tensor or module of the decoder."""
    return _replaced(name, [(ours, theirs) for theirs, ours in pairs])


def _replaced(name: str, pairs: NamePairs) -> str:
    framed = f".{name}."
    for piece, instead in pairs:
        framed = framed.replace(f".{piece}.", f".{instead}.")
    return framed[1:-1]
