"""Errors of the advisor: each says what is wrong, where, and the remedy."""

from __future__ import annotations

from atom.errors import AtomError


class AdviceError(AtomError):
    """A question that cannot be answered as it was asked."""
