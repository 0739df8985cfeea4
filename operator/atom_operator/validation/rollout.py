"""Rules about spec.rollout that only a table of time zones can tell."""

from __future__ import annotations

from collections.abc import Iterator
from zoneinfo import ZoneInfo

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.domain import FieldProblem


def find_zone(name: str) -> ZoneInfo | None:
    """Find a zone by its IANA name."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        return None


def window_has_a_zone(spec: AtomDeploymentSpec) -> Iterator[FieldProblem]:
    """Yield a problem if the window's time zone is unknown."""
    window = spec.rollout.window
    if window is not None and window.time_zone and find_zone(window.time_zone) is None:
        yield FieldProblem(
            "spec.rollout.window.timeZone",
            f"{window.time_zone!r} is no zone of the IANA; write one such as Europe/Berlin",
        )
