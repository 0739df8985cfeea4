"""The changes of one apply, and the API server's refusals."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from atom_operator.constants import Reason
from atom_operator.domain.objects import ChildKey
from atom_operator.kinds import SIDE_KINDS


@dataclass(frozen=True, slots=True)
class Refusal:
    """The API server (or we) refused a child: permanent until something changes."""

    child: ChildKey
    reason: Reason
    message: str


@dataclass(frozen=True, slots=True)
class ApplyReport:
    """Report the changes of one apply."""

    applied: tuple[ChildKey, ...] = ()
    pruned: tuple[ChildKey, ...] = ()
    refused: tuple[Refusal, ...] = ()
    refused_optional: tuple[Refusal, ...] = ()  # serving does not need these
    failed: tuple[Refusal, ...] = ()  # for the moment: tried again at once

    def adding(self, failed: Iterable[Refusal]) -> ApplyReport:
        """Return the report with more that failed for the moment."""
        return replace(self, failed=(*self.failed, *failed))

    def lasting(self, late: frozenset[ChildKey]) -> ApplyReport:
        """Return the report with lasting failures counted as refusals."""
        last = [each for each in self.failed if each.child in late]
        needed = [each for each in last if each.child.kind not in SIDE_KINDS]
        optional = [each for each in last if each.child.kind in SIDE_KINDS]
        return replace(
            self,
            refused=(*self.refused, *needed),
            refused_optional=(*self.refused_optional, *optional),
            failed=tuple(each for each in self.failed if each.child not in late),
        )
