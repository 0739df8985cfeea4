"""`atom serve`: the server's own flags, and the step from flags to ServerOptions.

Torch-free and light to import; the server itself is imported when it runs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from atom.entrypoints.engine_args import add_engine_arguments, options_from_args
from atom.entrypoints.logs import configure_logging

if TYPE_CHECKING:
    from atom.entrypoints.server import ServerOptions

_MOST_SECONDS = 24 * 3600


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    add = parser.add_argument_group("server").add_argument
    add("--host", default="0.0.0.0", help="address to listen on")
    add("--server-port", type=_port, default=8000, help="port to listen on; 0 picks a free one")
    add(
        "--drain-seconds",
        type=_seconds,
        default=30.0,
        help="how long running requests may finish after SIGTERM",
    )
    add("--chat-template", type=Path, default=None, help="Jinja file used instead of the model's")
    add(
        "--request-timeout-seconds",
        type=_seconds,
        default=0.0,
        help="how long any request may take; a request may ask for less; 0: any time",
    )
    add("--timeout-keep-alive", type=int, default=5, help="seconds an idle connection is kept")
    add("--disable-access-log", action="store_true", help="no log line per HTTP request")


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal. Raises `AtomError` when it could not start or had to stop."""
    from atom.entrypoints.server import run_server

    configure_logging(args.log_level)
    return run_server(server_options(args))


def server_options(args: argparse.Namespace) -> ServerOptions:
    from atom.entrypoints.server import ServerOptions

    return ServerOptions(
        engine=options_from_args(args),
        host=args.host,
        port=args.server_port,
        drain_seconds=args.drain_seconds,
        chat_template=args.chat_template,
        keep_alive_seconds=args.timeout_keep_alive,
        access_log=not args.disable_access_log,
        request_timeout_seconds=args.request_timeout_seconds or None,
    )


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port <= 65535:
        raise argparse.ArgumentTypeError(f"{port} is not a port; use 0 to 65535")
    return port


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 to {_MOST_SECONDS} seconds")
    return seconds
