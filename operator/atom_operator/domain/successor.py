"""Successor: the API server's verdict on the pod that would follow one."""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.domain.objects import Manifest


@dataclass(frozen=True, slots=True)
class Successor:
    """Hold a pod as admission would leave it, or who refuses it, in their words; those of a server
    that did not judge it are in `unknown`."""

    pod: Manifest | None = None
    refusal: str | None = None
    unknown: str | None = None
