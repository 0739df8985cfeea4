"""CoreLink: what the front end asks of its engine processes, and what follows when they are gone.

Open answers continue at other ranks or replicas as far as these take them; the others fail, and so
do control calls. Owned by AsyncLLMEngine; knows no text and no HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from atom.errors import EngineDeadError
from atom.model_engine.front.engine_lifecycle import EngineLifecycle
from atom.model_engine.front.handover.continuations import Continuations
from atom.model_engine.front.handover.handover import Handover
from atom.model_engine.front.open_requests import OpenRequests
from atom.model_engine.front.utility_calls import UtilityCalls
from atom.model_engine.wire.core_port import CoreLost, CorePort


class CoreLink:
    """Hold the engine processes of a front end. handover: to other replicas, if there are any."""

    def __init__(
        self,
        core: CorePort,
        lifecycle: EngineLifecycle,
        requests: OpenRequests,
        calls: UtilityCalls,
        continuations: Continuations,
    ) -> None:
        self._core = core
        self._lifecycle = lifecycle
        self._requests = requests
        self._calls = calls
        self._continuations = continuations
        self._ended = False
        self.handover: Handover | None = None

    @property
    def _is_gone(self) -> bool:
        return self._ended or self._lifecycle.is_dead

    def ask(self, call_id: int, method: str, args: Sequence[Any]) -> None:
        """Send a control call to every core. Raises `EngineDeadError` if none would answer."""
        if self._is_gone:
            raise EngineDeadError(self._lifecycle.status.reason)
        self._core.call_utility(call_id, method, args)

    def abort(self, numbers: Sequence[int]) -> None:
        """Abort requests where they are computed: here, or at another replica."""
        if self.handover is not None:
            numbers = self.handover.abort(numbers)
        if not self._is_gone:
            self._core.abort_requests(numbers)

    async def hand_over(self) -> bool:
        """Let other replicas continue the open answers, as far as they take them. Returns whether
        the engine process is idle then."""
        if self.handover is None:
            return not self._requests
        await self.handover.hand_over(self._core, self._continuations)
        return not self.handover.num_left

    async def end(self, timeout_seconds: float) -> None:
        """End the engine process, which is idle; answers that continue elsewhere stay open."""
        self._ended = True
        await asyncio.to_thread(self._core.shutdown, timeout_seconds)

    async def shut_down(self, timeout_seconds: float) -> None:
        """End the engine process. Open requests get an error."""
        if self.handover is not None:
            self.handover.close()
        if not self._lifecycle.is_dead:
            self._lifecycle.shut_down()
        self._fail_open("the engine was shut down")
        await asyncio.to_thread(self._core.shutdown, timeout_seconds)
        self._lifecycle.gone()

    def lose(self, event: CoreLost) -> None:
        """Let the other ranks continue a lost rank's requests."""
        message = f"the engine stopped: {event.message}"
        self._lifecycle.maim(event.message)
        again = self._continuations.of(
            event.request_ids, lambda: EngineDeadError(message), lost=True
        )
        self._core.add_requests(again)

    def die(self, reason: str) -> None:
        """Fail the open requests, since the engine is gone, unless replicas continue them."""
        if not self._lifecycle.die(reason):
            return
        if self.handover is not None:
            message = f"the engine stopped: {reason}"
            self.handover.hand_over_lost(self._continuations, message)
            self._calls.fail_all(lambda: EngineDeadError(message))
        else:
            self._fail_open(reason)

    def _fail_open(self, reason: str) -> None:
        message = f"the engine stopped: {reason}"
        self._requests.fail_all(lambda: EngineDeadError(message))
        self._calls.fail_all(lambda: EngineDeadError(message))
