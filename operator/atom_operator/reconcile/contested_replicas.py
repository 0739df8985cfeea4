"""Detects a client that sets the number of replicas again and again while the spec has another one.

One change by hand is corrected silently. A HorizontalPodAutoscaler, or a script, returns: pods and
their devices then come and go with each turn, although every status in between looks well. Only
earlier corrections reveal that, so they are remembered, and lost with the process. Called by the
reconciler; reported by status/rollup.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from atom_operator.domain import ChildKey, DeploymentState, Manifest, ObjectKey, runs_engines

_LASTS = timedelta(minutes=10)  # since the last turn, until it counts as over
_TURNS = 2  # from which it is no slip of a hand


@dataclass(frozen=True, slots=True)
class _Contest:
    """Hold the number that was asked for last, and when others asked for another one."""

    asked: int
    turns: tuple[datetime, ...] = ()
    words: str = ""


class ContestedReplicas:
    """Remembers the numbers that were written for each AtomDeployment."""

    def __init__(self) -> None:
        self._known: dict[ObjectKey, _Contest] = {}

    def forget(self, key: ObjectKey) -> None:
        """Forget an AtomDeployment that is gone."""
        self._known.pop(key, None)

    def look(
        self,
        key: ObjectKey,
        desired: Mapping[ChildKey, Manifest],
        running: DeploymentState | None,
        now: datetime,
    ) -> str | None:
        """Name the client that contests the number, with the remedy; None while there is none, or
        if the number is an autoscaler's. `desired`: this pass's writes; `running`: the workload
        before them."""
        asked = _asked(desired)
        if asked is None or running is None:
            self._known.pop(key, None)
            return None
        before = self._known.get(key)
        if before is None or before.asked != asked:
            self._known[key] = _Contest(asked)
            return None
        turns = tuple(at for at in before.turns if now - at < _LASTS)
        words = before.words
        if running.desired != asked:
            turns = (*turns[-_TURNS:], now)
            words = _words(key.name, running, asked)
        self._known[key] = _Contest(asked, turns, words)
        return words if len(turns) >= _TURNS else None


def _asked(desired: Mapping[ChildKey, Manifest]) -> int | None:
    """Return the number of replicas that the workload is given; None without one, or if another
    manager owns it."""
    workloads = [item for child, item in desired.items() if runs_engines(child, item)]
    found = workloads[0]["spec"].get("replicas") if len(workloads) == 1 else None
    return None if found is None else int(found)


def _words(name: str, running: DeploymentState, asked: int) -> str:
    who = running.others.replicas_by or "another client"
    return (
        f"{who} sets spec.replicas of the workload to {running.desired} again and again, and the "
        f"spec asks for {asked}, so pods come and go: let spec.autoscaling scale it, or point the "
        f"autoscaler at AtomDeployment {name} instead (kubectl scale atomd/{name})"
    )
