"""Names of a decoder's parts in checkpoints that differ from the engine's names. Pure.

A family's table has a pair for each difference: the piece of a tensor's name in a checkpoint,
between dots, and the engine's piece. Earlier pairs take precedence, and no pair produces a piece
that another pair replaces: a name can be converted in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence

NamePairs = Sequence[tuple[str, str]]


def engine_name(name: str, pairs: NamePairs) -> str:
    """Return the engine's name of a checkpoint's tensor or module."""
    return _replaced(name, pairs)


def checkpoint_name(name: str, pairs: NamePairs) -> str:
    """Return the checkpoint's name of a tensor or module of the decoder."""
    return _replaced(name, [(ours, theirs) for theirs, ours in pairs])


def _replaced(name: str, pairs: NamePairs) -> str:
    framed = f".{name}."
    for piece, instead in pairs:
        framed = framed.replace(f".{piece}.", f".{instead}.")
    return framed[1:-1]
