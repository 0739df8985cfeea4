"""ServerOptions: the values of the server's own flags, in a form that can travel to its
processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from atom.answer_parsing.tool_parsers import AUTO
from atom.config import EngineOptions
from atom.entrypoints.http.access import AccessKeys
from atom.entrypoints.http.access_options import AccessOptions
from atom.entrypoints.http.api_key import FollowedKeys, KeyFile
from atom.entrypoints.http.body_budget import DEFAULT_BYTES
from atom.entrypoints.http.tls import TlsFiles
from atom.entrypoints.responses.store_limit import DEFAULT_BYTES as STORE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Hold the options of the OpenAI-compatible server. access: beside the users' keys.
    api_servers: HTTP processes on the one port. created: seconds since 1970 that the API shows as
    the model's, equal in all of them; None for the time of the start. console: a page for browsers
    at /. body_memory_bytes: for the bodies of requests that are being read, in each process; 0 for
    no bound. responses_store_bytes: for stored responses, if one process serves alone; 0 to store
    none. allowed_origins: of web pages whose requests browsers let through. otlp_traces_endpoint:
    URL that spans of requests are sent to; None for no spans. keep_alive_seconds: longer than
    clients keep an idle connection (5 to 60 s), which they would otherwise find closed at its next
    use. handover_url: of a Service whose pods serve the same model, on which open answers continue
    when this server has to end; None for none. worker_urls: of the servers that compute, if this
    one has no engine; empty if it has. fairness_header: of requests, that a gateway in front sets
    to name the client; None to trust none. lora_modules_file: the file of adapters to follow.
    root_path: prefix under which a proxy shows it. served_names: requests' names of the model;
    empty for its own. template_kwargs: variables of the chat template that a request does not set.
    tool_call_parser, reasoning_parser: names from `tool_parsers`. verbose: the start-up table has
    backends."""

    engine: EngineOptions
    host: str = "0.0.0.0"
    port: int = 8000
    api_servers: int = 1
    drain_seconds: float = 30.0
    startup_budget_seconds: float | None = None
    chat_template: Path | None = None
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    keep_alive_seconds: int = 75
    access_log: bool = True
    request_timeout_seconds: float | None = None
    reader_timeout_seconds: float | None = 60.0
    body_memory_bytes: int = DEFAULT_BYTES
    responses_store_bytes: int = STORE_BYTES
    allowed_origins: tuple[str, ...] = ()
    fairness_header: str | None = None
    handover_url: str | None = None
    worker_urls: tuple[str, ...] = ()
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: KeyFile | None = field(default=None, repr=False)
    access: AccessOptions = field(default_factory=AccessOptions)
    lora_modules_file: Path | None = None
    tls: TlsFiles | None = None
    root_path: str = ""
    console: bool = True
    otlp_traces_endpoint: str | None = None
    verbose: bool = False
    served_names: tuple[str, ...] = ()
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    created: int | None = None

    @property
    def num_keys(self) -> int:
        """Count the keys at the start, wherever they are from."""
        return len(self.api_keys) + len(self.api_key_file.found if self.api_key_file else ())

    def keys(self) -> AccessKeys:
        """Follow the keys that count, for one process."""
        return AccessKeys(
            FollowedKeys(self.api_keys, self.api_key_file),
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
