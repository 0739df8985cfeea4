"""A spec that was carried out, as it is written down for the pods that were made for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atom_operator.domain.profile import Profile


@dataclass(frozen=True, slots=True)
class SpecRecord:
    """A spec that was carried out. image: of its engines, where that is written down."""

    asked: Mapping[str, Any]
    profile: Profile | None = None  # that was laid below it
    image: str | None = None


def is_prefill(raw: Mapping[str, Any]) -> bool:
    """Return whether a stored spec is of prefill pods, which the operator writes."""
    divided = raw.get("disaggregation")
    return isinstance(divided, Mapping) and divided.get("prefillFor") is not None
