"""Names that other people see: API group, labels, annotations, condition types and reasons.

Changing one is an API change. Knows nothing and is imported by everything.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

GROUP: Final = "serving.atom.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "AtomDeployment"
PLURAL: Final = "atomdeployments"
SINGULAR: Final = "atomdeployment"
SHORT_NAME: Final = "atomd"
PROFILE_KIND: Final = "AtomProfile"
PROFILE_PLURAL: Final = "atomprofiles"
DEFAULT_PROFILE: Final = "default"  # of AtomDeployments without another one
API_VERSION: Final = f"{GROUP}/{VERSION}"

FIELD_MANAGER: Final = "atom-operator"
# Holds spec.replicas between our giving it up and an autoscaler's first change.
HANDOVER_MANAGER: Final = "atom-operator-handover"
ENGINE_NAME: Final = "atom-engine"
ENGINE_CONTAINER: Final = "engine"
ENGINE_PORT: Final = 8000
JOB_CONTAINER: Final = "prepare"
LEARNED_KEY: Final = "evidence.json"
INSPECTED_KEY: Final = "config.json"  # of the ConfigMap that keeps an inspection
ACCEPTED_SPEC_KEY: Final = "spec"  # of the ControllerRevision that keeps the last one in force
ACCEPTED_PROFILE_KEY: Final = "profile"  # of the same: the profile below that spec
REVISION_SPEC_KEY: Final = "revisionSpec"  # of the one that keeps the spec of another revision
ENGINE_PORT_NAME: Final = "http"
# Of the engine's prefix cache events, and of their replay.
KV_EVENTS_PORT: Final = 5557
KV_EVENTS_REPLAY_PORT: Final = 5558
# Of prefill pods: where decode pods read KV pages. Copies of the model in a pod count up from it.
KV_TRANSFER_PORT: Final = 5600
KV_TRANSFER_PORT_NAME: Final = "kv-transfer"
PICKER_NAME: Final = "atom-endpoint-picker"
PICKER_COMPONENT: Final = "endpoint-picker"
PICKER_PORT: Final = 9002
FRONTEND_NAME: Final = "atom-frontend"
FRONTEND_COMPONENT: Final = "frontend"
MODELS_DIRECTORY: Final = "/models"  # claims are mounted below it
MODEL_IMAGE_DIRECTORY = "/model-image"  # the root of an image that holds a model

LABEL_PROFILE: Final = f"{GROUP}/profile"  # of a namespace: the AtomProfile of its objects
LABEL_DEPLOYMENT: Final = f"{GROUP}/deployment"
# In a replica of several pods: the one that serves HTTP, and those that only compute.
LABEL_ROLE: Final = f"{GROUP}/role"
ROLE_LEADER: Final = "leader"
ROLE_WORKER: Final = "worker"
# Of pods, and in llm-d's words: whether they compute prompts for others, or read their pages.
LABEL_TRANSFER_ROLE: Final = f"{GROUP}/disaggregation-role"
LABEL_LLM_D_ROLE: Final = "llm-d.ai/role"
LABEL_NAME: Final = "app.kubernetes.io/name"
LABEL_INSTANCE: Final = "app.kubernetes.io/instance"
LABEL_COMPONENT: Final = "app.kubernetes.io/component"
LABEL_PART_OF: Final = "app.kubernetes.io/part-of"
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
LABEL_LEARNED: Final = f"{GROUP}/learned"  # ConfigMaps with the engines' measurements
LABEL_JOB_FOR: Final = f"{GROUP}/job-for"  # Jobs and their pods: the AtomDeployment that asked
# Of a pod, before the name of a LoRA adapter that it serves.
LABEL_ADAPTER_PREFIX: Final = f"adapter.{GROUP}/"
ADAPTER_SERVED: Final = "served"
ANNOTATION_REVISION: Final = f"{GROUP}/revision"
# Of the spec for which a workload's revision (the failed one, after a rollback) was made.
ANNOTATION_SPEC_DIGEST: Final = f"{GROUP}/spec-digest"
# Of pods: limits that they have because a ResourceQuota counts them, as container.resource.
ANNOTATION_QUOTA_LIMITS: Final = f"{GROUP}/quota-limits"
ANNOTATION_REPLICAS: Final = f"{GROUP}/replicas-owner"
REPLICAS_OF_AUTOSCALER: Final = "autoscaler"
ANNOTATION_ROLLOUT_REASON: Final = f"{GROUP}/rollout-reason"
ANNOTATION_FAILED_REVISION: Final = f"{GROUP}/failed-revision"
ANNOTATION_FAILURE: Final = f"{GROUP}/failure"
ANNOTATION_STARTUP_BUDGET: Final = f"{GROUP}/startup-budget-seconds"
ANNOTATION_APPLIED: Final = f"{GROUP}/applied"  # digest of the manifest that was applied last
# Of a workload whose spec names no image: the operator's default that it was rendered for.
ANNOTATION_DEFAULT_IMAGE: Final = f"{GROUP}/default-image"
# Of a workload: its own spec's request, the defaults below it, and which of them it follows.
ANNOTATION_ORIGIN: Final = f"{GROUP}/origin"
# Kubernetes' own: of the pods of a ReplicaSet those with the lowest number end first.
ANNOTATION_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
# Of a pod: the newest list of adapters when the pod was last notified of one.
ANNOTATION_ADAPTERS: Final = f"{GROUP}/adapters"
ADAPTERS_KEY: Final = "adapters.json"  # of the ConfigMap that pods follow
ANNOTATION_MODEL: Final = f"{GROUP}/model"
# Of a Job's spec; under the name job-digest older operators wrote one of its pods alone.
ANNOTATION_JOB_DIGEST: Final = f"{GROUP}/job-spec-digest"
# Of a Job that has done its work while another container of its pod runs: its report.
ANNOTATION_JOB_RESULT: Final = f"{GROUP}/job-result"

# The Lease of operators of the whole cluster; the label of those of single namespaces, and the mark
# of a Lease whose holder reconciles.
CLUSTER_LEASE: Final = "atom-operator"
LABEL_WATCHES: Final = f"{GROUP}/watches"
WATCHES_NAMESPACES: Final = "namespaces"
ANNOTATION_RECONCILES: Final = f"{GROUP}/reconciles"
# Of an object in every namespace that a release watches by name: where its Lease is.
LABEL_POINTS_TO_LEASE: Final = f"{GROUP}/points-to-lease"
ANNOTATION_LEASE: Final = f"{GROUP}/lease"

# Of the AtomDeployment of prefill pods: the request for decode pods that they go with.
ANNOTATION_GOES_WITH: Final = f"{GROUP}/goes-with"

# Service names must be DNS labels; 40 characters leave room for the suffixes of children.
MAX_NAME_LENGTH: Final = 40

# Of a workload: when its revision was first requested.
ANNOTATION_ASKED_AT: Final = f"{GROUP}/rollout-asked-at"
# Of a LeaderWorkerSet, whose controller has no deadline: how long it may make no progress.
ANNOTATION_DEADLINE: Final = f"{GROUP}/progress-deadline-seconds"
# Of a workload: the replicas that had a place when its revision was first asked for.
ANNOTATION_HAD_PLACE: Final = f"{GROUP}/replicas-with-a-place"

GPU_HOST_GIB = 8  # of the host's memory, that a copy of the model on GPUs requests for itself


class ConditionType(StrEnum):
    """The first eight and Ready are always present; the others only if they apply."""

    ACCEPTED = "Accepted"
    CAPACITY_FITS = "CapacityFits"
    SCHEDULED = "Scheduled"
    MODEL_LOADED = "ModelLoaded"
    CAPACITY_MATCHED = "CapacityMatched"
    PROGRESSING = "Progressing"
    AVAILABLE = "Available"
    DEGRADED = "Degraded"
    CAPACITY_LIMITED = "CapacityLimited"
    INTEGRATIONS_READY = "IntegrationsReady"
    ADAPTERS_READY = "AdaptersReady"
    CANARY_PROGRESSING = "CanaryProgressing"
    SLO_MET = "SloMet"
    STEPS_AS_PREDICTED = "StepsAsPredicted"
    DEVICES_HEALTHY = "DevicesHealthy"
    SUSPENDED = "Suspended"
    PREFILL_READY = "PrefillReady"
    DECODE_READY = "DecodeReady"
    PAIR_COMPATIBLE = "PairCompatible"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    READY = "Ready"


class Reason(StrEnum):
    """Stable, for machines; the message beside it is for people."""

    # Accepted
    VALID = "Valid"
    OVERLAY_IN_EFFECT = "OverlayInEffect"
    INVALID_SPEC = "InvalidSpec"
    MODEL_NOT_SUPPORTED = "ModelNotSupported"
    UNSUPPORTED_BY_ENGINE = "UnsupportedByEngine"
    IMPOSSIBLE_PARALLELISM = "ImpossibleParallelism"
    RESERVED_ARGUMENT = "ReservedArgument"
    NO_ENGINE_IMAGE = "NoEngineImage"
    API_NOT_SERVED = "ApiNotServed"
    TEMPLATE_FORBIDDEN = "TemplateForbidden"
    CLAIM_NOT_SHAREABLE = "ClaimNotShareable"
    PROFILE_NOT_FOUND = "ProfileNotFound"
    INVALID_PROFILE = "InvalidProfile"
    # CapacityFits
    FITS = "Fits"
    WEIGHTS_DO_NOT_FIT = "WeightsDoNotFit"
    CONTEXT_DOES_NOT_FIT = "ContextDoesNotFit"
    MODEL_FACTS_UNKNOWN = "ModelFactsUnknown"
    MODEL_NOT_SIZED = "ModelNotSized"
    MODEL_CONFIG_NOT_FOUND = "ModelConfigNotFound"
    ACCELERATOR_UNKNOWN = "AcceleratorMemoryUnknown"
    NOT_PLANNED = "NotPlanned"
    # Scheduled
    ALL_PODS_SCHEDULED = "AllPodsScheduled"
    INSUFFICIENT_ACCELERATORS = "InsufficientAccelerators"
    UNSCHEDULABLE = "Unschedulable"
    PODS_PENDING = "PodsPending"
    NO_PODS = "NoPods"
    # ModelLoaded
    LOADED = "Loaded"
    LOADING = "Loading"
    LOADING_WEIGHTS = "LoadingWeights"
    LOAD_STALLED = "LoadStalled"
    ENGINE_NOT_READY = "EngineNotReady"
    ENGINE_SILENT = "EngineSilent"
    INSPECTING_MODEL = "InspectingModel"
    DOWNLOADING_WEIGHTS = "DownloadingWeights"
    DOWNLOAD_STALLED = "DownloadStalled"
    DOWNLOAD_FAILED = "DownloadFailed"
    CLAIM_TOO_SMALL = "ClaimTooSmall"
    # CapacityMatched
    MATCHES_PLAN = "MatchesPlan"
    CAPACITY_DRIFT = "CapacityDrift"
    MEASURED_WITHOUT_PLAN = "MeasuredWithoutPlan"
    NOT_MEASURED = "NotMeasured"
    # Progressing
    ROLLING_OUT = "RollingOut"
    COMPLETE = "Complete"
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    PODS_REFUSED = "PodsRefused"
    APPLY_REFUSED = "ApplyRefused"
    APPLY_FAILED = "ApplyFailed"
    NAME_CONFLICT = "NameConflict"
    HELD_BACK = "HeldBack"
    ROLLED_BACK = "RolledBack"
    PAUSED = "Paused"
    ROLLOUT_WAITS = "RolloutWaits"
    # Available and Ready
    SERVING = "Serving"
    NOTHING_READY = "NothingReady"
    REPLICAS_NOT_READY = "ReplicasNotReady"
    SCALED_TO_ZERO = "ScaledToZero"
    # Degraded
    AS_EXPECTED = "AsExpected"
    REPLICAS_CONTESTED = "ReplicasContested"
    POD_FAILING = "PodFailing"
    POD_ENDED = "PodEnded"
    NODE_SILENT = "NodeSilent"
    # CapacityLimited
    NO_ACCELERATORS = "NoAcceleratorsNeeded"
    ENOUGH_ACCELERATORS = "EnoughAccelerators"
    TOO_FEW_ACCELERATORS = "TooFewAccelerators"
    ACCELERATORS_UNKNOWN = "AcceleratorsUnknown"
    # IntegrationsReady
    ALL_RENDERED = "AllRendered"
    AUTOSCALER_NOT_READY = "AutoscalerNotReady"
    ROUTE_NOT_READY = "RouteNotReady"
    PICKER_NOT_READY = "PickerNotReady"
    FRONTEND_NOT_READY = "FrontendNotReady"
    ROUTES_COLLIDE = "RoutesCollide"
    NOT_TAKEN_UP = "NotTakenUp"
    # AdaptersReady
    ADAPTERS_LOADED = "AdaptersLoaded"
    ADAPTERS_LOADING = "AdaptersLoading"
    ADAPTER_REFUSED = "AdapterRefused"
    # CanaryProgressing
    CANARY_STARTING = "CanaryStarting"
    CANARY_STEPPING = "CanaryStepping"
    CANARY_HELD = "CanaryHeld"
    CANARY_STALLED = "CanaryStalled"
    AWAITING_PROMOTION = "AwaitingPromotion"
    PROMOTING = "Promoting"
    PROMOTED = "Promoted"
    CANARY_UNDONE = "CanaryUndone"
    # SloMet
    TARGETS_MET = "TargetsMet"
    KV_CACHE_SHORT = "KVCacheShort"
    SEQUENCES_SHORT = "SequencesShort"
    COMPUTE_SHORT = "ComputeShort"
    STEPS_TOO_LONG = "StepsTooLong"
    NO_LATENCIES = "NoLatencies"
    # StepsAsPredicted
    MATCHES_TABLE = "MatchesTable"
    STEPS_SLOWER = "StepsSlower"
    STEPS_FASTER = "StepsFaster"
    # DevicesHealthy
    DEVICE_UNHEALTHY = "DeviceUnhealthy"
    DEVICE_IN_DOUBT = "DeviceInDoubt"
    NO_OTHER_PLACE = "NoOtherPlace"
    SUCCESSOR_REFUSED = "SuccessorRefused"
    MOVE_REFUSED = "MoveRefused"
    POD_MOVED = "PodMoved"
    UNUSED_WEIGHTS_REMOVED = "UnusedWeightsRemoved"
    GROUP_GAVE_BACK = "GroupGaveBack"
    # PrefillReady, DecodeReady and PairCompatible
    ROLE_SERVES = "RoleServes"
    PREFILL_NOT_READY = "PrefillNotReady"
    DECODE_NOT_READY = "DecodeNotReady"
    PREFILL_FAILED = "PrefillFailed"
    SAME_REVISION = "SameRevision"
    REVISIONS_DIFFER = "RevisionsDiffer"
    # Suspended
    SUSPENDED = "Suspended"
    SUSPENDING = "Suspending"
