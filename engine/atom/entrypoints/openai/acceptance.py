"""Whether the engine takes what was asked for, before the first byte of an event stream.

A grammar is compiled in the engine; that it cannot be is known only there. A stream whose headers
are sent could report it as an event, but clients look at the status. Requests without a grammar
do not wait.
"""

from __future__ import annotations

from starlette.requests import Request

from atom.entrypoints.openai.choices import Answers
from atom.entrypoints.openai.protocol import GenerationRequest
from atom.entrypoints.openai.sse import until_disconnect


async def accepted(http: Request, request: GenerationRequest, answers: Answers) -> bool:
    """False when the client left meanwhile. Raises `RequestError` when it was refused. The answers
    are closed in both cases."""
    if not request.asks_for_structure:
        return True

    async def wait_first() -> bool:
        await answers.group.streams[0].wait_accepted()  # all have the same grammar
        return True

    taken = False
    try:
        taken = bool(await until_disconnect(http.receive, wait_first))
    finally:
        if not taken:
            answers.close()
    return taken
