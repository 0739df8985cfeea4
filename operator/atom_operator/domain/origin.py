"""Origin of a revision of pods: the AtomDeployment's own spec, and defaults of many.

A default (an AtomProfile, the chart's defaults, a default image) belongs to every AtomDeployment
that it is merged below, so a changed one replaces the pods of all of them. Stored on the workload.
"""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Default:
    """Identify one default of many AtomDeployments, by its name and its present value."""

    name: str
    value: str

    def __str__(self) -> str:
        return f"{self.name} ({self.value})"


@dataclass(frozen=True, slots=True)
class Origin:
    """Hold the origin of a revision; follows: the defaults whose change alone led to it."""

    own: str  # digest of the AtomDeployment's own request for its pods
    defaults: tuple[Default, ...] = ()
    follows: tuple[Default, ...] = ()

    def is_new(self, default: Default) -> bool:
        """Return whether this says something else of a default than the other one of its name."""
        return any(each.name == default.name and each != default for each in self.defaults)

    @property
    def text(self) -> str:
        """Return the form in which a workload keeps it."""
        said = {
            "own": self.own,
            "defaults": [[each.name, each.value] for each in self.defaults],
            "follows": [[each.name, each.value] for each in self.follows],
        }
        return json.dumps(said, separators=(",", ":"))


def subject(defaults: tuple[Default, ...]) -> str:
    """Return the beginning of a message about changed defaults; empty without one."""
    return f"{', '.join(map(str, defaults))}: " if defaults else ""


def read_origin(text: str | None) -> Origin | None:
    """Parse a workload's stored origin; None if it is absent or unreadable."""
    try:
        said = json.loads(text or "")
        defaults, follows = (
            tuple(Default(str(name), str(value)) for name, value in said[field])
            for field in ("defaults", "follows")
        )
        return Origin(str(said["own"]), defaults, follows)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
