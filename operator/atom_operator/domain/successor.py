"""Successor: the API server's verdict on the pod that would follow one."""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.domain.objects import Manifest


@dataclass(frozen=True, slots=True)
class Successor:
    """Hold a pod as admission would leave it, or its refusal, in the refuser's words; `unknown` has
    those of a server that could not judge it."""

    pod: Manifest | None = None
    refusal: str | None = None
    unknown: str | None = None
