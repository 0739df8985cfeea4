"""A spec's request with every default resolved: model, engine, device; or its problems."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from atom.sizing import ModelFacts, Sharding
from atom.sizing.options.cache import CacheOptions
from atom.sizing.options.execution import ExecutionOptions
from atom.sizing.options.images import ImageOptions
from atom.sizing.options.model import ModelOptions
from atom.sizing.options.option import Option
from atom.sizing.options.parallelism import EPLBFlags, ParallelOptions
from atom.sizing.options.scheduling import SchedulerOptions
from atom_operator.constants import Reason
from atom_operator.domain.devices import DeviceClaim


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """Report why a spec is not accepted: the field, the fault, and the remedy."""

    field: str
    message: str
    reason: Reason = Reason.INVALID_SPEC

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


class SourceKind(StrEnum):
    """Scheme of spec.model.source."""

    HUB = "hf"
    CLAIM = "pvc"
    PATH = "path"
    BUCKET = "s3"
    IMAGE = "oci"


@dataclass(frozen=True, slots=True)
class BucketAccess:
    """Describe access to a bucket. secret: the name of the Secret with the credentials."""

    endpoint: str | None = None
    region: str | None = None
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class ModelImage:
    """An image that holds a model. folder: in the image; by_volume: else by a sidecar."""

    reference: str
    folder: str
    by_volume: bool

    @property
    def name(self) -> str:
        """Return the last part of its repository."""
        return self.reference.partition("@")[0].rsplit("/", 1)[-1].partition(":")[0]


@dataclass(frozen=True, slots=True)
class Download:
    """Describe a Job's download from the hub or a bucket, before pods mount it."""

    repository: str
    revision: str | None = None
    token_secret: tuple[str, str] | None = None  # name, key
    bucket: BucketAccess | None = None
    prune: str | None = None  # when to remove unused folders from the claim


@dataclass(frozen=True, slots=True)
class JobOptions:
    """Configure the Jobs that prepare a model. `template` is merged over theirs."""

    template: Mapping[str, Any] | None = None
    active_deadline_seconds: int | None = None


@dataclass(frozen=True, slots=True)
class ModelLocation:
    """Locate the weights for the pods, and give the engine's --model argument."""

    kind: SourceKind
    argument: str
    claim: str | None = None
    revision: str | None = None
    token_secret: tuple[str, str] | None = None  # name, key
    download: Download | None = None  # how they get there, when that is ours to do
    bucket: BucketAccess | None = None  # that pods download from themselves
    image: ModelImage | None = None  # that pods mount

    @property
    def source(self) -> str:
        """Name the model apart from where pods find it: a repository, an image or a folder."""
        if self.image is not None:
            return self.image.reference
        return self.download.repository if self.download else self.argument

    @property
    def default_name(self) -> str:
        if self.image is not None:
            return self.image.name
        return self.source.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class LoraOptions:
    """Hold the pods' room for adapters. claims: mounted for adapters alone."""

    max_loras: int
    max_rank: int
    max_cpu_loras: int
    claims: tuple[str, ...] = ()
    experts: bool = False


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter by its name in the HTTP API. path: where pods find it, a folder or a hub id."""

    name: str
    path: str


_SPARE_PARTS = 8  # of files that are written before others are removed, and of temporary files


@dataclass(frozen=True, slots=True)
class DiskTier:
    """The KV cache's files behind the host's memory. claim: whose volume they are on; None for the
    node's disk, with files of each pod."""

    size_bytes: int
    claim: str | None = None

    @property
    def node_limit_bytes(self) -> int:
        """Return the bytes of the node's disk that a pod's files may take; 0 with a claim. The
        kubelet evicts a pod that exceeds them, so they leave room for files that are removed a
        moment later."""
        return 0 if self.claim is not None else self.size_bytes + self.size_bytes // _SPARE_PARTS


class TransferRole(StrEnum):
    """The part of pods if prompts and answers are computed apart; named as in the labels of llm-d
    and in the flag of the engine's roles."""

    PREFILL = "prefill"
    DECODE = "decode"


@dataclass(frozen=True, slots=True, kw_only=True)
class KvTransfer:
    """The exchange of KV pages with the pods of the other role. decode_name: of prefill pods, the
    AtomDeployment that they compute prompts for; transport: None for the fastest that both have;
    least_tokens: of a prompt that is divided, None for the engine's default."""

    role: TransferRole
    decode_name: str | None = None
    transport: str | None = None
    least_tokens: int | None = None

    @property
    def computes_prompts(self) -> bool:
        """Return whether the pods compute prompts for other pods."""
        return self.role is TransferRole.PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """State where KV pages go beside the device and the host's memory: into files, and to pods of
    the other role. host_rule: why the host's memory has its size, if the operator chooses it; None
    if the spec states it."""

    disk_tier: DiskTier | None = None
    host_rule: str | None = None
    transfer: KvTransfer | None = None


