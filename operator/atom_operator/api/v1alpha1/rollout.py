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
    """Days on which the window opens. Default: all."""
    start: Annotated[str, Field(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    """Time at which the window opens, such as 22:00."""
    minutes: Annotated[int, Field(ge=1, le=1440)]
    """Length of the window in minutes."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] | None = None
    """Zone of the clock by its IANA name, such as Europe/Berlin. Default: UTC."""


class RolloutSpec(ApiModel):
    """Settings for the replacement of pods."""

    strategy: Literal["Auto", "Surge", "InPlace", "Recreate"] | None = None
    """Surge starts a spare pod first, InPlace stops one pod and starts its successor, Recreate
    stops all first. Auto chooses for each rollout from the accelerators that are free then, and
    status.rollout says why. Default: Auto."""
    drain_seconds: Annotated[int, Field(ge=0, le=7200)] | None = None
    """Seconds that a stopping pod has to finish its running requests. Default: 120."""
    handover: bool | None = None
    """Open answers of a pod that is deleted, or whose engine process died, continue on another
    replica. The pod relays them to their clients and frees its devices at once. Answers that no
    replica takes are finished on the pod within drainSeconds. Default: false."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=86_400)] | None = None
    """Seconds without progress after which a rollout has failed. Default: the sum of drainSeconds,
    ten minutes for the image, and the start-up budget of the weights."""
    auto_rollback: bool | None = None
    """Return to the last revision whose replicas were all ready if a new revision passes its
    deadline or its pods keep crashing. A later change of the spec is tried again. Default: true."""
    window: RolloutWindowSpec | None = None
    """Window in which rollouts may begin. Outside the window, pods keep serving, and a rollout that
    has begun continues to its end. Default: always."""
    urgent: bool | None = None
    """Rollouts begin at once, regardless of the window and the operator's maxRollouts. Default:
    false."""
