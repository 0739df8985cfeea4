"""/v1/chat/completions/render and /v1/completions/render: the prompts of a request, not answered.

A router that schedules by prefixes tokenizes a request here as a server would. A constraint of the
answer to a call of a tool is not part of a prompt and is not shown.
"""

from __future__ import annotations

from secrets import token_hex
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.body import read_body
from atom.entrypoints.openai.chat_prompt import rendered_chat
from atom.entrypoints.openai.openapi import Beside, answers_of, body_of
from atom.entrypoints.openai.protocol import (
    DEFAULT_COMPLETION_TOKENS,
    ChatCompletionRequest,
    CompletionRequest,
)
from atom.entrypoints.openai.serving_completion import prompts_of
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.token_in_token_out.protocol import (
    PARAMS,
    Generated,
    GenerateRequest,
    Rendered,
)
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.input_processor import Prompt

TOKENS_DOCUMENTED = Beside((GenerateRequest,), (Generated, Rendered))
_ASKED = ChatCompletionRequest | CompletionRequest


def render_routes(state: ServerState) -> APIRouter:
    router = APIRouter(tags=["tokens"])

    @router.post(
        "/v1/chat/completions/render",
        summary="The prompt of a conversation",
        description="Token ids and text that a chat would be answered from, as a body of "
        "/inference/v1/generate.",
        openapi_extra=body_of(
            ChatCompletionRequest, {"messages": [{"role": "user", "content": "What is ATOM?"}]}
        ),
        responses=answers_of(Rendered),
    )
    async def render_chat(http: Request) -> Response:
        request, client_id = await _read(http, state, ChatCompletionRequest)
        engine = state.serving_engine(request.model)
        engine.processor.inputs.check_pools(False)
        rendered = await rendered_chat(engine, client_id, request)
        # The template writes special tokens itself.
        special = bool(request.add_special_tokens)
        prompt = rendered.prompt
        ids = await _ids(engine, prompt, special=special, client_id=client_id, field="messages")
        room = engine.config.model.max_model_len - len(ids)
        asked = request.most_tokens(None)
        return _json(_rendered(engine, request, ids, rendered.text, min(asked or room, room)))

    @router.post(
        "/v1/completions/render",
        summary="The prompts of a completion",
        description="A list, with token ids and text of each prompt, as bodies of "
        "/inference/v1/generate.",
        openapi_extra=body_of(CompletionRequest, {"prompt": "ATOM is"}),
        responses=_LIST,
    )
    async def render_completion(http: Request) -> Response:
        request, client_id = await _read(http, state, CompletionRequest)
        engine = state.serving_engine(request.model)
        engine.processor.inputs.check_pools(False)
        found = []
        special = request.add_special_tokens is not False
        most = request.most_tokens(DEFAULT_COMPLETION_TOKENS)
        for prompt in prompts_of(request):
            ids = await _ids(engine, prompt, special=special, client_id=client_id, field="prompt")
            text = prompt if isinstance(prompt, str) else await engine.detokenize(ids)
            found.append(_rendered(engine, request, ids, text, most))
        return _json(found)

    return router


_LIST: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The answer.",
        "content": {
            "application/json": {
                "schema": {"type": "array", "items": {"$ref": "#/components/schemas/Rendered"}}
            }
        },
    }
}


async def _read(http: Request, state: ServerState, kind: type[Any]) -> tuple[Any, str]:
    client_id = state.clients.of(http.scope)
    with state.body_share() as share:
        turns = state.turns.of(client_id)
        return await read_body(http, kind, share, turns), client_id


async def _ids(
    engine: AsyncLLMEngine, prompt: Prompt, *, special: bool, client_id: str, field: str
) -> list[int]:
    """Tokenise a prompt that could be answered. Raises `RequestError`."""
    try:
        ids = await engine.tokenize(prompt, add_special_tokens=special, client_id=client_id)
        engine.processor.inputs.check_length(ids)
    except RequestError as error:
        if error.param == "prompt":
            error.param = field
        raise
    return ids


def _rendered(
    engine: AsyncLLMEngine, request: _ASKED, ids: list[int], text: str, max_tokens: int | None
) -> Rendered:
    given = request.model_dump(include=set(PARAMS), exclude_none=True)
    for name in ("max_completion_tokens", "n_predict"):
        given.pop(name, None)
    if max_tokens is not None:
        given["max_tokens"] = max_tokens
    return Rendered(
        request_id=request.own_id or token_hex(16),
        model=engine.answering(request.model),
        token_ids=ids,
        text=text,
        sampling_params=given,
    )


def _json(content: msgspec.Struct | list[Rendered]) -> Response:
    return Response(to_json(content), media_type="application/json")
