"""The document of `--kv-transfer-config`, as vLLM's users write it.

It has vLLM's keys, and ATOM's if they differ. Every key and every connector is known here: it has
its effect, or it is refused by name with the remedy. Torch-free; read by the command line.
"""

from __future__ import annotations

import ipaddress
import os
import uuid
from collections.abc import Mapping
from typing import Any

import msgspec

from atom.errors import ConfigError
from atom.kv_transfer_config.nixl_package import NIXL_REMEDY, nixl_package
from atom.kv_transfer_config.values import (
    FLAG,
    PRIVATE_NETWORKS,
    TRANSPORTS,
    WITH_NIXL,
    KVRole,
    KVTransferConfig,
    LoadFailurePolicy,
)

_MOST_PORT = 65_535
_HOST_VARIABLES = ("VLLM_NIXL_SIDE_CHANNEL_HOST", "ATOM_HOST_IP")
_PORT_VARIABLE = "VLLM_NIXL_SIDE_CHANNEL_PORT"
# Names of connectors, all of which mean this engine's own protocol here. Those of NIXL add its
# transport, if its package is installed.
_NIXL_CONNECTORS = frozenset({"NixlConnector", "NixlPullConnector", "nixl"})
_CONNECTORS = frozenset(
    {
        "AtomConnector", "MooncakeConnector", "MoRIIOConnector", "mooncake", "moriio",
        *_NIXL_CONNECTORS,
    }
)  # fmt: skip
# These are a tier in the host's memory, which the options of that tier read.
TIER_CONNECTORS = frozenset({"OffloadingConnector", "SimpleCPUOffloadConnector"})
_REFUSED_CONNECTORS = {
    "MultiConnector": "name AtomConnector, and give --kv-offloading-size for a tier beside it",
    "SharedStorageConnector": "pages go from engine to engine; name AtomConnector",
    "HF3FSConnector": "pages go from engine to engine; name AtomConnector",
    "FlexKVConnectorV1": "pages go from engine to engine; name AtomConnector",
    "NixlPushConnector": "consumers read pages here; name AtomConnector",
    "P2pNcclConnector": "consumers read pages here; name AtomConnector",
}
_REFUSED_PREFIXES = {
    "LMCache": "give --kv-offloading-size for a tier, or name AtomConnector",
}
_REFUSED_KEYS = {
    "kv_connector_module_path": "no code is loaded; leave it out",
    "kv_ip": "side_channel_host of kv_connector_extra_config is the address",
    "kv_rank": "engines are not numbered; leave it out",
    "kv_parallel_size": "engines are not numbered; leave it out",
    "kv_buffer_device": "pages are sent from the host's memory; leave it out",
    "kv_buffer_size": "the engine bounds its buffers; leave it out",
    "enable_permute_local_kv": "pages are in one layout for all engines; leave it out",
}
_REFUSED_EXTRA = {
    "bidirectional_kv_xfer": "pages go from producer to consumer only; leave it out",
    "transfer_id": "consumers read pages here; leave it out",
    "remote_bootstrap_addr": "consumers read pages here; leave it out",
}


class _Extra(msgspec.Struct, forbid_unknown_fields=True):
    transport: str = "auto"
    kv_lease_duration: float = 30.0
    kv_recompute_threshold: int = 64
    side_channel_host: str | None = None
    side_channel_port: int | None = None
    enforce_handshake_compat: bool = True
    allowed_networks: list[str] | None = None
    handshake_port: int | None = None
    proxy_ip: str | None = None
    protocol: str | None = None
    http_port: int | None = None


class _Named(msgspec.Struct):
    kv_connector: str | None = None


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    kv_connector: str | None = None
    kv_role: KVRole = KVRole.BOTH
    engine_id: str | None = None
    kv_load_failure_policy: LoadFailurePolicy = LoadFailurePolicy.RECOMPUTE
    kv_connector_extra_config: dict[str, Any] = {}
    kv_port: int | None = None
    handshake_port: int | None = None
    proxy_ip: str | None = None
    protocol: str | None = None


def kv_transfer_config(
    text: str | None,
    *,
    timeout_seconds: float = 20.0,
    max_held_fraction: float = 0.5,
    environment: Mapping[str, str] | None = None,
) -> KVTransferConfig | None:
    """Read the document; None without one, and for one of a tier in the host's memory.
    environment: variables that give the side channel's place, the process's own if None. Raises
    `ConfigError` for an invalid document."""
    if text is None:
        return None
    if _connector_of(text) in TIER_CONNECTORS:
        return None
    document = _read(text)
    extra = _read_extra(document.kv_connector_extra_config)
    _check_connector(document.kv_connector)
    _check_extra(extra)
    variables = os.environ if environment is None else environment
    named = (extra.side_channel_host, *(variables.get(name) for name in _HOST_VARIABLES))
    return KVTransferConfig(
        role=document.kv_role,
        engine_id=document.engine_id or str(uuid.uuid4()),
        host=next((host for host in named if host), "127.0.0.1"),
        port=_port(document, extra, variables),
        lease_seconds=extra.kv_lease_duration,
        recompute_threshold=extra.kv_recompute_threshold,
        load_failure_policy=document.kv_load_failure_policy,
        timeout_seconds=timeout_seconds,
        max_held_fraction=max_held_fraction,
        allowed_networks=_networks(extra.allowed_networks),
        transports=_transports(document.kv_connector, extra.transport),
    )


