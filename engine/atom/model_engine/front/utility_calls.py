"""UtilityCalls: calls of the engine cores that have not been answered yet.

Belongs to one event loop; knows neither their content nor their transport. Owned by AsyncLLMEngine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from atom.errors import AtomError
from atom.model_engine.control import Answer, Control
from atom.model_engine.wire.engine_protocol import UtilityResponseBody


class UtilityCalls:
    def __init__(
        self, numbers: Iterator[int], send: Callable[[int, str, Sequence[Any]], None]
    ) -> None:
        """numbers: of the calls, none twice. send: asks every core, by the call's number, its name
        and its arguments."""
        self._numbers = numbers
        self._send = send
        self._answers: dict[int, asyncio.Future[Any]] = {}

    async def call(self, call: Control[Answer]) -> list[Answer]:
        """Make a control call and return the answers by rank. Raises as `call_named`."""
        answers: list[Answer] = await self.call_named(call.name, call.args)
        return answers

    async def call_named(self, name: str, args: Sequence[Any]) -> list[Any]:
        """Make a control call by its name and return the answers by rank. Raises `AtomError` if
        the call fails on any rank, and the errors of `send` and `fail_all`."""
        number = next(self._numbers)
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._send(number, name, args)
            return await answer
        finally:
            del self._answers[number]

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
