"""Whether the engine takes what was asked for, before the first byte of an event stream.

A grammar is compiled in the engine; that it cannot be is known only there. A stream whose headers
are sent could report it as an event, but clients look at the status. Only for requests with a
grammar.
"""

from __future__ import annotations

from starlette.requests import Request

from atom.entrypoints.http.sse import until_disconnect
from atom.entrypoints.openai.choices import Answers


async def accepted(http: Request, answers: Answers) -> bool:
    """False when the client left meanwhile. Raises `RequestError` when it was refused. The answers
    are closed in both cases."""

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
