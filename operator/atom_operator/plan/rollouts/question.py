"""The inputs of a rollout's choice: what is wanted, what runs, what nodes hold, what would refuse.

Values only. Built by the second stage of a decision, read by every part of the choice.
"""

from __future__ import annotations

from dataclasses import dataclass

from atom_operator.domain import Accelerator, DeploymentState, Supply
from atom_operator.plan.quota import QuotaRefusal
from atom_operator.plan.rollouts.own_pods import OwnPods


@dataclass(frozen=True, slots=True)
class WantedPods:
    """Describe the pods that replace others, as the spec asks for them."""

    strategy: str  # spec.rollout.strategy
    accelerator: Accelerator
    revision: str  # of their template
    replicas: int | None = None  # None: an autoscaler owns the number
    in_groups: bool = False  # a replica has several pods


@dataclass(frozen=True, slots=True)
class Refusals:
    """Hold the refusals of a new pod, and of a spare one's volume."""

    claim_not_shared: str | None = None  # a claim that a spare pod could not mount, and why
    quota: QuotaRefusal | None = None  # of pods of the wanted revision, by a ResourceQuota
    quota_is_old: bool = False  # pods of ours have gone since, and no new one was tried
    inadmissible: str | None = None  # why no new pod would be admitted, even if every old one went


@dataclass(frozen=True, slots=True)
class RolloutQuestion:
    """Hold the inputs of the choice. `supply` is None if nodes cannot be read, and for cpu as long
    as every pod is made and finds a node."""

    wanted: WantedPods
    running: DeploymentState | None
    pods: OwnPods
    supply: Supply | None
    refusals: Refusals = Refusals()
    retiring: DeploymentState | None = None  # the running workload of the other kind
