"""The document of `--kv-transfer-config`, as vLLM's users write it: which tier of the KV cache.

vLLM's connectors OffloadingConnector and SimpleCPUOffloadConnector are the host's tier
(`--kv-offloading-size`); every other connector is refused by name with its remedy. Torch-free; read
by the command line.
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from atom.errors import ConfigError
from atom.kv_transfer_config.document import TIER_CONNECTORS
from atom.sizing.host_tier import GIB
from atom.sizing.options.kv_tiers import KVTierOptions, TierPolicy

_FLAG = "--kv-transfer-config"
_POLICIES: dict[str, TierPolicy] = {"lru": "lru", "arc": "protected"}


class _SecondaryTier(msgspec.Struct, forbid_unknown_fields=True):
    """A tier behind the host's memory. The numbers of threads are this server's own."""

    type: str
    root_dir: str | None = None
    n_read_threads: int | None = None
    n_write_threads: int | None = None


class _Extra(msgspec.Struct, forbid_unknown_fields=True):
    cpu_bytes_to_use: int | None = None
    eviction_policy: str = "lru"
    block_size: int | None = None
    secondary_tiers: list[_SecondaryTier] = []


class _Document(msgspec.Struct):
    kv_connector: str | None = None
    kv_role: str | None = None
    kv_connector_extra_config: msgspec.Raw = msgspec.Raw(b"{}")


def kv_tier_options(given: KVTierOptions, text: str | None) -> KVTierOptions:
    """Return the options of the tier with those of a document. Raises `ConfigError` for a connector
    or a setting that is not here."""
    if text is None:
        return given
    try:
        said = msgspec.json.decode(text, type=_Document)
        if said.kv_connector not in TIER_CONNECTORS:
            return given
        extra = msgspec.json.decode(said.kv_connector_extra_config, type=_Extra)
    except msgspec.DecodeError as error:
        raise ConfigError(f"{_FLAG}: {error}; give a JSON object with kv_connector") from None
    if said.kv_role not in (None, "kv_both"):
        raise ConfigError(
            f"{_FLAG}: kv_role {said.kv_role!r}: the host's tier is read and written by one "
            "engine; give kv_both, or leave it out"
        )
    return _with_extra(given, extra)


def _with_extra(given: KVTierOptions, extra: _Extra) -> KVTierOptions:
    disk_dir = _disk_dir(given, extra)
    if extra.eviction_policy not in _POLICIES:
        raise ConfigError(
            f"{_FLAG}: eviction_policy {extra.eviction_policy!r}; use {' or '.join(_POLICIES)}"
        )
    size = given.offloading_size
    if extra.cpu_bytes_to_use is not None:
        if size is not None:
            raise ConfigError(
                f"{_FLAG}: cpu_bytes_to_use and --kv-offloading-size both size the host's tier; "
                "give one of them"
            )
        size = extra.cpu_bytes_to_use / GIB
    if size is None:
        raise ConfigError(f"{_FLAG}: give cpu_bytes_to_use, or --kv-offloading-size GIB")
    policy = given.policy if extra.eviction_policy == "lru" else _POLICIES[extra.eviction_policy]
    return replace(given, offloading_size=size, policy=policy, disk_dir=disk_dir)


def _disk_dir(given: KVTierOptions, extra: _Extra) -> str | None:
    """Return the folder of files behind the host's memory. The numbers of threads are not taken
    from the document."""
    if not extra.secondary_tiers:
        return given.disk_dir
    told = [tier.type for tier in extra.secondary_tiers]
    if told != ["fs"] or not extra.secondary_tiers[0].root_dir:
        raise ConfigError(
            f"{_FLAG}: secondary_tiers: the one tier below the host's memory is of the type fs, "
            f"with root_dir, got {', '.join(told)}; leave others out"
        )
    if given.disk_dir is not None:
        raise ConfigError(
            f"{_FLAG}: secondary_tiers and --kv-disk-dir both name a folder; give one of them"
        )
    return extra.secondary_tiers[0].root_dir
