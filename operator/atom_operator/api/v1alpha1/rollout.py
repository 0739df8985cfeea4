"""How pods are replaced."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atom_operator.api.v1alpha1.common import ApiModel


class RolloutSpec(ApiModel):
    """How pods are replaced."""

    strategy: Literal["Auto", "Surge", "InPlace", "Recreate"] | None = None
    """Surge starts a spare pod first, InPlace stops one pod and starts its successor, Recreate
    stops all first. Auto chooses for each rollout from the accelerators that are free then, and
    status.rollout says why. Default: Auto."""
    drain_seconds: Annotated[int, Field(ge=0, le=7200)] | None = None
    """How long a stopping pod may finish its running requests; default: 120."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """How long a rollout may make no progress before it has failed; default: drainSeconds, ten
    minutes for the image, and the start-up budget that the weights need."""
    auto_rollback: bool | None = None
    """Return to the last revision whose replicas were all ready when a new one fails: it passed
    the deadline, or its pods keep crashing. A later change of the spec is tried again.
    Default: true."""
