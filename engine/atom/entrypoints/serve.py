"""`atom serve`: the server's own flags, and what it runs.

Torch-free and light to import; the server itself is imported when it runs.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from atom.answer_parsing.tool_parsers import AUTO, CALL_PARSERS, REASONING_PARSERS
from atom.entrypoints.flags.engine_args import (
    add_engine_arguments,
    config_from_args,
)
from atom.entrypoints.flags.flag_parser import FlagParser
from atom.entrypoints.http.client_url import server_url
from atom.entrypoints.process.logs import configure_logging
from atom.entrypoints.recording.record_options import add_record_flags
from atom.entrypoints.serve_options import HTTP_PORT, models_of, server_options, sharing_of
from atom.entrypoints.server_args import add_access_flags, add_tls_flags
from atom.entrypoints.server_parts import LimitOptions, ListenOptions
from atom.entrypoints.stored_batches.batch_options import add_batch_flags
from atom.entrypoints.swap.swap_policy import SwapRule
from atom.entrypoints.tracing.trace_flags import add_trace_flags
from atom.sizing.options.flag_values import count_up_to, json_object, number, whole_number
from atom.sizing.options.least_tokens import DEFAULT_LEAST_TOKENS

_LISTEN, _LIMITS, _RULE = ListenOptions(), LimitOptions(), SwapRule()
_EXAMPLES = (
    "atom serve Qwen/Qwen3-0.6B",
    "atom serve ./my-model --served-model-name small --port 9000 --api-key-file key",
    "atom serve Qwen/Qwen3-32B -tp 4 --max-model-len 32k",
    "atom serve --config server.yaml",
)
_MOST_USED = (
    "--served-model-name", "--max-model-len", "--tensor-parallel-size", "--data-parallel-size",
    "--gpu-memory-utilization", "--max-num-seqs", "--kv-cache-dtype", "--device", "--host",
    "--port", "--api-key-file", "--chat-template", "--config", "--log-level",
)  # fmt: skip
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}")  # RFC 9110's token
_MOST_SECONDS = 24 * 3600
_MOST_API_SERVERS = 64
_LEAST_BODY_MEMORY_MIB = 8  # one body of the largest size
_MOST_BODY_MEMORY_MIB = 2**20


def add_serve_arguments(parser: argparse.ArgumentParser) -> None:
    add_engine_arguments(parser)
    if isinstance(parser, FlagParser):
        parser.examples, parser.most_used = _EXAMPLES, _MOST_USED
    group = parser.add_argument_group("server")
    add = group.add_argument
    add(
        "--host",
        default=_LISTEN.host,
        help="address to listen on; :: for every one of IPv6 and IPv4",
    )
    add(
        "--port",
        type=_port,
        default=None,
        help=f"port to listen on; 0 picks a free one (default: {HTTP_PORT}). In upstream ATOM this "
        "is the engine's own port, which this engine has not",
    )
    add("--server-port", type=_port, default=None, help="upstream's name of --port")
    add(
        "--api-server-count",
        type=count_up_to(_MOST_API_SERVERS),
        default=_LISTEN.api_servers,
        help="HTTP processes on the one port, for more requests than one can handle",
    )
    add(
        "--drain-seconds",
        "--shutdown-timeout",
        type=_seconds,
        default=30.0,
        help="how long running requests may finish after SIGTERM",
    )
    add(
        "--handover-url",
        type=server_url,
        default=None,
        metavar="URL",
        help="where other replicas of the model answer, such as their Service: after SIGTERM, or "
        "when the engine process dies, open answers continue there, relayed by this server",
    )
    add(
        "--worker-urls",
        type=server_url,
        nargs="+",
        default=[],
        metavar="URL",
        help="where servers of the model compute: this one then has no engine and needs no device. "
        "Every address of each name is a worker; an answer whose worker dies continues at another",
    )
    add(
        "--prefill-least-tokens",
        type=whole_number,
        default=DEFAULT_LEAST_TOKENS,
        metavar="N",
        help="of --worker-urls: fewest tokens of a prompt, beyond those that the answering worker "
        "was sent before, that a worker with the kv_role kv_producer computes for it",
    )
    add(
        "--startup-budget-seconds",
        type=_seconds,
        default=0.0,
        help="how long start-up may take before /live fails, unless it still moves; 0: any time",
    )
    add_template_flags(group)
    add(
        "--request-timeout-seconds",
        type=_seconds,
        default=0.0,
        help="how long any request may take; a request may ask for less; 0: any time",
    )
    add(
        "--reader-timeout-seconds",
        type=_seconds,
        default=_LIMITS.reader_timeout_seconds,
        help="how long a client may leave its stream unread before the request is aborted; 0: any",
    )
    add(
        "--body-memory-mib",
        type=_mebibytes,
        default=_LIMITS.body_memory_bytes // 2**20,
        help="MiB that the bodies of requests may take while they are read, in each HTTP process; "
        "more get HTTP 503; 0: any",
    )
    add(
        "--responses-store-mib",
        type=_mebibytes,
        default=_LIMITS.responses_store_bytes // 2**20,
        help="MiB of memory in which responses are kept for previous_response_id and for GET "
        "/v1/responses; the oldest make room; 0, or several HTTP processes: none is kept",
    )
    add(
        "--timeout-keep-alive",
        type=_whole_seconds,
        default=_LISTEN.keep_alive_seconds,
        help="seconds that an idle connection is kept; clients and proxies should keep theirs for "
        "less",
    )
    add(
        "--fairness-header",
        type=_header_name,
        default=None,
        metavar="NAME",
        help="header by which a gateway in front names the client of each request, such as "
        "x-tenant; only with a gateway that sets it itself (default: none is believed)",
    )
    add(
        "-v",
        "--verbose",
        action="store_true",
        help="the start-up table names every operation's backend, too (default: it does not)",
    )
    add(
        "--disable-access-log",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="no log line per HTTP request",
    )
    add(
        "--lora-modules-file",
        type=Path,
        default=None,
        metavar="FILE",
        help="adapters as a JSON list of names and paths, watched while the server runs: added "
        "ones are loaded, removed ones unloaded; one that cannot be served delays no other",
    )
    add_access_flags(group)
    add_trace_flags(group)
    add_record_flags(group)
    _add_models_flags(parser.add_argument_group("several models"))
    add_batch_flags(parser.add_argument_group("stored batches"))
    add_tls_flags(parser.add_argument_group("TLS"))
    add_parser_flags(parser)


def _add_models_flags(group: Any) -> None:
    add = group.add_argument
    add(
        "--models",
        type=Path,
        default=None,
        metavar="FILE",
        help="serve several models, which share the device by sleep and wake: a YAML list of name, "
        "model, pinned and options, which are this line's flags for one of them",
    )
    add(
        "--swap-wait-seconds",
        type=_seconds,
        default=_RULE.most_wait,
        help="how long a model of --models that sleeps is asked for before those that are awake "
        "take no more requests, finish theirs and make room",
    )
    add(
        "--swap-drain-seconds",
        type=_seconds,
        default=_RULE.most_drain,
        help="how long a model of --models that has to make room may compute after that, before "
        "its requests are preempted; they continue at its next turn",
    )
    add(
        "--swap-least-awake-seconds",
        type=_seconds,
        default=_RULE.least_awake,
        help="how long a model of --models stays awake at least, unless another has waited for "
        "--swap-wait-seconds",
    )


def add_template_flags(group: Any) -> None:
    """Add the flags of how chats become prompts."""
    add = group.add_argument
    add("--chat-template", type=Path, default=None, help="Jinja file used instead of the model's")
    add(
        "--default-chat-template-kwargs",
        type=json_object,
        default={},
        metavar="JSON",
        help="variables for the chat template if a request has none, such as "
        """'{"enable_thinking": false}'""",
    )


def add_parser_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of how answers of chats are read."""
    add = parser.add_argument_group("answers of chats").add_argument
    add(
        "--tool-call-parser",
        choices=CALL_PARSERS,
        default=AUTO,
        help="notation of tool calls; auto: from the chat template and the vocabulary",
    )
    add(
        "--reasoning-parser",
        choices=REASONING_PARSERS,
        default=AUTO,
        help="notation of reasoning; auto: from the chat template and the vocabulary",
    )
    add(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="taken for vLLM's sake: here a tool call parser is enough",
    )


