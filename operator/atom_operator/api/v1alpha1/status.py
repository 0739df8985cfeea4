"""The status of an AtomDeployment: rebuildable from observation, written once per reconcile."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from atom_operator.api.v1alpha1.common import ApiModel, keyed_by


class Condition(ApiModel):
    """A condition, as metav1.Condition."""

    type: str
    """Which aspect."""
    status: Literal["True", "False", "Unknown"]
    """True, False or Unknown."""
    observed_generation: int
    """The metadata.generation that this was decided for."""
    last_transition_time: Annotated[str, Field(json_schema_extra={"format": "date-time"})]
    """When status last changed."""
    reason: str
    """One CamelCase word for machines."""
    message: str
    """For people: what, where, and the remedy."""


class ConcurrencyStatus(ApiModel):
    """Sequences of one length that run at the same time, per replica."""

    context_tokens: int
    """Length of each sequence in tokens."""
    sequences: int
    """How many fit."""


class CapacityNumbers(ApiModel):
    """Capacity of one replica."""

    # Named by its meaning, not by the alias rule, which would give "Gpu".
    weights_bytes_per_gpu: Annotated[int, Field(alias="weightsBytesPerGPU")]
    """Bytes of weights on each device."""
    kv_bytes_per_token: int
    """Bytes of KV cache per token on each device, in the layers that keep every token."""
    kv_window_bytes_per_sequence: int | None = None
    """Bytes of KV cache of a full sequence on each device in layers with a sliding window, which
    do not grow beyond it; absent where the model has none."""
    kv_tokens: int
    """Tokens that the KV cache holds."""
    blocks: int
    """KV cache blocks."""
    max_sequences: int
    """Sequences of the full context length that run at the same time."""
    max_model_len: int
    """The full context length in tokens."""
    limited_by: str
    """memory, or max_num_seqs when more memory would hold no more sequences."""
    concurrency: list[ConcurrencyStatus]
    """The same at shorter lengths."""


class ActualCapacity(CapacityNumbers):
    """Capacity of one replica, as its engine measured it at the start."""

    revision: str
    """The revision whose engine reported this."""
    drift_percent: int | None = None
    """KV tokens measured against planned: 0 is as planned, -10 a tenth fewer."""


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
    """Drafted tokens that were kept, of a hundred."""
    tokens_per_step: float
    """Tokens of an answer from each of its steps with drafts, on average; 1 is none kept."""


class SleepStatus(ApiModel):
    """Sleep of pods that get no requests."""

    asleep_pods: int
    """Pods that serve and sleep now: the next request wakes one up."""
    wakes: int
    """Times that a request woke one up, since each of the pods began."""


class AdapterOnPod(ApiModel):
    """State of an adapter on a pod that serves."""

    name: str
    """The pod."""
    state: Literal["Loaded", "Loading", "Refused", "Unknown"]
    """Unknown: the pod does not tell."""
    message: str | None = None
    """Why it is refused, in the engine's words. It is tried again."""


class AdapterStatus(ApiModel):
    """State of an adapter of the spec."""

    name: str
    """Its name."""
    loaded_pods: int
    """Pods that serve it."""
    pods: list[AdapterOnPod]
    """The pods, those first that do not serve it; at most 16."""


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
    """The AtomDeployment of its pods."""
    change: str
    """Digest of spec.canary.change."""
    phase: Literal[
        "Starting", "Stepping", "Held", "AwaitingPromotion", "Promoting", "Promoted", "Undone"
    ]
    """Starting: it takes no requests yet. Undone: it has no pods any more."""
    step: int
    """Its step, counted from 1."""
    weight: int
    """Requests of a hundred that it takes now."""
    since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it began to take the step's share; Undone and Promoted: when that was."""
    failures: int | None = None
    """Looks in a row in which its analysis failed."""
    failed_at: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """The last of them."""
    fault: str | None = None
    """Why it was undone, where nobody decided so. Another spec.canary.change is tried again."""
    waiting_since: Annotated[str, Field(json_schema_extra={"format": "date-time"})] | None = None
    """When it began to wait for what no person decides."""
    pods: str | None = None
    """Digest of what its pods are made of; its steps begin anew only when this is another."""
    replicas: int | None = None
    """Pods that it is to have."""
    ready_replicas: int | None = None
    """Of them serve."""
    beside: int | None = None
    """Replicas beside it that can serve all requests; an autoscaler takes none of them while the
    canary takes requests."""
    decided: CanaryDecidedStatus | None = None
    """The last decision, which does nothing beside another change."""


class RolloutStatus(ApiModel):
    """Progress of the latest revision's rollout."""

    strategy: Literal["Surge", "InPlace", "Recreate"]
    """The strategy in effect."""
    reason: str
    """Why it was chosen."""
    updated: int
    """Pods of the latest revision."""
    ready: int
    """Pods that can serve, of any revision."""
    failed_revision: str | None = None
    """The revision that the spec asks for and that could not become ready; what runs is the last
    one that was. Absent while the spec's own revision runs."""
    waits: str | None = None
    """Why the change of the pods that is asked for has not begun: its window, its place in the row
    with those before it, or where a changed default could not become ready. Absent while none
    waits."""


class AtomDeploymentStatus(ApiModel):
    """Observed state."""

    observed_generation: int
    """The metadata.generation that this status describes."""
    replicas: int = 0
    """Pods that exist."""
    ready_replicas: int = 0
    """Pods that can serve."""
    serving: str | None = None
    """Replicas that serve, of those that are asked for, such as 2/3; shown by kubectl get."""
    selector: str = ""
    """Label selector of the pods, for the scale subresource."""
    url: str | None = None
    """Address of the OpenAI-compatible API inside the cluster."""
    revision: str | None = None
    """Hash of the pod template that is applied."""
    capacity: CapacityStatus | None = None
    """The capacity of one replica; absent while neither a plan nor an engine tells it."""
    speculation: SpeculationStatus | None = None
    """What comes of spec.engine.speculative; absent while nothing was drafted. Looked at once a
    minute."""
    sleep: SleepStatus | None = None
    """How the pods sleep with spec.autoscaling.idle; absent without it. Looked at once a
    minute."""
    adapters: Annotated[list[AdapterStatus], Field(json_schema_extra=keyed_by("name"))] | None = (
        None
    )
    """How the adapters of spec.adapters do; absent where there are none."""
    adapters_omitted: int | None = None
    """Adapters at the end of the list that are left out here for the size of the status; absent
    where none is."""
    rollout: RolloutStatus | None = None
    """The latest rollout; absent before there is a Deployment."""
    canary: CanaryStatus | None = None
    """How far the canary is; absent where there is none."""
    conditions: Annotated[
        list[Condition],
        Field(json_schema_extra=keyed_by("type")),
    ]
    """Always Accepted, CapacityFits, Scheduled, ModelLoaded, CapacityMatched, Progressing,
    Available, Degraded and Ready. Only if they apply: CapacityLimited, IntegrationsReady,
    AdaptersReady, CanaryProgressing, DevicesHealthy, Suspended, Reconciling, Stalled."""
