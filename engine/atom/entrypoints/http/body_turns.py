"""BodyTurns: when large bodies are parsed, and on which thread; clients take turns.

A body is parsed, and its request checked, without a pause. Many that came together would be done
in one turn of the event loop, and a client that asks for little meanwhile would wait for all of
them: 24 schemas of 40 KB held up another's request for 14 s on busy cores. Large bodies wait here
for their turn, and the loop serves all else between two; small ones do not wait. What takes longer
than a moment by its size alone is parsed on threads, which let the loop run meanwhile
(process_conduct.py says how soon). One per HTTP process; belongs to its event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from atom.errors import RequestError
from atom.model_engine.request import group_of
from atom.utils.fair_threads import FairThreads

LARGE_BODY_BYTES = 4096
HUGE_BODY_BYTES = 64 * 1024  # a few milliseconds of parsing, if it is all small values
# Turns of the loop between two: as many as a small request takes from its connection to the engine.
TURNS_BETWEEN = 8
_THREADS = 2  # one client has one of them, at most; parsing holds the interpreter's lock

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class ClientTurns:
    """The turns of one client's bodies."""

    turns: BodyTurns
    client_id: str

    async def run(self, size_bytes: int, work: Callable[[], _Result]) -> _Result:
        """Do the `work` on a body of `size_bytes` bytes when it is the client's turn. Code after
        the call runs in the same turn of the loop. Raises the work's errors."""
        return await self.turns.run(self.client_id, size_bytes, work)


class BodyTurns:
    def __init__(self) -> None:
        # By group of clients, in the order in which they are served.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._hands_out = False
        self._threads = FairThreads(_THREADS, "bodies")

    def of(self, client_id: str) -> ClientTurns:
        """Return the turns of a client."""
        return ClientTurns(self, client_id)

    async def run(self, client_id: str, size_bytes: int, work: Callable[[], _Result]) -> _Result:
        """Do the `work`, as `ClientTurns.run` says. Raises `RequestError` (503) if the server
        ends first."""
        if size_bytes < HUGE_BODY_BYTES:
            await self.wait(client_id, size_bytes)
            return work()
        result = await self._threads.run(group_of(client_id), work, _ending)
        await self.wait(client_id, size_bytes)
        return result

    def close(self) -> None:
        """Accept no more work; work that waits for a thread gets `RequestError`."""
        self._threads.close()

    async def wait(self, client_id: str, size_bytes: int) -> None:
        """Wait until a body of `size_bytes` bytes may be parsed, in this very turn of the loop."""
        if size_bytes < LARGE_BODY_BYTES:
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.setdefault(group_of(client_id), deque()).append(turn)
        if not self._hands_out:
            self._hands_out = True
            loop.call_soon(self._hand_out, 0)
        await turn

    def _hand_out(self, turns_before: int) -> None:
        """Release the next waiting body after `turns_before` turns of the loop, and repeat."""
        call_soon = asyncio.get_running_loop().call_soon
        if turns_before:
            call_soon(self._hand_out, turns_before - 1)
            return
        while self._waiting:
            group, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[group] = turns  # after the others
            if not turn.done():  # else its client has left
                turn.set_result(None)
                call_soon(self._hand_out, TURNS_BETWEEN)
                return
        self._hands_out = False


def _ending() -> RequestError:
    return RequestError("the server is shutting down; send the request again", status=503)
