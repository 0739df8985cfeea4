"""Parts of the server's own options, with the defaults of their flags.

Values alone, which travel to the server's processes; light to import.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atom.answer_parsing.tool_parsers import AUTO
from atom.entrypoints.console.mcp_hosts import DEFAULT_HOSTS
from atom.entrypoints.http.api_key import KeyFile
from atom.entrypoints.http.body_budget import DEFAULT_BYTES
from atom.entrypoints.http.tls import TlsFiles
from atom.entrypoints.recording.record_options import RecordOptions
from atom.entrypoints.responses.store_limit import DEFAULT_BYTES as STORE_BYTES
from atom.entrypoints.stored_batches.batch_options import BatchOptions
from atom.images.media_rules import MediaRules
from atom.sizing.options.least_tokens import DEFAULT_LEAST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenOptions:
    """Configure the port. api_servers: HTTP processes on it. keep_alive_seconds: longer than
    clients keep an idle connection (5 to 60 s), which they would otherwise find closed at its next
    use. allowed_origins: of web pages whose requests browsers let through. root_path: prefix under
    which a proxy shows it. console: a page for browsers at /. mcp_hosts: that the page may
    call. shows_tokenizer: /tokenizer_info answers."""

    host: str = "0.0.0.0"
    port: int = 8000
    api_servers: int = 1
    keep_alive_seconds: int = 75
    access_log: bool = True
    tls: TlsFiles | None = None
    root_path: str = ""
    allowed_origins: tuple[str, ...] = ()
    console: bool = True
    mcp_hosts: tuple[str, ...] = DEFAULT_HOSTS
    shows_tokenizer: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Configure how chats become prompts, and how their answers are read. template_kwargs:
    variables of the chat template that a request does not set. tool_call_parser, reasoning_parser:
    names from `tool_parsers`. media: where images may come from besides data URLs."""

    chat_template: Path | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    tool_call_parser: str = AUTO
    reasoning_parser: str = AUTO
    media: MediaRules = field(default_factory=MediaRules)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """Bound time and memory; None for no bound of time. body_memory_bytes: for the bodies of
    requests that are being read, in each process; 0 for no bound. responses_store_bytes: for stored
    responses, if one process serves alone; 0 to store none. batches: stored ones."""

    request_timeout_seconds: float | None = None
    reader_timeout_seconds: float | None = 60.0
    body_memory_bytes: int = DEFAULT_BYTES
    responses_store_bytes: int = STORE_BYTES
    batches: BatchOptions = field(default_factory=BatchOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerOptions:
    """Locate other servers of the same model. handover_url: of a Service, on whose pods open
    answers continue when this server has to end; None for none. worker_urls: of the servers that
    compute, if this one has no engine; empty if it has. prefill_least_tokens: of a prompt that one
    worker computes for another, those alone that the other has not been sent before."""

    handover_url: str | None = None
    worker_urls: tuple[str, ...] = ()
    prefill_least_tokens: int = DEFAULT_LEAST_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveOptions:
    """Configure the records of requests. otlp_traces_endpoint: URL that spans of requests are sent
    to; None for no spans. record: of the load, to a file."""

    otlp_traces_endpoint: str | None = None
    record: RecordOptions = field(default_factory=RecordOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """Identify clients by their keys. fairness_header: of requests, that a gateway in front sets to
    name the client; None to trust none."""

    api_keys: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: KeyFile | None = field(default=None, repr=False)
    fairness_header: str | None = None

    @property
    def num_keys(self) -> int:
        """Count the keys at the start, wherever they are from."""
        return len(self.api_keys) + len(self.api_key_file.found if self.api_key_file else ())
