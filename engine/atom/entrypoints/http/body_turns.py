"""BodyTurns: the event loop parses one large body a turn, and clients take turns.

A body is parsed, and its request checked and its prompt rendered, without a pause. Many that came
together would be done in one turn of the loop, and a client that asks for little meanwhile would
wait for all of them: 24 schemas of 40 KB held up another's request for 14 s on busy cores. Large
bodies wait here for their turn, and the loop serves all else between two; small ones do not wait.
One per HTTP process; belongs to its event loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from atom.model_engine.request import group_of

LARGE_BODY_BYTES = 4096
# Turns of the loop between two: as many as a small request takes from its connection to the engine.
TURNS_BETWEEN = 8


class BodyTurns:
    def __init__(self) -> None:
        # By group of clients, in the order in which they are served.
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()
        self._hands_out = False

    async def wait(self, client_id: str, size_bytes: int) -> None:
        """Wait until a body of so many bytes may be parsed, in this very turn of the loop."""
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
        """Let the next body go on after so many turns of the loop, and come again behind it."""
        call_soon = asyncio.get_running_loop().call_soon
        if turns_before:
            call_soon(self._hand_out, turns_before - 1)
            return
        while self._waiting:
            group, turns = self._waiting.popitem(last=False)
            turn = turns.popleft()
            if turns:
                self._waiting[group] = turns  # behind the others
            if not turn.done():  # else its client has left
                turn.set_result(None)
                call_soon(self._hand_out, TURNS_BETWEEN)
                return
        self._hands_out = False
