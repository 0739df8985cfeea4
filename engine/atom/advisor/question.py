"""The question of an advice, and why a form is not in its answer. Values only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from atom.advisor.extras import Adapters, Drafts, Pictures
from atom.advisor.learned import Corrections
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
class Variants:
    """The forms of an engine that are compared beside the plain one. host_sizes: bytes of the
    host's memory of a copy, for a tier of the KV cache; file_sizes: of files behind such a tier, on
    a disk of disk_bytes_per_second; drafts: kinds of speculation; adapters: alternatives, one of
    which every form has, if there are any; divides: whether prefill and decode apart are compared,
    over links of link_bytes_per_second."""

    host_sizes: tuple[int, ...] = ()
    file_sizes: tuple[int, ...] = ()
    drafts: tuple[Drafts, ...] = ()
    adapters: tuple[Adapters, ...] = ()
    divides: bool = False
    link_bytes_per_second: float = 12.5e9
    disk_bytes_per_second: float = 3e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The models that may serve a load within targets, and the cards to compare. prices: of a
    device and hour, by card; a card without one has no price. variants: of each engine; learned:
    corrections by running deployments; pictures: of each prompt, whose tokens are among its own."""

    models: tuple[ModelForm, ...]
    slo: Slo
    load: Demand
    cards: tuple[Card, ...]
    tables: Tables
    max_devices: int
    prices: Mapping[str, float]
    variants: Variants = Variants()
    learned: Corrections = field(default_factory=dict)
    pictures: Pictures | None = None


@dataclass(frozen=True, slots=True)
class Lost:
    """A form that is not in the answer, and why. is_of_every_kind: whether no draft and no adapter
    changes that."""

    label: str
    why: str
    is_of_every_kind: bool = False
