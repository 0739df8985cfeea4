"""Effects of other objects on requests that arrive through a Gateway."""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.domain.objects import ObjectKey


@dataclass(frozen=True, slots=True)
class RouteCollision:
    """Report that requests to `gateway` which match `what` go to one of two AtomDeployments."""

    other: ObjectKey
    gateway: str
    what: str
    is_ours: bool  # whether this one gets them

    def __str__(self) -> str:
        other = "/".join(self.other)
        share = f"requests to {self.what} at Gateway {self.gateway} are asked for by {other} too"
        ends = "this one is older and gets them" if self.is_ours else f"{other} gets them"
        return (
            f"spec.gateway.httpRoute: {share}; {ends}. Give each its own hostnames, or separate "
            "them by name (matches: [Path, Header])"
        )


@dataclass(frozen=True, slots=True)
class RouteFindings:
    """Hold the findings about an AtomDeployment's route; Gateways as namespace/name."""

    collisions: tuple[RouteCollision, ...] = ()
    missing_gateways: tuple[str, ...] = ()
    unanswered_gateways: tuple[str, ...] = ()
