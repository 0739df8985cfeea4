"""A model's facts reach the engine's processes as JSON: each kind arrives as it was sent."""

from __future__ import annotations

import msgspec
import pytest

from atom.sizing import ModelFacts
from atom_operator.plan.model_facts import catalogue_sources, facts_from_catalogue


@pytest.mark.parametrize("source", catalogue_sources())
def test_facts_of_the_catalogue_are_the_same_behind_the_wire(source: str) -> None:
    facts = facts_from_catalogue(source).facts
    assert facts is not None
    sent = msgspec.json.encode(facts)
    assert msgspec.json.decode(sent, type=ModelFacts) == facts
