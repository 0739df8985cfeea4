"""read_control_body: the body of a control route, whose fields are its own and of no other API."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import Request

from atom.entrypoints.openai.body import read_parsed, refusal
from atom.entrypoints.openai.state import ServerState

_Body = TypeVar("_Body", bound=BaseModel)


async def read_control_body(state: ServerState, http: Request, kind: type[_Body]) -> _Body:
    """Read a body. Raises `RequestError` as `read_body` does."""
    turns = state.turns.of(state.clients.of(http.scope))
    try:
        with state.bodies.share() as share:
            return await read_parsed(http, share, turns, kind.model_validate_json)
    except ValidationError as error:
        raise refusal(error) from None
