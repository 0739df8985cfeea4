"""What one apply changed, and what the API server refused."""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.constants import Reason
from atom_operator.domain.objects import ChildKey


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server (or we) refused a child: permanent until something changes."""

    child: ChildKey
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """Hold what one apply changed."""

    applied: tuple[ChildKey, ...] = ()
    pruned: tuple[ChildKey, ...] = ()
    refused: tuple[Refusal, ...] = ()
    refused_optional: tuple[Refusal, ...] = ()  # serving goes on without these
