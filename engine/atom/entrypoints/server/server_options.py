"""ServerOptions: the values of the server's own flags, in a form that can travel to its
processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from atom.config import EngineOptions
from atom.entrypoints.http.access import AccessKeys
from atom.entrypoints.http.access_options import AccessOptions
from atom.entrypoints.http.api_key import FollowedKeys
from atom.entrypoints.server_parts import (
    ChatOptions,
    ClientOptions,
    LimitOptions,
    ListenOptions,
    ObserveOptions,
    PeerOptions,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Hold the options of the OpenAI-compatible server. access: beside the users' keys.
    drain_seconds: for open requests after SIGTERM. created: seconds since 1970 that the API shows
    as the model's, equal in all processes; None for the time of the start. lora_modules_file: the
    file of adapters to follow. served_names: requests' names of the model; empty for its own.
    verbose: the start-up table has backends."""

    engine: EngineOptions
    listen: ListenOptions = field(default_factory=ListenOptions)
    chat: ChatOptions = field(default_factory=ChatOptions)
    limits: LimitOptions = field(default_factory=LimitOptions)
    peers: PeerOptions = field(default_factory=PeerOptions)
    clients: ClientOptions = field(default_factory=ClientOptions)
    access: AccessOptions = field(default_factory=AccessOptions)
    observe: ObserveOptions = field(default_factory=ObserveOptions)
    drain_seconds: float = 30.0
    startup_budget_seconds: float | None = None
    lora_modules_file: Path | None = None
    verbose: bool = False
    served_names: tuple[str, ...] = ()
    created: int | None = None

    def keys(self) -> AccessKeys:
        """Follow the keys that count, for one process."""
        return AccessKeys(
            FollowedKeys(self.clients.api_keys, self.clients.api_key_file),
            self.access.followed_admins(),
            self.access.followed_secrets(),
        )

    def to_json(self) -> bytes:
        return msgspec.json.encode(self, enc_hook=str)

    @staticmethod
    def from_json(data: bytes) -> ServerOptions:
        return msgspec.json.decode(
            data, type=ServerOptions, dec_hook=lambda kind, value: kind(value)
        )
