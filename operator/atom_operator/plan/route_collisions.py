"""Two of our own routes that ask for the same requests: which of them gets these. Pure.

As the Gateway API decides between equal matches: the older route, then the one whose namespace and
name come first. Read from HTTPRoutes as they are rendered; called by the reconciler.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from atom_operator import constants
from atom_operator.domain import Manifest, ObjectKey, RouteCollision
from atom_operator.domain.lookup_terms import Match, route_matches, route_parents


def route_collisions(
    key: ObjectKey, route: Manifest, routes: Iterable[Manifest]
) -> tuple[RouteCollision, ...]:
    """List every other AtomDeployment's route that claims the same requests as `route`, of
    `key`."""
    found = []
    for other in routes:
        owner = _owner(other)
        if owner is None or owner == key:
            continue
        for gateway in _shared_gateways(route, other):
            same = sorted(set(route_matches(route)) & set(route_matches(other)))
            if same and _hosts_overlap(route, other):
                ours = _age(route) < _age(other)
                found.append(RouteCollision(owner, gateway, _text(same[0]), ours))
                break
    return tuple(sorted(found, key=lambda item: item.other))


def _owner(route: Manifest) -> ObjectKey | None:
    metadata = route["metadata"]
    name = (metadata.get("labels") or {}).get(constants.LABEL_DEPLOYMENT)
    return ObjectKey(metadata["namespace"], name) if name else None


def _age(route: Manifest) -> tuple[str, str, str]:
    metadata = route["metadata"]
    return str(metadata.get("creationTimestamp")), metadata["namespace"], metadata["name"]


def _shared_gateways(route: Manifest, other: Manifest) -> Iterator[str]:
    theirs = route_parents(other)
    for name, sections in route_parents(route).items():
        shared = sections & theirs.get(name, set())
        if shared or (name in theirs and "" in sections | theirs[name]):
            yield name


def _hosts_overlap(route: Manifest, other: Manifest) -> bool:
    ours, theirs = (item["spec"].get("hostnames") or () for item in (route, other))
    if not ours or not theirs:
        return not ours and not theirs  # a route with hostnames is more specific
    return bool({*map(str.lower, ours)} & {*map(str.lower, theirs)})


def _text(match: Match) -> str:
    path, headers = match
    return path + "".join(f" with {name}: {value}" for name, value in headers)
