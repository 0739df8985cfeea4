"""AtomDeployment and AtomProfile, version v1alpha1."""

from __future__ import annotations

from atom_operator.api.v1alpha1.atomdeployment import AtomDeploymentSpec
from atom_operator.api.v1alpha1.atomprofile import AtomProfileSpec, AtomProfileStatus
from atom_operator.api.v1alpha1.status import AtomDeploymentStatus, Condition

__all__ = [
    "AtomDeploymentSpec",
    "AtomDeploymentStatus",
    "AtomProfileSpec",
    "AtomProfileStatus",
    "Condition",
]
