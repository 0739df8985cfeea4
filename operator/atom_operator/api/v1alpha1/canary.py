"""spec.canary: another revision of the model beside the pods of the spec, which takes a share of
the requests that arrive through the HTTPRoute."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from atom_operator.api.v1alpha1.common import PRESERVE, ApiModel, cel, keyed_by
from atom_operator.api.v1alpha1.engine import ConfigMapKeyRef, EngineSpec, ParallelismSpec
from atom_operator.api.v1alpha1.lora import MODEL_FORMS, MODEL_PATTERN

_Percent = Annotated[int, Field(ge=1, le=100)]


class CanaryModel(ApiModel):
    """Fields of spec.model that the canary changes; the served name stays."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!(has(self.config) && has(self.configRef))",
                "set at most one of config and configRef",
            ),
        )
    )

    source: (
        Annotated[
            str,
            Field(
                max_length=512,
                json_schema_extra=cel(
                    (
                        f"self.matches(r'{MODEL_PATTERN}') && !self.contains('/../')"
                        " && !self.endsWith('/..')",
                        MODEL_FORMS,
                    )
                ),
            ),
        ]
        | None
    ) = None
    """Where its weights are. config, configRef and revision of spec.model are then no longer
    meant; those here are."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit on the hub."""
    config: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """The model's config.json, for the capacity plan."""
    config_ref: ConfigMapKeyRef | None = None
    """A ConfigMap that holds it."""


class CanaryChange(ApiModel):
    """A part of a spec that is laid over the rest: maps are joined key by key, lists of named items
    by name, and of any other value this one counts."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.model) || has(self.engine) || has(self.parallelism)"
                " || has(self.template) || has(self.templateRemove)",
                "set at least one of model, engine, parallelism, template and templateRemove",
            ),
        )
    )

    model: CanaryModel | None = None
    """Another source or revision of the model."""
    engine: EngineSpec | None = None
    """Another image, or other options of the engine."""
    parallelism: ParallelismSpec | None = None
    """Another spread over devices."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """What is laid over spec.template."""
    template_remove: Annotated[
        list[Annotated[str, Field(min_length=6, max_length=512)]] | None, Field(max_length=64)
    ] = None
    """In place of spec.templateRemove."""


class CanaryStep(ApiModel):
    """A share of the requests, and how long it is tried."""

    weight: _Percent
    """Requests of a hundred that the canary takes."""
    seconds: Annotated[int, Field(ge=10, le=604_800)]
    """How long it serves them, ready and with its analysis passing, before the next step."""


class CanaryQuery(ApiModel):
    """A query of Prometheus whose value has bounds."""

    model_config = ConfigDict(
        json_schema_extra=cel(("has(self.min) || has(self.max)", "set min, max or both"))
    )

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """What it is called where its value is told."""
    query: Annotated[str, Field(min_length=1, max_length=1024)]
    """PromQL with one value. Engines of the canary have the label serving_atom_dev_deployment with
    the name of this object and -canary behind it."""
    min: float | None = None
    """Below it the canary fails."""
    max: float | None = None
    """Above it the canary fails."""


class CanaryAnalysis(ApiModel):
    """Criteria that judge the canary while it takes requests."""

    max_error_percent: Annotated[int, Field(ge=0, le=99)] | None = None
    """Most requests of a hundred that its engines may end with an error."""
    max_first_token_milliseconds: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """Longest mean time to the first token, by its engines."""
    min_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Requests that its engines must have ended before these two are judged. Default: 20."""
    queries: (
        Annotated[list[CanaryQuery], Field(max_length=8, json_schema_extra=keyed_by("name"))] | None
    ) = None
    """Asked of the Prometheus that the operator's chart names (autoscaling.prometheusAddress)."""
    interval_seconds: Annotated[int, Field(ge=10, le=3600)] | None = None
    """Between two looks. Default: 60."""
    failures: Annotated[int, Field(ge=1, le=100)] | None = None
    """Looks in a row that fail before the canary is undone. Default: 3."""


class CanarySpec(ApiModel):
    """Another revision that takes a share of the requests; needs gateway.httpRoute."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.weight) != has(self.steps)", "set either weight or steps"),
        )
    )

    change: CanaryChange
    """In what it differs. A canary that was undone because it failed is tried again when this is
    another."""
    weight: _Percent | None = None
    """Requests of a hundred that it takes, until it is promoted or undone."""
    steps: Annotated[list[CanaryStep], Field(min_length=1, max_length=16)] | None = None
    """Shares that it takes one after the other. After the last it keeps that share and waits for
    its promotion."""
    replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Its pods, beside spec.replicas, whatever its share is. Default: they follow the share, which
    is never more than those that serve can carry."""
    analysis: CanaryAnalysis | None = None
    """By what it is undone, and what keeps it from the next step. One whose pods cannot start is
    undone without."""
    decision: Literal["Promote", "Undo", "Hold"] | None = None
    """What a person decides. Promote: all pods become what the canary is, and it goes when they
    are. Undo: it goes. Hold: it keeps its share. Absent: the steps go on. To end a promotion write
    the change into the spec and remove spec.canary, which restarts no pod. Promote and Undo are
    about one change, and do nothing beside another one; Hold holds any."""
    decision_for: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """The change that the decision is about, by its digest in status.canary.change; kubectl atom
    writes it. Default: the change that is there when the decision is first seen."""
