"""/tokenize and /detokenize: the served model's own tokenizer, as a client would have to use it.

Counts what a prompt will cost before it is sent. A conversation is rendered by the chat template
exactly as /v1/chat/completions does it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec
from fastapi import APIRouter
from msgspec import UNSET
from starlette.requests import Request
from starlette.responses import Response

from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.body import read_body
from atom.entrypoints.openai.chat_prompt import rendered_chat
from atom.entrypoints.openai.logprobs import TokenNames
from atom.entrypoints.openai.openapi import answers_of, body_of
from atom.entrypoints.openai.protocol import DetokenizeRequest, TokenizeRequest
from atom.entrypoints.openai.responses import Text, TokenizerInfo, Tokens
from atom.entrypoints.openai.state import ServerState
from atom.errors import RequestError
from atom.model_engine.async_llm_engine import AsyncLLMEngine
from atom.model_engine.front.input_processor import Prompt

_TOKENIZER_EXAMPLE = {"eos_token": "</s>", "vocab_size": 32000, "model_max_length": 4096}


def token_routes(state: ServerState, *, shows_tokenizer: bool = False) -> APIRouter:
    """Build the routes. shows_tokenizer: whether clients may read the tokenizer's settings and the
    chat template."""
    router = APIRouter(tags=["tokens"])

    @router.get(
        "/tokenizer_info",
        summary="The tokenizer's settings and the chat template",
        description="For clients that make prompts themselves, such as lm-eval with "
        "`tokenizer_backend=remote`. Only if the server was started with "
        "`--enable-tokenizer-info-endpoint`, since a template may be private.",
        responses=answers_of(TokenizerInfo, example=_TOKENIZER_EXAMPLE),
    )
    async def tokenizer_info() -> Response:
        if not shows_tokenizer:
            raise RequestError(
                "/tokenizer_info is off, since it shows the chat template; start the server with "
                "--enable-tokenizer-info-endpoint",
                status=404,
            )
        return _json(_tokenizer_info(state.serving_engine(None)))

    @router.post(
        "/tokenize",
        summary="Count the tokens of a text or a conversation",
        description="With the served model's tokenizer and chat template.",
        openapi_extra=body_of(TokenizeRequest, {"prompt": "What is ATOM?"}),
        responses=answers_of(Tokens),
    )
    async def tokenize(http: Request) -> Response:
        with state.body_share() as share:
            client_id = state.clients.of(http.scope)
            turns = state.turns.of(client_id)
            request = await read_body(http, TokenizeRequest, share, turns)
            engine = state.serving_engine(request.model)
            if (request.prompt is None) == (request.messages is None):
                raise RequestError("give prompt or messages, one of them", param="prompt")
            if request.messages is not None:
                # The template writes special tokens itself.
                rendered = await rendered_chat(engine, client_id, request)
                text: Prompt = rendered.prompt
                special = bool(request.add_special_tokens)
            else:
                assert request.prompt is not None
                text, special = request.prompt, request.add_special_tokens is not False
            with _naming("prompt" if request.messages is None else "messages"):
                tokens = await engine.tokenize(
                    text, add_special_tokens=special, client_id=client_id
                )
            names = TokenNames(engine.processor.tokenizer)
        strs = [names.of(token)[0] for token in tokens] if request.return_token_strs else UNSET
        return _json(Tokens(len(tokens), engine.config.model.max_model_len, tokens, strs))

    @router.post(
        "/detokenize",
        summary="Make a text of tokens",
        description="With the served model's tokenizer.",
        openapi_extra=body_of(DetokenizeRequest, {"tokens": [1, 2, 3]}),
        responses=answers_of(Text),
    )
    async def detokenize(http: Request) -> Response:
        with state.body_share() as share:
            client_id = state.clients.of(http.scope)
            turns = state.turns.of(client_id)
            request = await read_body(http, DetokenizeRequest, share, turns)
            engine = state.serving_engine(request.model)
            with _naming("tokens"):
                text = await engine.detokenize(
                    request.tokens,
                    skip_special_tokens=request.skip_special_tokens is not False,
                    client_id=client_id,
                )
            return _json(Text(text))

    return router


def _tokenizer_info(engine: AsyncLLMEngine) -> TokenizerInfo:
    """Raises `RequestError` (400) if the model has no tokenizer."""
    tokenizer, model = engine.processor.tokenizer, engine.config.model
    if tokenizer is None:
        raise RequestError("this model has no tokenizer; send prompts as token ids")
    roles = tokenizer.special_tokens()
    if "eos_token" not in roles and model.eos_token_ids:  # files that name ends by ids alone
        ends = list(model.eos_token_ids[:1])
        roles["eos_token"] = tokenizer.decode(ends, skip_special_tokens=False)
    named = tokenizer.settings.get("tokenizer_class")
    return TokenizerInfo(
        tokenizer_class=named if isinstance(named, str) else None,
        chat_template=engine.processor.template_source,
        vocab_size=tokenizer.size,
        model_max_length=model.max_model_len,
        **roles,
    )


@contextlib.contextmanager
def _naming(field: str) -> Iterator[None]:
    """Name this field of the request in errors about the prompt."""
    try:
        yield
    except RequestError as error:
        if error.param is not None:
            error.param = field
        raise


def _json(body: msgspec.Struct) -> Response:
    return Response(to_json(body), media_type="application/json")
