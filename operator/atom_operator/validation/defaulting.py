"""Spec + operator defaults → EngineOptions, ModelLocation: every open choice made, once.

Defaults are those of the options' declarations, and are not written into the CRD: the operator
writes nothing into a spec that Git owns. Pure; called by reconcile after validation.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic.alias_generators import to_snake

from atom.sizing.options.cache import CacheOptions
from atom.sizing.options.drafting import usual_drafts
from atom.sizing.options.execution import ExecutionOptions
from atom.sizing.options.images import ImageOptions
from atom.sizing.options.model import ModelOptions
from atom.sizing.options.option import options_of
from atom.sizing.options.parallelism import EPLBFlags, NodePlace, ParallelOptions
from atom.sizing.options.scheduling import SchedulerOptions
from atom_operator.api.v1alpha1 import AtomDeploymentSpec
from atom_operator.api.v1alpha1.atomdeployment import BucketSpec, ModelImageSpec
from atom_operator.api.v1alpha1.cache import AUTO_SIZE, KVCacheSpec
from atom_operator.api.v1alpha1.common import quantity_bytes
from atom_operator.api.v1alpha1.disaggregation import DisaggregationSpec
from atom_operator.api.v1alpha1.engine import ApiKeySecretRef, EnvVar, SpeculativeSpec
from atom_operator.api.v1alpha1.integration_fields import AutoscalingSpec
from atom_operator.api.v1alpha1.lora import LoraSpec
from atom_operator.api.v1alpha1.option_field import default_of, from_spec
from atom_operator.constants import MODEL_IMAGE_DIRECTORY, MODELS_DIRECTORY
from atom_operator.domain import (
    Adapter,
    BucketAccess,
    DiskTier,
    Download,
    EngineOptions,
    KvTransfer,
    LoraOptions,
    ModelImage,
    ModelLocation,
    PageOptions,
    ServingOptions,
    SourceKind,
    SpeculativeOptions,
    TransferRole,
)
from atom_operator.validation.engine_arguments import options_given

_T = TypeVar("_T")

DEFAULT_DRAIN_SECONDS = 120
_IDLE_SECONDS = 600  # without a request, before a pod sleeps
# Where images of models have their files, by the custom of modelcars.
_IMAGE_FOLDER = "/models"


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
    max_loras = _or(lora.max_loras, default_of("max_loras"))
    return LoraOptions(
        max_loras=max_loras,
        max_rank=_or(lora.max_lora_rank, default_of("max_lora_rank")),
        max_cpu_loras=_or(lora.max_cpu_loras, max(max_loras, default_of("max_cpu_loras"))),
        claims=tuple(claim for claim in lora.claims or () if claim != model_claim),
        experts=bool(lora.experts),
    )


def _folder_name(revision: str | None) -> str:
    """Return the folder name of a revision; branches may have slashes."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", revision or "main").lstrip(".") or "main"


def resolve_options(spec: AtomDeploymentSpec, *, image: str) -> EngineOptions:
    """Resolve the engine's options; `image`: of spec.engine.image or the operator's default."""
    drafts = spec.engine.speculative
    return EngineOptions(
        serving=_serving_options(spec, image),
        model=_resolved(ModelOptions, spec),
        scheduler=_scheduler_options(spec),
        cache=_resolved(CacheOptions, spec),
        execution=_resolved(ExecutionOptions, spec),
        images=_resolved(ImageOptions, spec),
        parallel=_parallel_options(spec),
        balance=_resolved(EPLBFlags, spec),
        nodes=_resolved(NodePlace, spec).count,
        speculative=SpeculativeOptions() if drafts is None else _speculative_options(drafts),
        lora=resolve_lora(spec.engine.lora, locate_model(spec).claim),
    )


def _resolved(part: type[_T], spec: AtomDeploymentSpec) -> _T:
    """Return a part of the engine's options, with the values of the fields that set them, or of
    the spec's own arguments if no field does."""
    given = options_given(part, tuple(spec.engine.extra_args or ()))
    for option in options_of(part):
        if option.crd is not None and option.crd.text:
            value = _value_at(spec, option.crd.path or "")
            if value is not None:
                given[option.attribute] = from_spec(option, value)
    return part(**given)


