"""ProgressServer: /health of a process that prepares something, in the form of a starting engine's.

Standard library only and one thread: it is asked every few seconds by one reader.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ProgressServer:
    """Serve start-up's progress over HTTP; calls `progress` for each request, on a separate
    thread."""

    def __init__(self, progress: Callable[[], dict[str, object]], port: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            timeout = 10.0

            def do_GET(self) -> None:
                shown = progress()
                body = json.dumps(
                    {"status": "starting", "reason": str(shown["phase"]), "progress": shown}
                ).encode()
                self.send_response(503 if self.path == "/health" else 404)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing: probes ask all the time."""

        self._http = ThreadingHTTPServer(("", port), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def port(self) -> int:
        return int(self._http.server_address[1])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._http.shutdown()
        self._http.server_close()
