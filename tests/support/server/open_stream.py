"""A streaming request against a real server, read on a thread of its own."""

from __future__ import annotations

import json
import threading

import httpx

from tests.support.server.server_process import ServerProcess
from tests.support.waiting import HANG_SECONDS

LONG = {"prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}


class OpenStream:
    """A streaming request read on a thread."""

    def __init__(self, server: ServerProcess, *, wait: bool = True, **fields: object) -> None:
        """Ask. wait: for the first event."""
        self.events: list[str] = []
        self.begun = threading.Event()
        self.broken: httpx.TransportError | None = None
        self._server = server
        self._body = {**LONG, **fields}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()
        if wait:
            assert self.begun.wait(HANG_SECONDS), "the stream did not begin"

    @property
    def has_ended(self) -> bool:
        return not self._thread.is_alive()

    def _read(self) -> None:
        url = f"{self._server.url}/v1/completions"
        try:
            with httpx.stream(
                "POST", url, json=self._body, timeout=HANG_SECONDS, verify=False
            ) as response:
                for line in response.iter_lines():
                    if line:
                        self.events.append(line.removeprefix("data: "))
                        self.begun.set()
        except httpx.TransportError as error:
            self.broken = error

    def end(self) -> list[str]:
        """The events of a stream that ended as it should."""
        events = self.end_or_break()
        assert self.broken is None, f"the stream broke: {self.broken!r}"
        return events

    def end_or_break(self) -> list[str]:
        self._thread.join(HANG_SECONDS)
        assert not self._thread.is_alive(), "the stream did not end"
        return self.events


def error_of(event: str) -> dict[str, str]:
    return dict(json.loads(event)["error"])
