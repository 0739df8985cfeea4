"""Spec + operator defaults → EngineOptions, ModelLocation: every open choice made, once.

Defaults are defined here and not in the CRD, so that the operator writes nothing into a spec that
Git owns. Pure; called by reconcile after validation.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.atomdeployment import BucketSpec, ModelImageSpec
from atom_operator.api.v1alpha1.engine import ApiKeySecretRef, EnvVar, SpeculativeSpec
from atom_operator.api.v1alpha1.integration_fields import AutoscalingSpec
from atom_operator.api.v1alpha1.lora import LoraSpec
from atom_operator.constants import MODEL_IMAGE_DIRECTORY, MODELS_DIRECTORY
from atom_operator.domain import (
    Adapter,
    BucketAccess,
    Download,
    EngineOptions,
    LoraOptions,
    ModelImage,
    ModelLocation,
    SourceKind,
)

_T = TypeVar("_T")

DEFAULT_DRAIN_SECONDS = 120
# The engine's own defaults; a contract test compares.
_MAX_NUM_SEQS = 512
_MAX_NUM_BATCHED_TOKENS = 16_384
# Of adapters: the engine's rank, and enough of them that a list can grow without a rollout.
_MAX_LORAS, _MAX_LORA_RANK, _MAX_CPU_LORAS = 4, 16, 16
_IDLE_SECONDS = 600  # without a request, before a pod sleeps
# Where images of models have their files, by the custom of modelcars.
_IMAGE_FOLDER = "/models"
# Drafted by look-up, which costs next to nothing: the engine's own default.
_NGRAM_TOKENS = 5


def locate_model(spec: AtomDeploymentSpec, *, image_volumes: bool = False) -> ModelLocation:
    """Resolve spec.model.source to a pod's view of it. image_volumes: whether the API server
    supports them."""
    scheme, _, rest = spec.model.source.partition("://")
    if scheme == SourceKind.PATH:
        return ModelLocation(SourceKind.PATH, rest)
    if scheme == SourceKind.CLAIM:
        claim = rest.partition("/")[0]
        return ModelLocation(SourceKind.CLAIM, f"{MODELS_DIRECTORY}/{rest}", claim=claim)
    if scheme == SourceKind.IMAGE:
        return _model_image(rest, spec.model.image or ModelImageSpec(), image_volumes)
    secret, revision = spec.model.token_secret_ref, spec.model.revision
    token = (secret.name, secret.key) if secret else None
    bucket, model = None, rest
    if scheme == SourceKind.BUCKET:
        bucket, model = _bucket_access(spec.model.s3 or BucketSpec()), spec.model.source
    if spec.cache.weights is not None:
        claim, stored = spec.cache.weights.claim, model.replace("://", "/").replace("/", "--")
        folder = f"{MODELS_DIRECTORY}/{claim}/{stored}/{_folder_name(revision)}"
        download = Download(model, revision, token, bucket, spec.cache.weights.prune)
        return ModelLocation(SourceKind.CLAIM, folder, claim=claim, download=download)
    kind = SourceKind.HUB if bucket is None else SourceKind.BUCKET
    return ModelLocation(kind, model, revision=revision, token_secret=token, bucket=bucket)


def _bucket_access(asked: BucketSpec) -> BucketAccess:
    secret = asked.secret_ref.name if asked.secret_ref else None
    return BucketAccess(asked.endpoint, asked.region, secret)


def _model_image(reference: str, asked: ModelImageSpec, image_volumes: bool) -> ModelLocation:
    folder = asked.folder or _IMAGE_FOLDER
    image = ModelImage(reference, folder, _or(asked.volume, image_volumes))
    return ModelLocation(SourceKind.IMAGE, f"{MODEL_IMAGE_DIRECTORY}{folder}", image=image)


def locate_adapters(spec: AtomDeploymentSpec) -> tuple[Adapter, ...]:
    """Return where pods find each adapter."""
    return tuple(Adapter(item.name, _adapter_path(item.source)) for item in spec.adapters or ())


def _adapter_path(source: str) -> str:
    scheme, _, rest = source.partition("://")
    return f"{MODELS_DIRECTORY}/{rest}" if scheme == SourceKind.CLAIM else rest


def served_name(spec: AtomDeploymentSpec) -> str:
    """Return the model's name in the HTTP API."""
    return spec.model.served_name or locate_model(spec).default_name


