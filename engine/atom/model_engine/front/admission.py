"""Admission: whether the server takes more requests now; if not, why, and with which status.

Two reasons to refuse: the engine does not serve (EngineLifecycle says why; 503), or too many
requests wait for their first token already (`--max-waiting-requests`; 429). What a request itself
says is checked by the input processor, and its blocks and slot are the scheduler's. Called by
AsyncLLMEngine before a prompt is tokenised and again behind it.
"""

from __future__ import annotations

from atom.errors import RequestError
from atom.model_engine.front.engine_lifecycle import EngineLifecycle
from atom.model_engine.front.open_requests import OpenRequests


class Admission:
    def __init__(
        self, lifecycle: EngineLifecycle, requests: OpenRequests, max_waiting: int
    ) -> None:
        """max_waiting: requests that may wait for their first token; 0 for any number."""
        self._lifecycle = lifecycle
        self._requests = requests
        self._max_waiting = max_waiting

    def check(self, count: int) -> None:
        """Refuse `count` more requests if they cannot be served, or would wait behind too many
        others: their client can then try elsewhere. Raises `RequestError` or `EngineDeadError`."""
        self._lifecycle.check_serving()
        waiting = self._requests.num_unanswered
        if self._max_waiting and waiting + count > self._max_waiting:
            raise RequestError(
                f"{waiting} requests wait for their first token already, and this server lets "
                f"{self._max_waiting} wait; try again later, or with fewer prompts at once",
                status=429,
                code="rate_limit_exceeded",
            )