def argument_words(arguments: Iterable[str]) -> list[str]:
    """Return the words of a command line, options and their values apart. Options have dashes,
    also if the line has their other spelling, such as --enable_sleep_mode."""
    words = [word for argument in arguments for word in argument.split("=")]
    return [word.replace("_", "-") if word.startswith("--") else word for word in words]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Configure the server in the pods, and its container. handover: open answers of an ending pod
    continue on another. pull_secrets: those that the spec names. api_key_secret: name and key.
    sleep_idle_seconds: without a request; None: it never sleeps. host_tier_bytes: of the KV cache's
    tier in the host's memory, in each pod; 0 without one. pages: where else they go."""

    image: str
    served_name: str
    drain_seconds: int
    handover: bool = False
    extra_args: tuple[str, ...] = ()
    env: tuple[Mapping[str, Any], ...] = ()
    pull_secrets: tuple[str, ...] = ()
    api_key_secret: tuple[str, str] | None = None
    sleep_idle_seconds: int | None = None
    host_tier_bytes: int = 0
    pages: PageOptions = field(default_factory=PageOptions)

    @property
    def disk_tier(self) -> DiskTier | None:
        """Return the KV cache's files behind the host's memory, if there are any."""
        return self.pages.disk_tier if self.host_tier_bytes else None

    @property
    def transfer(self) -> KvTransfer | None:
        """Return the exchange of KV pages; None if pods compute both prompts and answers."""
        return self.pages.transfer

    @property
    def argument_words(self) -> list[str]:
        """Return the spec's own arguments, options and their values apart."""
        return argument_words(self.extra_args)

    @property
    def may_sleep(self) -> bool:
        """Return whether engines can sleep: automatically, or by a call."""
        return self.sleep_idle_seconds is not None or "--enable-sleep-mode" in self.argument_words


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculativeOptions:
    """Configure drafts. tokens: drafted per step; 0 for none. adaptive: as many as pay off, up to
    this limit. model: that drafts, of methods eagle3 and draft_model; facts: its shape, if it is
    known."""

    tokens: int = 0
    method: Literal["ngram", "suffix", "mtp", "eagle3", "draft_model"] | None = None
    adaptive: bool = True
    model: str | None = None
    facts: ModelFacts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The engine's options with every default resolved; None leaves the choice to the engine.

    model, scheduler, cache, execution, images, parallel and balance are the engine's own parts.
    nodes: over which a replica's devices are spread. lora: None if no adapters are served."""

    serving: ServingOptions
    model: ModelOptions = field(default_factory=ModelOptions)
    scheduler: SchedulerOptions = field(default_factory=SchedulerOptions)
    cache: CacheOptions = field(default_factory=CacheOptions)
    execution: ExecutionOptions = field(default_factory=ExecutionOptions)
    images: ImageOptions = field(default_factory=ImageOptions)
    parallel: ParallelOptions = field(default_factory=ParallelOptions)
    balance: EPLBFlags = field(default_factory=EPLBFlags)
    nodes: int = 1
    speculative: SpeculativeOptions = field(default_factory=SpeculativeOptions)
    lora: LoraOptions | None = None

    def value(self, option: Option) -> Any:
        """Return the value of an engine's option that a field of spec.engine sets."""
        parts = (
            *(self.model, self.scheduler, self.cache),
            *(self.execution, self.images, self.parallel, self.balance),
        )
        part = next(each for each in parts if type(each) is option.part)
        return getattr(part, option.attribute)

    @property
    def reads_images(self) -> bool:
        """Return whether engines load the image encoder of a model that has one."""
        return self.images.reads_images and not self.execution.reproducible

    @property
    def tensor_parallel(self) -> int:
        """Return the devices of one copy of the model, over all the replica's nodes."""
        return self.parallel.tensor_parallel_size

    @property
    def data_parallel(self) -> int:
        """Return the copies of the model in each pod, or in a group those that share experts."""
        return self.parallel.data_parallel_size

    @property
    def expert_parallel(self) -> bool:
        """Return whether each rank has whole experts."""
        return self.parallel.expert_parallel

    @property
    def shares_experts(self) -> bool:
        """Return whether copies of the model have a part of its experts each, for all."""
        return self.expert_parallel and self.data_parallel > 1

    @property
    def sharding(self) -> Sharding:
        """Return how a copy of the model is divided over devices."""
        sharing = self.data_parallel if self.shares_experts else 1
        return Sharding(
            self.tensor_parallel, self.expert_parallel, sharing, redundant=self.redundant_experts
        )

    @property
    def redundant_experts(self) -> int:
        """Return the second copies of experts that --eplb-config asks for."""
        if not (self.shares_experts and self.balance.enable_eplb):
            return 0
        try:
            asked = json.loads(self.balance.eplb_config or "{}")
        except ValueError:  # which the engine refuses
            return 0
        count = asked.get("num_redundant_experts", 0) if isinstance(asked, dict) else 0
        return max(0, count) if isinstance(count, int) else 0

    @property
    def devices(self) -> int:
        """Count the devices of one replica."""
        return self.tensor_parallel * self.data_parallel

    @property
    def copies_per_pod(self) -> int:
        """Count the copies of the model in a pod; one where the pods of a group share it."""
        return max(1, self.data_parallel // self.nodes)

    @property
    def devices_per_pod(self) -> int:
        return self.devices // self.nodes


@dataclass(frozen=True, slots=True)
class Accelerator:
    """The device of a replica. `memory_bytes` is per device; None when it is not known."""

    type: Literal["amd", "cpu"]
    memory_bytes: int | None
    product: str | None = None
    resource_name: str | None = None
    device_ids: tuple[str, ...] = ()  # PCI ids of the product, for node affinity
    claim: DeviceClaim | None = None  # if pods claim them; resource_name is its class then
    device_groups: tuple[int, ...] = ()  # numeric ids of the groups that own the device files
