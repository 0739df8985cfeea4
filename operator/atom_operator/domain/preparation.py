"""Preparation before pods can start: Jobs, their states, and the waits for them.

Values only. A pure function (children/beside_engines/job.py) requests a Job, cluster/jobs.py reads
and creates it, and plan/waiting.py judges it.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Literal

from atom_operator.constants import Reason
from atom_operator.domain.engines import LoadProgress
from atom_operator.domain.objects import Manifest


class JobPurpose(StrEnum):
    """Name the purpose of one of our Jobs."""

    WEIGHTS = "weights"
    INSPECTION = "inspection"


@dataclass(frozen=True, slots=True)
class JobRequest:
    """Request a Job. `digest` shows whether an existing one was made for the same request."""

    purpose: JobPurpose
    name: str
    digest: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class ClaimInUse:
    """Identify a claim of weights by its uid, with its folders in use at `as_of`; `kept` is None if
    nothing is to be removed, because the spec does not ask for it or for the reason `unknown`."""

    uid: str
    kept: tuple[str, ...] | None = None
    as_of: datetime | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class JobState:
    """A Job as the cluster has it; `message` and `address` are of its latest pod."""

    phase: Literal["Running", "Succeeded", "Failed"]
    message: str = ""  # how a container ended, or why it waits
    result: str | None = None  # its output on success
    problem: str | None = None  # why nothing works at it, and nothing will by itself
    refused: bool = False  # the problem is that its pods are refused
    unschedulable: str | None = None  # why its pod finds no node
    lingers: bool = False  # its work is done; another container of its pod runs
    address: str | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """State why pods are not started yet. `failed`: only a user can resolve it."""

    reason: Reason
    message: str
    failed: bool = False
    progress: LoadProgress | None = None
    unschedulable: str | None = None  # why the Job's pod finds no node
