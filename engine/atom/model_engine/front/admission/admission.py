"""Admission: whether the server takes more requests now; if not, why, and with which status.

Three reasons to refuse: the engine does not serve (EngineLifecycle has the reason; 503), too many
requests wait for their first token already (`--max-waiting-requests`; 429), or the first token is
expected after the request's deadline (429). One client's requests that fill the bound leave others
room beyond it. The input processor checks the request's content,
and the scheduler its blocks and slot. Called by AsyncLLMEngine before a prompt is tokenized and
again after it.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from atom.errors import RequestError
from atom.images.image_memory import ImageMemory
from atom.model_engine.front.admission.expectations import Expectations
from atom.model_engine.front.engine_lifecycle import EngineLifecycle
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.request import group_of


class Admission:
    def __init__(
        self,
        lifecycle: EngineLifecycle,
        requests: OpenRequests,
        max_waiting: int,
        *,
        expectations: Expectations | None = None,
        fair: bool = True,
        images: ImageMemory | None = None,
    ) -> None:
        """max_waiting: requests that may wait for their first token; 0 for any number.
        expectations: of their latencies; None if no request has a deadline. fair:
        clients with few of them may add to more than that, to twice as many at the most. images:
        requests that wait for memory for theirs wait for their first token, too."""
        self._lifecycle = lifecycle
        self._requests = requests
        self._max_waiting = max_waiting
        self._expectations = expectations
        self._fair = fair
        self._images = images
        self._held: Counter[str] = Counter()  # while the engine pauses, by group

    @property
    def num_held(self) -> int:
        """Count requests that wait for a pause's end."""
        return self._held.total()

    def check(self, count: int, client_id: str = "", deadline_seconds: float | None = None) -> None:
        """Refuse `count` more requests if they cannot be served, or would wait behind too many
        others or past their deadline: their client can then try elsewhere. Raises `RequestError`
        or `EngineDeadError`."""
        self._lifecycle.check_serving()
        if deadline_seconds is not None and self._expectations is not None:
            self._expectations.check_deadline(count, deadline_seconds)
        waiting = self._requests.num_unanswered + self._not_queued().total()
        if not self._max_waiting or waiting + count <= self._max_waiting:
            return
        if not self._fair or not self._has_room_beyond(waiting, count, client_id):
            raise RequestError(
                f"{waiting} requests wait for their first token already, and this server lets "
                f"{self._max_waiting} wait; try again later, or with fewer prompts at once",
                status=429,
                code="rate_limit_exceeded",
            )

    async def wait_awake(self, count: int, client_id: str, *bounds: float | None) -> None:
        """Hold `count` requests, which `check` let in, as long as the engine is asleep, or holds
        them for another reason. bounds: seconds that they may take; None for any time. Raises
        `RequestError`: 504 behind them, 503 where the engine cannot be woken up for them."""
        why = self._lifecycle.held_because
        if not why:
            return
        seconds = min((each for each in bounds if each is not None), default=None)
        group = group_of(client_id)
        self._held[group] += count
        try:
            async with asyncio.timeout(seconds):
                await self._lifecycle.wait_awake()
        except TimeoutError:
            raise RequestError(
                f"the request was held for {seconds:g} s ({why}); try again, or allow more time",
                status=504,
                code="timeout",
            ) from None
        finally:
            self._held -= Counter({group: count})  # keeps no group without any

    def _has_room_beyond(self, waiting: int, count: int, client_id: str) -> bool:
        """Return whether others fill the bound, and the client has less than half an equal part of
        it."""
        by_group = self._requests.unanswered_by_group
        group, held = group_of(client_id), self._not_queued()
        groups = len({*by_group, *held, group})
        part = max(1, self._max_waiting // (2 * groups))
        own = by_group.get(group, 0) + held[group]
        return own + count <= part and waiting + count <= 2 * self._max_waiting

    def _not_queued(self) -> Counter[str]:
        """Count requests that wait for a pause's end, or for memory for their images, by group."""
        return self._held if self._images is None else self._held + self._images.waiting
