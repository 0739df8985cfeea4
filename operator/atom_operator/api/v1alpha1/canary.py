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
    """Location of the canary's weights. config, configRef and revision of spec.model then do not
    apply; set them here."""
    revision: Annotated[str, Field(min_length=1, max_length=128)] | None = None
    """Branch, tag or commit on the hub."""
    config: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """The model's config.json, for the capacity plan."""
    config_ref: ConfigMapKeyRef | None = None
    """A ConfigMap that holds the config.json."""


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
    """Another distribution over devices."""
    template: Annotated[dict[str, Any] | None, Field(json_schema_extra=PRESERVE)] = None
    """Overlay that is merged over spec.template."""
    template_remove: Annotated[
        list[Annotated[str, Field(min_length=6, max_length=512)]] | None, Field(max_length=64)
    ] = None
    """Paths to remove, instead of spec.templateRemove."""


class CanaryStep(ApiModel):
    """A share of the requests, and how long it is tried."""

    weight: _Percent
    """Percentage of the requests that the canary takes."""
    seconds: Annotated[int, Field(ge=10, le=604_800)]
    """Seconds that the canary must be ready, with a passing analysis, before the next step."""


class CanaryQuery(ApiModel):
    """A query of Prometheus whose value has bounds."""

    model_config = ConfigDict(
        json_schema_extra=cel(("has(self.min) || has(self.max)", "set min, max or both"))
    )

    name: Annotated[str, Field(min_length=1, max_length=63)]
    """Name of the query in conditions and Events."""
    query: Annotated[str, Field(min_length=1, max_length=1024)]
    """PromQL that returns one value. The canary's engines have the label
    serving_atom_dev_deployment: the name of this object followed by -canary."""
    min: float | None = None
    """Lowest value that passes."""
    max: float | None = None
    """Highest value that passes."""


class CanaryAnalysis(ApiModel):
    """Criteria that judge the canary while it takes requests."""

    max_error_percent: Annotated[int, Field(ge=0, le=99)] | None = None
    """Highest percentage of requests that the canary's engines may end with an error."""
    max_first_token_milliseconds: Annotated[int, Field(ge=1, le=3_600_000)] | None = None
    """Highest mean time to the first token that the canary's engines measure."""
    min_requests: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """Finished requests of the canary's engines before the two bounds above apply. Default: 20."""
    queries: (
        Annotated[list[CanaryQuery], Field(max_length=8, json_schema_extra=keyed_by("name"))] | None
    ) = None
    """Queries to the Prometheus server of the operator's chart (autoscaling.prometheusAddress)."""
    interval_seconds: Annotated[int, Field(ge=10, le=3600)] | None = None
    """Seconds between two checks. Default: 60."""
    failures: Annotated[int, Field(ge=1, le=100)] | None = None
    """Consecutive failed checks before the canary is undone. Default: 3."""


class CanarySpec(ApiModel):
    """Another revision that takes a share of the requests; needs gateway.httpRoute."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.weight) != has(self.steps)", "set either weight or steps"),
        )
    )

    change: CanaryChange
    """The fields in which the canary differs. A canary that failed is tried again when this field
    changes."""
    weight: _Percent | None = None
    """Percentage of the requests that the canary takes until it is promoted or undone."""
    steps: Annotated[list[CanaryStep], Field(min_length=1, max_length=16)] | None = None
    """Shares that the canary takes in order. After the last step it keeps its share and waits for
    its promotion."""
    replicas: Annotated[int, Field(ge=1, le=1000)] | None = None
    """Number of the canary's pods, in addition to spec.replicas. Default: the number follows the
    share, and the share never exceeds the part that the ready pods can serve."""
    analysis: CanaryAnalysis | None = None
    """Checks that undo the canary or hold it before its next step. A canary whose pods cannot start
    is undone without them."""
    decision: Literal["Promote", "Undo", "Hold"] | None = None
    """Decision of a person. Promote: all pods take the canary's change, and the canary ends when
    they are ready. Undo: the canary ends. Hold: it keeps its share. Absent: the steps continue. To
    finish a promotion, write the change into the spec and remove spec.canary; no pod restarts.
    Promote and Undo apply to one change only; Hold applies to any."""
    decision_for: Annotated[str, Field(pattern=r"^[0-9a-f]{16}$")] | None = None
    """Digest of the change that the decision applies to, from status.canary.change; kubectl atom
    sets it. Default: the change that the operator sees together with a new decision."""
