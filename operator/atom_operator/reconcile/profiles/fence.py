"""Fence: the namespaces whose AtomDeployments may take an AtomProfile, by name or by label. Pure.

A label selector is judged as Kubernetes judges one. Called where a profile is laid below a spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from atom_operator.api.v1alpha1 import AtomProfileSpec
from atom_operator.plan.placement import Requirement


@dataclass(frozen=True, slots=True)
class Namespace:
    """A namespace with its labels; None if they could not be read."""

    name: str
    labels: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Fence:
    """Patterns of names, and requirements on labels that hold together. None: not stated; with both
    None every namespace is open."""

    names: tuple[str, ...] | None
    requirements: tuple[Requirement, ...] | None

    @classmethod
    def of(cls, profile: AtomProfileSpec) -> Fence:
        """Read the fence of a profile."""
        names = None if profile.namespaces is None else tuple(profile.namespaces)
        selector = profile.namespace_selector
        if selector is None:
            return cls(names, None)
        labels = (selector.match_labels or {}).items()
        found = [Requirement(key, "In", (value,)) for key, value in labels]
        for each in selector.match_expressions or ():
            found.append(Requirement(each.key, each.operator, tuple(each.values or ())))
        return cls(names, tuple(found))

    def is_open_to(self, namespace: Namespace) -> bool:
        """Return whether AtomDeployments of the namespace may take the profile."""
        if self.names is None and self.requirements is None:
            return True
        if self._is_named(namespace.name):
            return True
        labels = namespace.labels
        if self.requirements is None or labels is None:
            return False
        return all(each.matches(labels) for each in self.requirements)

    def unknown(self, namespace: Namespace) -> str | None:
        """Return why the namespace cannot be judged, with the remedy; None if it can."""
        if self.requirements is None or namespace.labels is not None:
            return None
        if self._is_named(namespace.name):
            return None
        return (
            f"spec.namespaceSelector selects by labels, and those of namespace {namespace.name} are"
            " not known here; name it in spec.namespaces, or give its Namespace"
        )

    def _is_named(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.names or ())

    def __str__(self) -> str:
        parts = [", ".join(self.names)] if self.names else []
        if self.requirements is not None:
            labels = " and ".join(map(str, self.requirements)) or "any"
            parts.append(f"namespaces whose labels are {labels}")
        return " and ".join(parts)