def _connector_of(text: str) -> str | None:
    """Return the connector that a document names, if it can be read at all."""
    try:
        return msgspec.json.decode(text, type=_Named).kv_connector
    except msgspec.MsgspecError:
        return None


def _read(text: str) -> _Document:
    try:
        given = msgspec.json.decode(text, type=dict[str, Any])
        for name, remedy in _REFUSED_KEYS.items():
            if given.get(name) is not None:
                raise ConfigError(f"{FLAG}: {name} is not taken: {remedy}")
            given.pop(name, None)
        return msgspec.convert(given, _Document)
    except msgspec.MsgspecError as error:
        keys = ", ".join(_Document.__struct_fields__)
        raise ConfigError(f"{FLAG}: {error}; give a JSON object with some of: {keys}") from None


def _read_extra(given: dict[str, Any]) -> _Extra:
    for name, remedy in _REFUSED_EXTRA.items():
        if given.get(name):
            raise ConfigError(f"{FLAG}: {name} is not taken: {remedy}")
    try:
        known = {name: value for name, value in given.items() if name not in _REFUSED_EXTRA}
        return msgspec.convert(known, _Extra)
    except msgspec.ValidationError as error:
        keys = ", ".join(_Extra.__struct_fields__)
        raise ConfigError(
            f"{FLAG}: kv_connector_extra_config: {error}; give an object with some of: {keys}"
        ) from None


def _check_connector(name: str | None) -> None:
    if name is None or name in _CONNECTORS:
        return
    remedy = _REFUSED_CONNECTORS.get(name) or next(
        (text for prefix, text in _REFUSED_PREFIXES.items() if name.startswith(prefix)), None
    )
    if remedy is None:
        remedy = f"give one of {', '.join(sorted(_CONNECTORS))}"
    raise ConfigError(f"{FLAG}: kv_connector is {name!r}, which is not served: {remedy}")


def _transports(connector: str | None, asked: str) -> tuple[str, ...]:
    """Return the transports that pages may travel by, the fastest first."""
    if asked == "nixl" and nixl_package() is None:
        raise ConfigError(f"{FLAG}: transport is nixl, which is not installed; {NIXL_REMEDY}")
    if asked == "auto" and connector in _NIXL_CONNECTORS:
        return WITH_NIXL
    return TRANSPORTS[asked]


def _check_extra(extra: _Extra) -> None:
    if extra.transport not in TRANSPORTS:
        raise ConfigError(
            f"{FLAG}: transport is {extra.transport!r}; give {', '.join(TRANSPORTS)}, or leave it "
            "out"
        )
    if not extra.enforce_handshake_compat:
        raise ConfigError(
            f"{FLAG}: enforce_handshake_compat false: pages of another layout are other bytes; "
            "leave it out"
        )
    if not 1 <= extra.kv_lease_duration <= 3600:
        raise ConfigError(
            f"{FLAG}: kv_lease_duration must be 1 to 3600 seconds, got {extra.kv_lease_duration:g}"
        )
    if extra.kv_recompute_threshold < 0:
        raise ConfigError(
            f"{FLAG}: kv_recompute_threshold must be 0 or more tokens, got "
            f"{extra.kv_recompute_threshold}"
        )


def _port(document: _Document, extra: _Extra, variables: Mapping[str, str]) -> int:
    named = (
        extra.side_channel_port,
        extra.handshake_port,
        document.handshake_port,
        document.kv_port,
    )
    port = next((port for port in named if port is not None), None)
    if port is None:
        text = variables.get(_PORT_VARIABLE, "5600")
        if not text.isdigit():
            raise ConfigError(f"{_PORT_VARIABLE} is {text!r}; give a port")
        port = int(text)
    if not 0 <= port <= _MOST_PORT:
        raise ConfigError(f"{FLAG}: side_channel_port must be 0 to {_MOST_PORT}, got {port}")
    return port


def _networks(given: list[str] | None) -> tuple[str, ...]:
    for each in given or ():
        try:
            ipaddress.ip_network(each)
        except ValueError as error:
            raise ConfigError(
                f"{FLAG}: allowed_networks: {error}; give networks such as 10.0.0.0/8"
            ) from None
    return PRIVATE_NETWORKS if given is None else tuple(given)