def resolve_lora(lora: LoraSpec | None, model_claim: str | None = None) -> LoraOptions | None:
    """Resolve the pods' room for adapters. model_claim: a claim that is mounted anyway."""
    if lora is None:
        return None
    max_loras = _or(lora.max_loras, _MAX_LORAS)
    return LoraOptions(
        max_loras=max_loras,
        max_rank=_or(lora.max_lora_rank, _MAX_LORA_RANK),
        max_cpu_loras=_or(lora.max_cpu_loras, max(max_loras, _MAX_CPU_LORAS)),
        claims=tuple(claim for claim in lora.claims or () if claim != model_claim),
        experts=bool(lora.experts),
    )


def _folder_name(revision: str | None) -> str:
    """Return the folder name of a revision; branches may have slashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", revision or "main").lstrip(".") or "main"


def resolve_options(spec: AtomDeploymentSpec, *, image: str) -> EngineOptions:
    """Resolve the engine's options; `image`: of spec.engine.image or the operator's default."""
    engine = spec.engine
    # A step holds every running sequence: the one that is given bounds the other's default.
    max_num_seqs = _or(
        engine.max_num_seqs, min(_MAX_NUM_SEQS, _or(engine.max_num_batched_tokens, _MAX_NUM_SEQS))
    )
    batched = max(max_num_seqs, _MAX_NUM_BATCHED_TOKENS)
    return EngineOptions(
        image=image,
        served_name=served_name(spec),
        max_model_len=engine.max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=_or(engine.max_num_batched_tokens, batched),
        block_size=_or(engine.block_size, 16),
        gpu_memory_utilization=_or(engine.gpu_memory_utilization, 0.9),
        kv_cache_dtype=engine.kv_cache_dtype or "auto",
        prefix_caching=_or(engine.prefix_caching, True),
        reproducible=_or(engine.reproducible, False),
        scheduling_policy=engine.scheduling_policy or "mixed",
        tensor_parallel=_or(spec.parallelism.tensor, 1),
        data_parallel=_or(spec.parallelism.data, 1),
        nodes=_or(spec.parallelism.nodes, 1),
        drain_seconds=_or(spec.rollout.drain_seconds, DEFAULT_DRAIN_SECONDS),
        handover=_or(spec.rollout.handover, False),
        extra_args=tuple(engine.extra_args or ()),
        env=tuple(_env(item) for item in engine.env or ()),
        expert_parallel=_or(spec.parallelism.expert, False),
        speculative_tokens=_speculative_tokens(engine.speculative),
        speculative_method=engine.speculative.method if engine.speculative else None,
        speculative_adaptive=engine.speculative is None or _or(engine.speculative.adaptive, True),
        draft_model=_draft_model(engine.speculative),
        pull_secrets=tuple(item.name for item in engine.image_pull_secrets or ()),
        api_key_secret=_api_key(engine.api_key_secret_ref),
        lora=resolve_lora(engine.lora, locate_model(spec).claim),
        sleep_idle_seconds=_sleep_idle_seconds(spec.autoscaling),
    )


def _sleep_idle_seconds(asked: AutoscalingSpec | None) -> int | None:
    if asked is None or asked.idle is None:
        return None
    return _or(asked.idle_seconds, _IDLE_SECONDS)


def _api_key(reference: ApiKeySecretRef | None) -> tuple[str, str] | None:
    return (reference.name, reference.key) if reference else None


def _speculative_tokens(speculative: SpeculativeSpec | None) -> int:
    if speculative is None:
        return 0
    return _or(speculative.tokens, _NGRAM_TOKENS if speculative.method == "ngram" else 1)


def _draft_model(speculative: SpeculativeSpec | None) -> str | None:
    """Name the draft model as the engine's command line does."""
    if speculative is None or speculative.draft_model is None:
        return None
    return speculative.draft_model.partition("://")[2]


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _env(variable: EnvVar) -> dict[str, Any]:
    return variable.model_dump(by_alias=True, exclude_none=True)