def run_serve(args: argparse.Namespace) -> int:
    """Serve until a signal, or compute for the node that serves. Raises `AtomError` when it could
    not start or had to stop."""
    if args.node_rank:
        from atom.entrypoints.server.follower_node import run_follower_node

        configure_logging(args.log_level)
        return run_follower_node(config_from_args(args))
    from atom.entrypoints.http.uvicorn_points import require_uvicorn

    require_uvicorn()
    if args.models is not None:
        from atom.entrypoints.swap.run_models import run_models

        configure_logging(args.log_level)
        return run_models(models_of(args), sharing_of(args))
    from atom.entrypoints.server.run_server import run_server  # which needs that check

    configure_logging(args.log_level)
    return run_server(server_options(args))


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; use 0 to 65535")
    return int(text)


def _mebibytes(text: str) -> int:
    count = whole_number(text)
    if count and not _LEAST_BODY_MEMORY_MIB <= count <= _MOST_BODY_MEMORY_MIB:
        raise argparse.ArgumentTypeError(
            f"{count} is neither 0 nor within {_LEAST_BODY_MEMORY_MIB} to {_MOST_BODY_MEMORY_MIB}"
        )
    return count


def _header_name(text: str) -> str:
    if not _HEADER_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is no name of an HTTP header; give one such as x-tenant"
        )
    return text.lower()


def _whole_seconds(text: str) -> int:
    return int(_seconds(text))


def _seconds(text: str) -> float:
    seconds = number(text)
    if not 0 <= seconds <= _MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"{text} is not within 0 to {_MOST_SECONDS} seconds")
    return seconds
