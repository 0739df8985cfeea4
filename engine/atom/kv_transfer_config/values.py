"""KVTransferConfig: the exchange of KV pages with other engines. Torch-free and frozen."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

FLAG = "--kv-transfer-config"
# Private and loopback addresses: a client names the producer, so others are not connected to.
PRIVATE_NETWORKS = (
    "127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "::1/128",
    "fc00::/7", "fe80::/10",
)  # fmt: skip
# By `transport`: devices' memory or common memory for engines on one host, NIXL and TCP.
TRANSPORTS: dict[str, tuple[str, ...]] = {
    "auto": ("shm", "tcp"), "ipc": ("ipc", "shm", "tcp"), "shm": ("shm",), "nixl": ("nixl",),
    "tcp": ("tcp",),
}  # fmt: skip
WITH_NIXL = ("shm", "nixl", "tcp")


class KVRole(StrEnum):
    """The part of an engine, by vLLM's names. A PRODUCER computes prompts for others, a CONSUMER
    reads the pages of prompts; both answer whole requests as well."""

    PRODUCER = "kv_producer"
    CONSUMER = "kv_consumer"
    BOTH = "kv_both"

    @property
    def produces(self) -> bool:
        return self is not KVRole.CONSUMER

    @property
    def consumes(self) -> bool:
        return self is not KVRole.PRODUCER


class LoadFailurePolicy(StrEnum):
    """The fate of a request whose pages do not arrive: its prompt is computed here, or it fails."""

    RECOMPUTE = "recompute"
    FAIL = "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class KVTransferConfig:
    """The exchange of KV pages. role: of this engine; engine_id: names it to others; host, port: of
    its side channel, where data-parallel ranks count up from `port`; lease_seconds: for which a
    producer keeps pages without a word of their consumer; recompute_threshold: fewer missing tokens
    are computed; timeout_seconds: for which a consumer waits for pages; max_held_fraction: of the
    pool that tickets, or requests that wait for pages, may take; allowed_networks: of producers;
    transports: that pages may travel by, fastest first."""

    role: KVRole = KVRole.BOTH
    engine_id: str = "atom"
    host: str = "127.0.0.1"
    port: int = 5600
    lease_seconds: float = 30.0
    recompute_threshold: int = 64
    load_failure_policy: LoadFailurePolicy = LoadFailurePolicy.RECOMPUTE
    timeout_seconds: float = 20.0
    max_held_fraction: float = 0.5
    allowed_networks: tuple[str, ...] = PRIVATE_NETWORKS
    transports: tuple[str, ...] = TRANSPORTS["auto"]
