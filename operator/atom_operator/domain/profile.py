"""Settings that an AtomProfile merged below a spec. Frozen data only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from atom_operator.integration_values import Site


@dataclass(frozen=True, slots=True)
class EngineAbilities:
    """Describe the abilities of engine images whose names match `image`; None: as the chart states
    for all."""

    image: str
    changes: Mapping[str, Any]  # of a Site, by its fields' names


@dataclass(frozen=True, slots=True)
class Profile:
    """Hold the AtomProfile of a spec. Its fields are in the spec already, except those that no spec
    has."""

    name: str
    fields: tuple[str, ...] = ()  # that the spec has from it
    template: Mapping[str, Any] | None = None  # laid over the rendered pods, below the spec's own
    service_account: str | None = None
    abilities: tuple[EngineAbilities, ...] = ()

    @property
    def summary(self) -> str:
        """Return in words which fields the spec has from it."""
        return ", ".join(self.fields) or "of which the spec takes nothing"

    def site_of(self, image: str, site: Site) -> Site:
        """Return the site with the abilities of the entry that matches the image, if there is
        one."""
        found = next((one for one in self.abilities if fnmatchcase(image, one.image)), None)
        return site if found is None else site.with_abilities(found.changes)
