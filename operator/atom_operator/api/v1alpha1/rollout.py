"""Settings for the replacement of pods."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atom_operator.api.v1alpha1.common import ApiModel


class RolloutWindowSpec(ApiModel):
    """A time window in which rollouts may begin."""

    days: Annotated[
        list[Literal["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]] | None,
        Field(min_length=1, max_length=7, json_schema_extra={"x-kubernetes-list-type": "set"}),
    ] = None
    """Days on which it opens. Default: all."""
    start: Annotated[str, Field(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    """When it opens, such as 22:00."""
    minutes: Annotated[int, Field(ge=1, le=1440)]
    """How long it is open."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Zone of the clock by its IANA name, such as Europe/Berlin. Default: UTC."""


class RolloutSpec(ApiModel):
    """Settings for the replacement of pods."""

    strategy: Literal["Auto", "Surge", "InPlace", "Recreate"] | None = None
    """Surge starts a spare pod first, InPlace stops one pod and starts its successor, Recreate
    stops all first. Auto chooses for each rollout from the accelerators that are free then, and
    status.rollout says why. Default: Auto."""
    drain_seconds: Annotated[int, Field(ge=0, le=7200)] | None = None
    """How long a stopping pod may finish its running requests; default: 120."""
    handover: bool | None = None
    """Open answers of a pod that has to go, or whose engine process has died, go on at another
    replica, and the pod relays them to their clients; its devices are free at once. What no replica
    takes is finished where it is, within drainSeconds. Default: false."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """How long a rollout may make no progress before it has failed; default: drainSeconds, ten
    minutes for the image, and the start-up budget that the weights need."""
    auto_rollback: bool | None = None
    """Return to the last revision whose replicas were all ready when a new one fails: it passed
    the deadline, or its pods keep crashing. A later change of the spec is tried again.
    Default: true."""
    window: RolloutWindowSpec | None = None
    """When rollouts may begin; outside it what serves goes on, and one that has begun comes to its
    end. Default: always."""
    urgent: bool | None = None
    """Rollouts begin at once, whatever the window and the operator's maxRollouts say. Default:
    false."""
