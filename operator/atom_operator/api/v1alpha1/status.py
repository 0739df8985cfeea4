"""The status of an AtomDeployment: rebuildable from observation, written once per reconcile."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atom_operator.api.v1alpha1.common import ApiModel, keyed_by


class Condition(ApiModel):
    """A condition, as metav1.Condition."""

    type: str
    """Type of the condition."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    observed_generation: int
    """The metadata.generation that the condition describes."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""
    reason: str
    """One CamelCase word for machines."""
    message: str
    """The problem, its place and the remedy, for people."""


class ConcurrencyStatus(ApiModel):
    """Sequences of one length that run at the same time, per replica."""

    context_tokens: int
    """Length of each sequence in tokens."""
    sequences: int
    """Number of sequences that fit."""


class CapacityNumbers(ApiModel):
    """Capacity of one replica."""

    # Named by its meaning, not by the alias rule, which would give "Gpu".
    weights_bytes_per_gpu: Annotated[int, Field(alias="weightsBytesPerGPU")]
    """Bytes of weights on each device."""
    kv_bytes_per_token: int
    """Bytes of KV cache per token on each device, in the layers that keep every token."""
    kv_window_bytes_per_sequence: int | None = None
    """Bytes of KV cache of a full sequence on each device in layers with a sliding window, which
    do not grow beyond it; absent if the model has none."""
    kv_tokens: int
    """Tokens that the KV cache holds."""
    blocks: int
    """KV cache blocks."""
    max_sequences: int
    """Sequences of the full context length that run at the same time."""
    max_model_len: int
    """The full context length in tokens."""
    limited_by: str
    """memory, or max_num_seqs if more memory would hold no more sequences."""
    concurrency: list[ConcurrencyStatus]
    """The same at shorter lengths."""


class ActualCapacity(CapacityNumbers):
    """Capacity of one replica, as its engine measured it at the start."""

    revision: str
    """The revision whose engine reported this."""
    drift_percent: int | None = None
    """Measured KV tokens compared with the plan: 0 for equal, -10 for a tenth fewer."""


class CapacityStatus(CapacityNumbers):
    """Capacity of one replica, as planned before it started."""

    confidence: Literal["Predicted", "Corrected", "Measured"]
    """Predicted: computed from the model's shape. Corrected: the same, corrected by what an engine
    of the same model, image, device and parallelism has measured. Measured: there was no plan, and
    these are the engine's own numbers."""
    corrected_by: str | None = None
    """The revision whose engine measured it."""
    actual: ActualCapacity | None = None
    """What an engine of the latest revision reported after its start."""


class SpeculationStatus(ApiModel):
    """Acceptance of drafts by the latest revision's pods, since each of them began."""

    accepted_percent: int
    """Percentage of drafted tokens that were accepted."""
    tokens_per_step: float
    """Mean number of tokens per step with drafts; 1 if no draft was accepted."""


class StepsStatus(ApiModel):
    """Steps of the pods beside the measured table of their card, which kubectl atom advise corrects
    its predictions by."""

    percent_of_table: int
    """Median time of the steps of the last minute, as a percentage of the table's."""
    pods: int
    """Number of pods that were compared."""


class SleepStatus(ApiModel):
    """Sleep of pods that get no requests."""

    asleep_pods: int
    """Ready pods that sleep now; the next request wakes one of them."""
    wakes: int
    """Number of times that a request woke a pod, since each pod started."""


class AdapterOnPod(ApiModel):
    """State of an adapter on a pod that serves."""

    name: str
    """The pod."""
    state: Literal["Loaded", "Loading", "Refused", "Unknown"]
    """State of the adapter; Unknown if the pod does not report it."""
    message: str | None = None
    """The engine's reason for a refusal. The pod tries again."""


class AdapterStatus(ApiModel):
    """State of an adapter of the spec."""

    name: str
    """Name of the adapter."""
    loaded_pods: int
    """Number of pods that serve the adapter."""
    pods: list[AdapterOnPod]
    """The pods, at most 16; pods that do not serve the adapter come first."""


class CanaryDecidedStatus(ApiModel):
    """A decision of spec.canary and the change that it was made for."""

    decision: Literal["Promote", "Undo"]
    change: str
    """Digest of that spec.canary.change."""
    named: str | None = None
    """spec.canary.decisionFor as it was then."""


