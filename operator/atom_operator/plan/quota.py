"""A ResourceQuota's refusal as numbers, and whether ending old pods would make room. Pure.

The API server's words alone state a quota's numbers together with the request that they refused:
"exceeded quota: one, requested: pods=1, used: pods=1, limited: pods=1". A refusal by a LimitRange
or another admission names no use, and ending a pod would not help. For claimed devices a quota
counts ResourceClaims, in the same words.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from atom_operator.domain import DeploymentState, Observed, PodRevision, PodState
from atom_operator.domain.resources import LimitAsked, Resources, amount, amount_text, given_back
from atom_operator.pods.refused_names import makers_of_refused

_REFUSAL = re.compile(
    r"exceeded quota: (?P<name>[^,\s]+), requested: (?P<requested>\S+), "
    r"used: (?P<used>\S+), limited: (?P<limited>[^\s;]+)"
)

_UNSTATED = re.compile(r"failed quota: [^:\s]+: must specify (?P<limits>.+)")
_LIMIT = re.compile(r"\blimits\.(?P<resource>cpu|memory) for: (?P<containers>[a-z0-9,-]+)")


@dataclass(frozen=True, slots=True)
class QuotaRefusal:
    """Hold the request of one more pod to a quota that has no room for it."""

    name: str
    requested: Resources
    used: Resources
    limited: Resources
    old: Sequence[Resources]  # each old pod's charge; empty if unknown

    @property
    def lacking(self) -> str:
        """Describe the requests that do not fit, each with the quota's use and limit."""
        return " and ".join(
            f"{amount_text(name, asked)} ({self._of(self.used, name)} of "
            f"{self._of(self.limited, name)} used)"
            for name, asked in self.requested.items()
        )

    def has_room_after(self, stopped: int, started: int = 1) -> bool:
        """Return whether `started` new pods fit once `stopped` old ones have gone, whichever they
        are."""
        return all(
            self._rest(name, stopped) + started * asked <= self.limited.get(name, 0)
            for name, asked in self.requested.items()
        )

    def _rest(self, name: str, stopped: int) -> int:
        as_new = stopped * self.requested[name]  # of old pods that were not observed
        given = given_back(self.old, name, stopped) if self.old else as_new
        return max(0, self.used.get(name, 0) - given)

    def _of(self, amounts: Resources, name: str) -> str:
        return amount_text(name, amounts.get(name, 0)).removesuffix(f" {name}")


def quota_refusal(message: str | None, old: Sequence[Resources]) -> QuotaRefusal | None:
    """Parse the refusal in a controller's message, None if it is no quota's. `old`: each old pod's
    charge; empty if unknown, and assumed to equal a new one's."""
    match = _REFUSAL.search(message or "")
    if match is None:
        return None
    requested, used, limited = (
        _amounts(match.group(field)) for field in ("requested", "used", "limited")
    )
    return QuotaRefusal(match.group("name"), requested, used, limited, old)


def refusal_of_new_pods(
    observed: Observed, running: DeploymentState | None, wanted: PodRevision
) -> QuotaRefusal | None:
    """Return a quota's refusal of the wanted pods, with each old pod's charge; None also if it
    refuses one more old pod, as while their number grows."""
    if running is None or running.revision != wanted.name:
        return None
    others = [pod for pod in observed.pods if pod.revision != wanted.name]
    old = [
        pod for pod in others if not pod.placement.lacks_claim
    ]  # which a quota of claims counts not yet
    refused = makers_of_refused(running.progress.refused_message or "")
    if not running.in_groups and not _makers(others).isdisjoint(refused):
        return None
    return quota_refusal(
        running.progress.refused_message,
        [pod.placement.charged for pod in old if pod.placement.charged],
    )


def _makers(pods: Iterable[PodState]) -> frozenset[str]:
    """Return the names of the ReplicaSets that made pods, of which each pod's begins with its
    own's."""
    return frozenset(pod.name.rpartition("-")[0] for pod in pods)


def limits_asked(message: str | None) -> tuple[LimitAsked, ...]:
    """Return the limits that a quota of the namespace counts and that containers do not state, by
    the API server's words: "failed quota: team: must specify limits.cpu for: engine"."""
    match = _UNSTATED.search(message or "")
    found = _LIMIT.finditer(match.group("limits")) if match is not None else ()
    return tuple(
        LimitAsked(container, limit.group("resource"))
        for limit in found
        for container in limit.group("containers").split(",")
    )


def still_refused(message: str, old: Sequence[Resources], started: int) -> bool:
    """Return whether a refusal of one more pod would hold for `started` pods once the old ones had
    gone."""
    refusal = quota_refusal(message, old)
    return refusal is None or not refusal.has_room_after(len(old), started)


def _amounts(text: str) -> Mapping[str, int]:
    pairs = (item.partition("=") for item in text.split(","))
    return {name: amount(name, quantity) for name, _, quantity in pairs}
