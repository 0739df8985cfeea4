"""Results of another project's fields: settings of a spec, and findings.

The value between the modules that read an input and the one that renders the manifest. Knows no
kind of input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeAlias


class TranslationError(Exception):
    """An input that cannot be translated; the message has the problem, the place and the remedy."""


class Verdict(StrEnum):
    """LEFT: no counterpart, with the remedy. CHANGED: translated to another value or field than the
    one that was written. UNNEEDED: nothing has to be set here."""

    LEFT = "no counterpart"
    CHANGED = "changed"
    UNNEEDED = "not needed"


@dataclass(frozen=True, slots=True)
class Setting:
    """A field of the AtomDeployment. path: below spec, such as engine.maxNumSeqs. Values of one
    path are joined: lists in their order, and objects by their keys; the last of others wins.
    note: how the value differs from the written one. is_default: of the source; any other value of
    the path wins."""

    path: str
    value: Any
    where: str
    note: str = ""
    is_default: bool = False


@dataclass(frozen=True, slots=True)
class Finding:
    """A field of the input that is no setting as it was written. where: its path. text: the reason
    and the remedy, without any value that may be secret."""

    where: str
    verdict: Verdict
    text: str


@dataclass(frozen=True, slots=True)
class Machine:
    """The resources of a container. devices: by their extended resource; memory: of the host."""

    where: str
    devices: tuple[tuple[str, int], ...] = ()
    memory: str | None = None
    on_cpu: bool = False


Result: TypeAlias = Setting | Finding | Machine


@dataclass(frozen=True, slots=True)
class Imported:
    """Hold one deployment of the input. kind: as the input names it; where: its place there."""

    name: str
    namespace: str | None
    kind: str
    where: str
    results: Sequence[Result]

    @property
    def origin(self) -> str:
        """Name the object of the input."""
        return f"{self.kind} {self.where}"


def left(where: str, text: str) -> Finding:
    """Report a field without a counterpart. text: the remedy."""
    return Finding(where, Verdict.LEFT, text)


def changed(where: str, text: str) -> Finding:
    """Report a field that was translated to another value."""
    return Finding(where, Verdict.CHANGED, text)


def unneeded(where: str, text: str) -> Finding:
    """Report a field that has nothing to set here."""
    return Finding(where, Verdict.UNNEEDED, text)