class CanaryStatus(ApiModel):
    """Progress of spec.canary; the operator continues from here."""

    name: str
    """Name of the canary's AtomDeployment."""
    change: str
    """Digest of spec.canary.change."""
    phase: Literal[
        "Starting", "Stepping", "Held", "AwaitingPromotion", "Promoting", "Promoted", "Undone"
    ]
    """Phase of the canary. Starting: it takes no requests yet. Undone: its pods are gone."""
    step: int
    """Number of the current step, counted from 1."""
    weight: int
    """Percentage of the requests that the canary takes now."""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Start of the current step's share; in the phases Undone and Promoted, the time of that
    phase."""
    failures: int | None = None
    """Number of consecutive failed checks."""
    failed_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Time of the last failed check."""
    fault: str | None = None
    """Reason why the operator undid the canary. Another spec.canary.change is tried again."""
    waiting_since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """Start of a wait that no person's decision ends."""
    pods: str | None = None
    """Digest of the canary's pod template; the steps begin anew only if the digest changes."""
    replicas: int | None = None
    """Number of pods that the canary should have."""
    ready_replicas: int | None = None
    """Number of ready pods of the canary."""
    beside: int | None = None
    """Replicas besides the canary that can serve all requests; an autoscaler removes none of them
    while the canary takes requests."""
    decided: CanaryDecidedStatus | None = None
    """The last decision; it does not apply to another change."""


class RoleStatus(ApiModel):
    """The pods of one role."""

    name: str
    """Name of their AtomDeployment."""
    replicas: int
    """Pods that are asked for."""
    ready_replicas: int
    """Ready pods."""
    revision: str | None = None
    """Hash of their pod template."""


class DisaggregationStatus(ApiModel):
    """The pods of spec.disaggregation by role."""

    prefill: RoleStatus | None = None
    """The pods that compute prompts; absent until they are created."""
    decode: RoleStatus
    """The pods that answer."""


class RolloutStatus(ApiModel):
    """Progress of the latest revision's rollout."""

    strategy: Literal["Surge", "InPlace", "Recreate"]
    """The strategy in effect."""
    reason: str
    """Reason for the strategy."""
    updated: int
    """Pods of the latest revision."""
    ready: int
    """Ready pods of any revision."""
    ending: int | None = None
    """Old prefill pods that still end: decode pods of a new revision start after them. Absent if
    none does."""
    failed_revision: str | None = None
    """The revision of the spec that did not become ready, so that the last ready revision runs.
    Absent while the revision of the spec runs."""
    waits: str | None = None
    """Reason why a requested change of the pods has not begun: its window, the AtomDeployments that
    come first, or a changed default that failed elsewhere. Absent if no change waits."""


class AtomDeploymentStatus(ApiModel):
    """Observed state."""

    observed_generation: int
    """The metadata.generation that this status describes."""
    replicas: int = 0
    """Pods that exist."""
    ready_replicas: int = 0
    """Ready pods."""
    serving: str | None = None
    """Ready replicas out of the requested ones, such as 2/3; a column of kubectl get."""
    selector: str = ""
    """Label selector of the pods, for the scale subresource."""
    url: str | None = None
    """Address of the OpenAI-compatible API inside the cluster."""
    revision: str | None = None
    """Hash of the pod template that is applied."""
    capacity: CapacityStatus | None = None
    """The capacity of one replica; absent until a plan or an engine reports it."""
    speculation: SpeculationStatus | None = None
    """Results of spec.engine.speculative, updated once a minute; absent until a token was
    drafted."""
    steps: StepsStatus | None = None
    """Times of steps with spec.slo, updated once a minute; absent unless the card has a measured
    table."""
    sleep: SleepStatus | None = None
    """Sleep of the pods by spec.autoscaling.idle, updated once a minute; absent without it."""
    adapters: Annotated[list[AdapterStatus], Field(json_schema_extra=keyed_by("name"))] | None = (
        None
    )
    """State of the adapters of spec.adapters; absent if there are none."""
    adapters_omitted: int | None = None
    """Number of adapters that are omitted here to bound the size of the status; absent if none
    is."""
    rollout: RolloutStatus | None = None
    """The latest rollout; absent until a Deployment exists."""
    canary: CanaryStatus | None = None
    """Progress of the canary; absent if there is none."""
    disaggregation: DisaggregationStatus | None = None
    """The pods by role; absent without spec.disaggregation."""
    conditions: Annotated[
        list[Condition],
        Field(json_schema_extra=keyed_by("type")),
    ]
    """Always Accepted, CapacityFits, Scheduled, ModelLoaded, CapacityMatched, Progressing,
    Available, Degraded and Ready. Only if they apply: CapacityLimited, IntegrationsReady,
    AdaptersReady, CanaryProgressing, DevicesHealthy, Suspended, PrefillReady, DecodeReady,
    PairCompatible, Reconciling, Stalled."""
