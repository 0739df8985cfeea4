"""UtilityCalls: calls of the engine cores that have not been answered yet.

Belongs to one event loop; knows neither their content nor their transport. Owned by AsyncLLMEngine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from atom.errors import AtomError
from atom.model_engine.wire.engine_protocol import UtilityResponseBody


class UtilityCalls:
    def __init__(self) -> None:
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def answer(self, call_id: int, send: Callable[[], None]) -> Any:
        """Send a call, and wait for its result. Raises `AtomError` if the utility failed, and any
        error given to `fail_all`."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[call_id] = answer
        try:
            send()
            return await answer
        finally:
            del self._answers[call_id]

    def settle(self, response: UtilityResponseBody) -> None:
        answer = self._answers.get(response.call_id)
        if answer is None or answer.done():  # the caller has left
            return
        if response.error is None:
            answer.set_result(response.result)
        else:
            answer.set_exception(AtomError(f"the engine could not do it: {response.error}"))

    def fail_all(self, make_error: Callable[[], Exception]) -> None:
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(make_error())
