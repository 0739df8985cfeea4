"""The internals of uvicorn that our HTTP edge depends on, and the check that they exist.

http_protocol.py, open_response.py and http_process.py use more than uvicorn's public interface:
bounds on heads, aborts when a client leaves, and tokens without a coroutine have no public hook.
uvicorn may change any of it in any version, and most changes would show no error: an override that
is no longer called is silently off. So pyproject.toml admits the tested minor version alone, and
`require_uvicorn` refuses to serve on another that lacks a point. Run by `atom serve`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from atom.errors import AtomError

_PROTOCOL = "protocols.http.httptools_impl:HttpToolsProtocol"
_CYCLE = "protocols.http.httptools_impl:RequestResponseCycle"
_FLOW = "protocols.http.flow_control:FlowControl"
_UTILS = "protocols.utils:"
_SERVER = "server:Server"


class UvicornError(AtomError):
    """The installed uvicorn is not one that this server can stand on."""


@dataclass(frozen=True, slots=True)
class Point:
    """A name that must be an attribute of `place`, or that the code of `place` must use where that
    is a function: an override counts only while uvicorn calls it, a value only while it is kept."""

    place: str  # module below uvicorn, ":", qualified name
    name: str
    purpose: str

    def is_there(self) -> bool:
        place = _find(self.place)
        code = getattr(place, "__code__", None)
        return hasattr(place, self.name) if code is None else self.name in code.co_names


POINTS: tuple[Point, ...] = (
    # Of a connection: overridden methods, and their callers.
    Point(_PROTOCOL, "connection_made", "the time for the first head begins"),
    Point(_PROTOCOL, "connection_lost", "every pipelined request is told that its client left"),
    Point(_PROTOCOL, "eof_received", "a client that ends its side aborts what takes time"),
    Point(_PROTOCOL, "data_received", "heads are bounded, and what is no HTTP is answered"),
    Point(_PROTOCOL, "on_message_begin", "the time and the size of the next head begin"),
    Point(_PROTOCOL, "on_headers_complete", "a head has ended; offers to switch are passed over"),
    Point(_PROTOCOL, "on_message_complete", "the same of the body"),
    Point(f"{_PROTOCOL}.on_headers_complete", "_start_asgi_task", "a request begins: OpenResponse"),
    Point(f"{_PROTOCOL}.on_response_complete", "_start_asgi_task", "and each pipelined one"),
    # Of a connection: used members.
    Point(_PROTOCOL, "_unset_keepalive_if_required", "what comes ends the wait of an idle one"),
    Point(f"{_PROTOCOL}.__init__", "loop", "timers"),
    Point(f"{_PROTOCOL}.__init__", "access_log", "whether to log who left"),
    Point(f"{_PROTOCOL}.__init__", "access_logger", "lines with the request's id"),
    Point(f"{_PROTOCOL}.connection_made", "transport", "refusals are written and close it"),
    Point(f"{_PROTOCOL}.connection_made", "client", "whose bytes are no HTTP"),
    Point(f"{_PROTOCOL}.on_message_begin", "url", "a head is parsed anew without its offer"),
    Point(f"{_PROTOCOL}.on_message_begin", "headers", "likewise; the Host header"),
    Point(f"{_PROTOCOL}.on_headers_complete", "parser", "uvicorn asks the parser that we put in"),
    Point(f"{_PROTOCOL}.on_headers_complete", "cycle", "the newest of pipelined requests"),
    Point(f"{_PROTOCOL}.on_message_complete", "more_body", "whether the whole request came"),
    # Of a request and its response.
    Point(f"{_CYCLE}.__init__", "scope", "the state in which handlers find the OpenResponse"),
    Point(f"{_CYCLE}.__init__", "transport", "pieces are written to it"),
    Point(f"{_CYCLE}.__init__", "flow", "whether it has room"),
    Point(f"{_CYCLE}.send", "response_started", "refusals only before an answer"),
    Point(f"{_CYCLE}.send", "response_complete", "no piece behind the end"),
    Point(f"{_CYCLE}.send", "disconnected", "nothing is sent to a client that left"),
    Point(f"{_CYCLE}.receive", "disconnected", "handlers are told that the client left"),
    Point(f"{_CYCLE}.receive", "message_event", "wakes a handler that waits"),
    Point(f"{_CYCLE}.send", "keep_alive", "an answer to a half-closed connection is its last"),
    Point(f"{_CYCLE}.send", "access_logger", "our adapter writes the line"),
    Point(f"{_CYCLE}.send", "chunked_encoding", "pieces are chunks; none for HTTP/1.0"),
    Point(f"{_CYCLE}.send", "expected_content_length", "bodies of HTTP/1.0 have no length"),
    Point(f"{_FLOW}.pause_writing", "write_paused", "a reader without room is waited for"),
    Point(_FLOW, "resume_reading", "a connection that is not read is not seen to end"),
    Point(_UTILS, "get_client_addr", "the line of a client that left"),
    Point(_UTILS, "get_path_with_query_string", "likewise"),
    # Of the server.
    Point(f"{_SERVER}.serve", "capture_signals", "signals drain the engine first"),
    Point(f"{_SERVER}._serve", "main_loop", "one tick a second, and an end without a wait"),
    Point(_SERVER, "on_tick", "the Date header, and whether to end"),
    Point(f"{_SERVER}.on_tick", "should_exit", "ends the server"),
    Point(f"{_SERVER}._wait_tasks_to_complete", "force_exit", "without waiting for responses"),
)


def require_uvicorn() -> None:
    """Raises `UvicornError` that names every missing point, and ModuleNotFoundError if uvicorn is
    not installed."""
    importlib.import_module("uvicorn")
    missing = [point for point in POINTS if not point.is_there()]
    if missing:
        lines = [f"  {point.place} {point.name}: {point.purpose}" for point in missing]
        raise UvicornError(
            f"uvicorn {version('uvicorn')} lacks what this server needs of it; install the version "
            "that atom-platform asks for (pip install 'atom-platform[engine]'):\n"
            + "\n".join(lines)
        )


def _find(place: str) -> Any:
    """Return the object that `place` names; None if it does not exist."""
    module, _, path = place.partition(":")
    try:
        found: Any = importlib.import_module(f"uvicorn.{module}")
    except ImportError:
        return None
    for name in filter(None, path.split(".")):
        found = getattr(found, name, None)
    return found
