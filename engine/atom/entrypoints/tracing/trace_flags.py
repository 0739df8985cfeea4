"""The flag that turns spans on, and what can be wrong with it before a server starts.

Argparse and values alone: the library of spans is looked for, not imported.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from atom.errors import ConfigError

PROTOCOL = "http/protobuf"
_PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_TRACES_PATH = "/v1/traces"  # of a collector, where its URL names none (the OTLP specification)
_PACKAGES = {
    "opentelemetry.sdk": "opentelemetry-sdk",
    "opentelemetry.exporter.otlp.proto.http": "opentelemetry-exporter-otlp-proto-http",
}


def add_trace_flags(group: Any) -> None:
    group.add_argument(
        "--otlp-traces-endpoint",
        type=_endpoint,
        default=None,
        metavar="URL",
        help="OpenTelemetry collector that gets a span of each request that generates, by OTLP "
        "over HTTP, such as http://collector:4318/v1/traces (default: no spans)",
    )


def traces_endpoint(endpoint: str | None, environment: Mapping[str, str]) -> str | None:
    """Return where spans go. Raises `ConfigError` where the library is not installed, or the
    environment asks for a protocol that is not spoken here."""
    if endpoint is None:
        return None
    missing = [package for module, package in _PACKAGES.items() if not _is_installed(module)]
    if missing:
        raise ConfigError(
            f"--otlp-traces-endpoint needs {' and '.join(missing)}, not installed here: pip "
            "install 'atom-platform[otel]', or leave the flag out"
        )
    for variable in _PROTOCOL_VARIABLES:
        if environment.get(variable, PROTOCOL) != PROTOCOL:
            raise ConfigError(
                f"{variable} is {environment[variable]}, but spans are sent by {PROTOCOL} alone: "
                "unset it, and give --otlp-traces-endpoint the collector's HTTP port (4318)"
            )
    return endpoint


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # a package above it
        return False


def _endpoint(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no URL such as http://collector:4318/v1/traces"
        )
    return text.rstrip("/") + _TRACES_PATH if parts.path in ("", "/") else text
