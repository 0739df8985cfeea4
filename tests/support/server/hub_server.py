"""HubServer: the endpoints of a model hub that huggingface_hub asks, over files in memory.

Speaks to a client with HF_ENDPOINT set: model info, file tree, and files with ranges. `gate_after`
stops a download in its middle, `damaged` delivers wrong bytes, `gated` wants a token.
"""

from __future__ import annotations

import hashlib
import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34
LARGE_BYTES = 1 << 20  # from here on a file is stored as the hub stores weights, with a sha256
_PIECE_BYTES = 1 << 20
_GATE_SECONDS = 100


@dataclass
class HubServer:
    """One repository at one commit; use as a context manager."""

    model: str
    files: dict[str, bytes]
    token: str | None = None
    revisions: tuple[str, ...] = ("main", COMMIT)
    damaged: set[str] = field(default_factory=set)
    # Bytes of one file after which nothing more comes until `gate` is set.
    gate_after: dict[str, int] = field(default_factory=dict)
    gate: threading.Event = field(default_factory=threading.Event)
    reached_gate: threading.Event = field(default_factory=threading.Event)
    requests: list[str] = field(default_factory=list)
    address: tuple[str, int] = ("127.0.0.1", 0)  # to listen on; port 0 takes a free one

    def __enter__(self) -> HubServer:
        hub = self

        class Handler(_Handler):
            server_hub = hub

        self._http = ThreadingHTTPServer(self.address, Handler)
        self._http.daemon_threads = True
        threading.Thread(target=self._http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.gate.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    def tree(self) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        for name, content in self.files.items():
            blob = hashlib.sha1(f"blob {len(content)}\0".encode() + content).hexdigest()
            item = {"type": "file", "path": name, "size": len(content), "oid": blob}
            if len(content) >= LARGE_BYTES:
                digest = hashlib.sha256(content).hexdigest()
                item["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 134}
            items.append(item)
        return items

    def etag(self, name: str) -> str:
        item = next(item for item in self.tree() if item["path"] == name)
        return str(item.get("lfs", item)["oid"])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_hub: HubServer

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def _answer(self, *, with_body: bool) -> None:
        hub, path = self.server_hub, unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        if hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            given = self.headers.get("Authorization") is not None
            code = "GatedRepo" if given else "RepoNotFound"
            return self._refuse(403 if given else 401, code)
        info, tree = f"/api/models/{hub.model}/revision/", f"/api/models/{hub.model}/tree/"
        if path == f"/api/models/{hub.model}" or path.startswith(info):
            if path.startswith(info) and path.removeprefix(info) not in hub.revisions:
                return self._refuse(404, "RevisionNotFound")
            body = {"id": hub.model, "sha": COMMIT, "siblings": [], "tags": []}
            return self._send(200, json.dumps(body).encode(), with_body=with_body)
        if path.startswith(tree):
            return self._send(200, json.dumps(hub.tree()).encode(), with_body=with_body)
        resolve = f"/{hub.model}/resolve/"
        if path.startswith(resolve):
            revision, _, name = path.removeprefix(resolve).partition("/")
            if revision in hub.revisions and name in hub.files:
                return self._send_file(name, with_body=with_body)
            return self._refuse(404, "EntryNotFound")
        return self._refuse(404, "RepoNotFound")

    def _refuse(self, status: int, code: str) -> None:
        self._send(status, b"{}", with_body=self.command == "GET", **{"X-Error-Code": code})

    def _send_file(self, name: str, *, with_body: bool) -> None:
        hub = self.server_hub
        content = hub.files[name]
        if name in hub.damaged:
            content = bytes(len(content))
        wanted = self.headers.get("Range")
        start = 0
        if wanted is not None:
            start = int(wanted.removeprefix("bytes=").partition("-")[0])
        headers = {
            "ETag": f'"{hub.etag(name)}"',
            "X-Repo-Commit": COMMIT,
            "Accept-Ranges": "bytes",
            **(
                {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
                if start
                else {}
            ),
        }
        status = 206 if start else 200
        limit = hub.gate_after.get(name) if with_body else None
        self._send(status, content[start:], with_body=with_body, limit=limit, **headers)

    def _send(
        self,
        status: int,
        body: bytes,
        *,
        with_body: bool,
        limit: int | None = None,
        **headers: str,
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if not with_body:
            return
        try:
            for begin in range(0, len(body), _PIECE_BYTES):
                if limit is not None and begin >= limit:
                    self.server_hub.reached_gate.set()
                    self.server_hub.gate.wait(_GATE_SECONDS)
                self.wfile.write(body[begin : begin + _PIECE_BYTES])
        except OSError:
            self.close_connection = True  # the client went away

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""