def _value_at(spec: AtomDeploymentSpec, path: str) -> Any:
    value: Any = spec
    for name in _attributes(path):
        value = getattr(value, name)
    return value


@cache
def _attributes(path: str) -> tuple[str, ...]:
    return tuple(map(to_snake, path.split(".")))


def _scheduler_options(spec: AtomDeploymentSpec) -> SchedulerOptions:
    """Return the scheduler's options. A step holds every running sequence: the number that is given
    bounds the default of the other."""
    found, asked = _resolved(SchedulerOptions, spec), spec.engine
    sequences, tokens = found.max_num_seqs, found.max_num_batched_tokens
    if asked.max_num_seqs is None:
        sequences = min(sequences, tokens)
    if asked.max_num_batched_tokens is None:
        tokens = max(sequences, tokens)
    return replace(found, max_num_seqs=sequences, max_num_batched_tokens=tokens)


def _parallel_options(spec: AtomDeploymentSpec) -> ParallelOptions:
    """Return the ranks of a replica. Copies of the model that have whole experts share them."""
    found = _resolved(ParallelOptions, spec)
    shares = found.expert_parallel and found.data_parallel_size > 1
    return replace(found, dp_attention=shares)


def _serving_options(spec: AtomDeploymentSpec, image: str) -> ServingOptions:
    engine, kv = spec.engine, spec.cache.kv
    is_auto = kv is not None and kv.host_memory == AUTO_SIZE
    return ServingOptions(
        image=image,
        served_name=served_name(spec),
        drain_seconds=_or(spec.rollout.drain_seconds, DEFAULT_DRAIN_SECONDS),
        handover=_or(spec.rollout.handover, False),
        extra_args=tuple(engine.extra_args or ()),
        env=tuple(_env(item) for item in engine.env or ()),
        pull_secrets=tuple(item.name for item in engine.image_pull_secrets or ()),
        api_key_secret=_api_key(engine.api_key_secret_ref),
        sleep_idle_seconds=_sleep_idle_seconds(spec.autoscaling),
        host_tier_bytes=0 if kv is None or is_auto else quantity_bytes(kv.host_memory),
        pages=PageOptions(
            disk_tier=_disk_tier(kv),
            host_rule="not chosen yet" if is_auto else None,
            transfer=_transfer(spec.disaggregation),
        ),
    )


def _disk_tier(asked: KVCacheSpec | None) -> DiskTier | None:
    if asked is None or asked.disk is None:
        return None
    return DiskTier(quantity_bytes(asked.disk.size), asked.disk.claim)


def _transfer(asked: DisaggregationSpec | None) -> KvTransfer | None:
    if asked is None:
        return None
    transport = None if asked.transport in (None, "Auto") else asked.transport.lower()
    if asked.prefill_for is not None:
        return KvTransfer(
            role=TransferRole.PREFILL, decode_name=asked.prefill_for, transport=transport
        )
    least = asked.decide.min_non_cached_tokens if asked.decide is not None else None
    return KvTransfer(role=TransferRole.DECODE, transport=transport, least_tokens=least)


def _speculative_options(asked: SpeculativeSpec) -> SpeculativeOptions:
    return SpeculativeOptions(
        tokens=_or(asked.tokens, usual_drafts(asked.method)),
        method=asked.method,
        adaptive=_or(asked.adaptive, True),
        model=_draft_model(asked),
    )


def _sleep_idle_seconds(asked: AutoscalingSpec | None) -> int | None:
    if asked is None or asked.idle is None:
        return None
    return _or(asked.idle_seconds, _IDLE_SECONDS)


def _api_key(reference: ApiKeySecretRef | None) -> tuple[str, str] | None:
    return (reference.name, reference.key) if reference else None


def _draft_model(asked: SpeculativeSpec) -> str | None:
    """Name the draft model as the engine's command line does."""
    return None if asked.draft_model is None else asked.draft_model.partition("://")[2]


def _or(value: _T | None, default: _T) -> _T:
    return default if value is None else value


def _env(variable: EnvVar) -> dict[str, Any]:
    return variable.model_dump(by_alias=True, exclude_none=True)
