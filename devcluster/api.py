"""A minimal client of the cluster's API server: JSON over HTTPS with the admin certificate.

Used for health, nodes and the DNS objects, where starting kubectl each time would cost seconds.
Knows no resource types.
"""

from __future__ import annotations

import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from devcluster.errors import DevclusterError

MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
JSON_PATCH = "application/json-patch+json"
MANAGER = "atom-devcluster"


class ApiError(DevclusterError):
    """The API server refused, or could not be reached (status 0)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Api:
    url: str
    pki: Path
    timeout_seconds: float = 10.0

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json"
    ) -> Any:
        """The decoded answer; text where it is not JSON. Raises ApiError."""
        try:
            status, data, kind = self._exchange(method, path, body, content_type)
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(
                f"the API server at {self.url} does not answer: {error}; see `python -m devcluster "
                "status`",
                0,
            ) from error
        if status >= 300:
            raise ApiError(f"{method} {path} was refused with {status}: {_message(data)}", status)
        return json.loads(data) if kind.startswith("application/json") else data.decode()

    def _exchange(
        self, method: str, path: str, body: Any, content_type: str
    ) -> tuple[int, bytes, str]:
        context = ssl.create_default_context(cafile=str(self.pki / "ca.crt"))
        context.load_cert_chain(self.pki / "admin.crt", self.pki / "admin.key")
        parts = urlsplit(self.url)
        connection = http.client.HTTPSConnection(
            parts.hostname or "", parts.port, timeout=self.timeout_seconds, context=context
        )
        try:
            data = None if body is None else json.dumps(body)
            connection.request(
                method,
                path,
                data,
                {"Content-Type": content_type, "Accept": "application/json, */*"},
            )
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers.get("Content-Type", "")
        finally:
            connection.close()

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def find(self, path: str) -> Any | None:
        """The object, or None when there is none."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def apply(self, path: str, manifest: dict[str, Any]) -> Any:
        """Server-side apply of one object at its own path."""
        return self.request("PATCH", f"{path}?fieldManager={MANAGER}&force=true", manifest, APPLY)


def _message(data: bytes) -> str:
    try:
        return str(json.loads(data)["message"])
    except (ValueError, KeyError, TypeError):
        return data[:200].decode(errors="replace")
