"""KVEventsConfig: whether and where the engine publishes events of cached blocks for routers.

The JSON document of `--kv-events-config` has vLLM's keys. Torch-free; read by the command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace

import msgspec

from atom.errors import ConfigError

_ENDPOINT = re.compile(r"(tcp://(\*|[^:/\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d+))|ipc://.+")
_MOST_PORT = 65_535


@dataclass(frozen=True, slots=True, kw_only=True)
class KVEventsConfig:
    """The places where events of cached blocks are published. endpoint: of a PUB socket;
    replay_endpoint: of a ROUTER that sends the newest batches again, None for none; topic: the
    first frame of every message; buffer_steps: batches kept for replays; hwm: most messages that
    wait for one slow reader; max_queue_size: batches between the engine and the thread that sends
    them."""

    endpoint: str = "tcp://127.0.0.1:5557"
    replay_endpoint: str | None = None
    topic: str = ""
    buffer_steps: int = 10_000
    hwm: int = 100_000
    max_queue_size: int = 100_000

    def of_rank(self, rank: int) -> KVEventsConfig:
        """Return the endpoints of a rank of data parallelism: tcp ports count up from the first
        rank's."""
        replay = self.replay_endpoint
        return replace(
            self,
            endpoint=_offset(self.endpoint, rank),
            replay_endpoint=None if replay is None else _offset(replay, rank),
        )


_USUAL = KVEventsConfig()


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    enable_kv_cache_events: bool | None = None
    publisher: str | None = None
    endpoint: str = _USUAL.endpoint
    replay_endpoint: str | None = _USUAL.replay_endpoint
    topic: str = _USUAL.topic
    buffer_steps: int = _USUAL.buffer_steps
    hwm: int = _USUAL.hwm
    max_queue_size: int = _USUAL.max_queue_size


def kv_events_config(text: str | None) -> KVEventsConfig | None:
    """Read the document; return None if events are disabled. Raises `ConfigError` for an invalid
    document."""
    if text is None:
        return None
    try:
        said = msgspec.json.decode(text, type=_Document)
    except msgspec.DecodeError as error:
        keys = ", ".join(_Document.__struct_fields__)
        raise ConfigError(
            f"--kv-events-config: {error}; give a JSON object with some of: {keys}"
        ) from None
    if said.publisher not in (None, "zmq", "null"):
        raise ConfigError(
            f'--kv-events-config: publisher is {said.publisher!r}; it must be "zmq", or "null" for '
            "none"
        )
    # SGLang's documents name only a publisher.
    asked = (
        said.publisher == "zmq"
        if said.enable_kv_cache_events is None
        else said.enable_kv_cache_events
    )
    if not asked or said.publisher == "null":
        return None
    for key in ("endpoint", "replay_endpoint"):
        _check_endpoint(key, getattr(said, key))
    for key in ("buffer_steps", "hwm", "max_queue_size"):
        if getattr(said, key) < 1:
            raise ConfigError(
                f"--kv-events-config: {key} must be at least 1, got {getattr(said, key)}"
            )
    if said.replay_endpoint == said.endpoint:
        raise ConfigError(
            f"--kv-events-config: endpoint and replay_endpoint are both {said.endpoint}; give each "
            "its own"
        )
    return KVEventsConfig(
        **{each.name: getattr(said, each.name) for each in fields(KVEventsConfig)}
    )


def _check_endpoint(key: str, endpoint: str | None) -> None:
    if endpoint is None:
        return
    found = _ENDPOINT.fullmatch(endpoint)
    port = found and found["port"]
    if found is None or (port is not None and not 0 < int(port) <= _MOST_PORT):
        raise ConfigError(
            f"--kv-events-config: {key} is {endpoint!r}; it must be tcp://ADDRESS:PORT, such as "
            "tcp://*:5557, or ipc://PATH"
        )


def _offset(endpoint: str, rank: int) -> str:
    if rank == 0:
        return endpoint
    if not endpoint.startswith("tcp://"):
        return f"{endpoint}_dp{rank}"
    address, _, port = endpoint.rpartition(":")
    return f"{address}:{int(port) + rank}"
