"""The question of an advice, and why a form is not in its answer. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atom.advisor.load import Demand
from atom.advisor.rates import Tables
from atom.advisor.slo import Slo
from atom.sizing.cards import Card
from atom.sizing.model_facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForm:
    """A model as it is served. source: as a manifest names it; label: for people; quantization:
    that the engine applies to a plain checkpoint, None for the checkpoint's own format; plain: the
    facts of that checkpoint, by which the operator plans; config: its config.json, if the manifest
    has to state it."""

    label: str
    source: str
    facts: ModelFacts
    quantization: str | None = None
    plain: ModelFacts | None = None
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The models that may serve a load within targets, and the cards to compare. prices: of a
    device and hour, by card; a card without one has no price."""

    models: tuple[ModelForm, ...]
    slo: Slo
    load: Demand
    cards: tuple[Card, ...]
    tables: Tables
    max_devices: int
    prices: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Lost:
    """A form that is not in the answer, and why."""

    label: str
    why: str
