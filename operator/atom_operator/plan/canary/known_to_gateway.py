"""Says whether the Gateways know a canary's Service already, before any request goes there, and
whether some still may. Pure.

A proxy hears of a backend and of its share separately: where both are new at once, or gone at once,
it sends requests to what it does not know, and answers them with 503 (seen with Contour). So a
route names the canary without a share first, and the canary goes after its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from atom_operator.domain import Manifest
from atom_operator.domain.objects import is_of_newest_spec
from atom_operator.kinds import GATEWAY

_VERDICTS = ("Accepted", "ResolvedRefs")


def is_known_to_gateways(route: Manifest | None, backend: str) -> bool:
    """Return whether the HTTPRoute already sends requests to the backend, or names it and each
    Gateway with a controller's status on the route has one for this version. A Gateway without a
    status is not waited for: the canary's share is set all the same."""
    rules = route["spec"].get("rules") if route is not None else None
    if route is None or not rules:
        return False
    shares = [_share(rule, backend) for rule in rules]
    if None in shares:
        return False
    return all(shares) or _is_taken_up(route)


def is_named_by(route: Manifest | None, backend: str) -> bool:
    """Return whether a rule of the HTTPRoute names the backend, with or without a share: requests
    may still go there, so it stays until the route is seen without it."""
    rules = route["spec"].get("rules") or () if route is not None else ()
    return any(_share(rule, backend) is not None for rule in rules)


def _share(rule: Mapping[str, Any], backend: str) -> int | None:
    """Return the backend's weight in a rule; None if the rule does not name it."""
    found = [to for to in rule.get("backendRefs") or () if to.get("name") == backend]
    return int(found[0].get("weight", 1)) if found else None


def _is_taken_up(route: Manifest) -> bool:
    """Return whether each Gateway that the route names, and that has a controller's status, has one
    for this version. Entries stay in the status: those of a Gateway's former controller, and those
    of Gateways that the route names no more."""
    namespace = str(route["metadata"].get("namespace"))
    named = {_gateway(each, namespace) for each in route["spec"].get("parentRefs") or ()}
    newest: dict[tuple[str, ...], bool] = {}
    for parent in (route.get("status") or {}).get("parents") or ():
        gateway = _gateway(parent.get("parentRef") or {}, namespace)
        if gateway in named or not named:
            newest[gateway] = newest.get(gateway, False) or _is_of_this_version(route, parent)
    return all(newest.values())


def _gateway(reference: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    """Return a reference with the API's defaults, which a controller may write out."""
    group = reference.get("group")
    return (
        GATEWAY.group if group is None else str(group),
        str(reference.get("kind") or GATEWAY.kind),
        str(reference.get("namespace") or namespace),
        str(reference.get("name")),
        str(reference.get("sectionName") or ""),
        str(reference.get("port") or ""),
    )


def _is_of_this_version(route: Manifest, parent: Mapping[str, Any]) -> bool:
    """Return whether the verdicts about the route are new; other conditions may be unchanged."""
    return all(
        is_of_newest_spec(item, route)
        for item in parent.get("conditions") or ()
        if item.get("type") in _VERDICTS
    )
