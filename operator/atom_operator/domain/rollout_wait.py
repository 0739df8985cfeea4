"""Why the pods that a spec asks for are not made yet, although they could be."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from atom_operator.domain.origin import Default

_AT_ONCE = "spec.rollout.urgent begins at once"


@dataclass(frozen=True, slots=True)
class RolloutWait:
    """State why a rollout waits, and until when if that is known."""

    words: str
    until: datetime | None = None
    in_row: bool = False  # for the turn of others to end
    is_refused: bool = False  # by admission of pods, which urgency does not change
    is_pair: bool = False  # for the prefill pods of the same revision
    defaults: tuple[Default, ...] = ()  # whose change alone waits; the spec's own is served

    @property
    def told(self) -> str:
        """Return the message, with the way to begin at once."""
        return self.words if self.is_refused or self.is_pair else f"{self.words}; {_AT_ONCE}"
