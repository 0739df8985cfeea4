"""The HTTP application: routes and error handlers, without logic.

`build_app` gets the state to serve from; entrypoints/server/run_server.py binds the port, starts
the engine and handles signals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import FastAPI, Path
from fastapi_offline import FastAPIOffline
from msgspec import UNSET
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

import atom
from atom.entrypoints.anthropic.answers import ModelInfo
from atom.entrypoints.anthropic.errors import anthropic_send, speaks_anthropic
from atom.entrypoints.anthropic.models import model_info, model_page
from atom.entrypoints.anthropic.serving_messages import DOCUMENTED as DOCUMENTED_MESSAGES
from atom.entrypoints.anthropic.serving_messages import MESSAGES, message_routes
from atom.entrypoints.api_document.docs_page import STATIC_URL, add_docs_pages
from atom.entrypoints.console.console_routes import console_routes
from atom.entrypoints.console.mcp_hosts import DEFAULT_HOSTS
from atom.entrypoints.control.control_routes import control_routes
from atom.entrypoints.control.lora_adapters import LORA_DOCUMENTED, lora_routes
from atom.entrypoints.control.weights import WEIGHTS_DOCUMENTED, weights_routes
from atom.entrypoints.handover.continue_route import continue_handler, continue_routes
from atom.entrypoints.handover.token_frames import PATH as CONTINUE_PATH
from atom.entrypoints.http.access import AccessKeys, ApiKeyCheck
from atom.entrypoints.http.dispatch import Dispatch, Endpoint, response_for_fault
from atom.entrypoints.http.errors import DialectErrors, http_error, response_for, shortened
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.http.meant_address import meant_address
from atom.entrypoints.http.response_headers import (
    ID_HEADER,
    IGNORED_HEADER,
    ResponseHeaders,
)
from atom.entrypoints.http.root_path import RootPath
from atom.entrypoints.metrics.collector import metrics_routes
from atom.entrypoints.ollama.dialect import OLLAMA
from atom.entrypoints.ollama.routes import (
    OLLAMA_DOCUMENTED,
    ollama_list_routes,
    ollama_routes,
    ollama_send,
)
from atom.entrypoints.openai.generation import DIALECTS, generation_handlers
from atom.entrypoints.openai.health import health_routes
from atom.entrypoints.openai.openapi import DocumentFacts, answers_of, document_bodies
from atom.entrypoints.openai.responses import ModelCard, ModelList
from atom.entrypoints.openai.state import ServerState, not_served
from atom.entrypoints.openai.tokens import token_routes
from atom.entrypoints.pooling.routes import POOLING_DOCUMENTED, pooling_routes
from atom.entrypoints.responses.routes import DOCUMENTED, responses_handlers
from atom.entrypoints.responses.store import ResponseStore
from atom.entrypoints.responses.stored_routes import responses_routes
from atom.entrypoints.startup.supported_endpoints import CHAT, COMPLETIONS
from atom.entrypoints.stored_batches.routes import BATCH_DOCUMENTED, batch_routes
from atom.entrypoints.stored_batches.service import BatchService
from atom.entrypoints.token_in_token_out.generate import GENERATE
from atom.entrypoints.token_in_token_out.render import TOKENS_DOCUMENTED, render_routes
from atom.errors import AtomError
from atom.model_engine.front.engine_lifecycle import EngineState
from atom.sizing import fallback_notice

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

    from atom.entrypoints.recording.load_recorder import LoadRecorder

_LISTED = "/openapi.json lists the addresses of this server"
ModelName = Annotated[str, Path(description="A name of the served model.")]


def build_app(
    state: ServerState,
    *,
    keys: AccessKeys | None = None,
    allowed_origins: Sequence[str] = (),
    root_path: str = "",
    responses: ResponseStore | None = None,
    console: bool = True,
    mcp_hosts: Sequence[str] = DEFAULT_HOSTS,
    shows_tokenizer: bool = False,
    batches: BatchService | None = None,
    tracer: Tracer | None = None,
    recorder: LoadRecorder | None = None,
) -> ASGIApp:
    """Build the ASGI app with all routes. allowed_origins: of web pages that browsers let call this
    server; "*" for all. root_path: a prefix under which a proxy shows it. responses: their store.
    console: whether there is a page for browsers at /. mcp_hosts: that this page may call, as
    `mcp_host` parses them. shows_tokenizer: whether /tokenizer_info answers. batches: stored ones,
    which this app then answers; None for none. tracer: makes a span of each request that generates.
    recorder: records each of them."""
    keys = AccessKeys() if keys is None else keys
    routes = build_routes(
        state,
        needs_key=keys.any_key,
        takes_handovers=bool(keys.peers),
        root_path=root_path,
        responses=responses,
        console=console,
        mcp_hosts=mcp_hosts,
        shows_tokenizer=shows_tokenizer,
        batches=batches,
        tracer=tracer,
        recorder=recorder,
    )
    if batches is not None:
        batches.serve_through(
            Layers(AccessKeys()).around(routes, is_ending=lambda: state.is_ending),
            lambda: state.status.state is EngineState.READY,
        )
    layers = Layers(keys, allowed_origins, root_path)
    return layers.around(routes, is_ending=lambda: state.is_ending)


def build_routes(
    state: ServerState,
    *,
    needs_key: bool,
    takes_handovers: bool = False,
    root_path: str = "",
    responses: ResponseStore | None = None,
    console: bool = True,
    mcp_hosts: Sequence[str] = DEFAULT_HOSTS,
    shows_tokenizer: bool = False,
    batches: BatchService | None = None,
    tracer: Tracer | None = None,
    recorder: LoadRecorder | None = None,
) -> ASGIApp:
    """Build the routes of a model's server, without the layers around them. needs_key: as its
    document states; takes_handovers: other replicas' answers may continue here; the others as for
    `build_app`."""
    # The scripts of the pages /docs and /redoc, which are then asked of no other server.
    app = FastAPIOffline(
        docs_url=None,
        redoc_url=None,
        static_url=STATIC_URL,
        title="ATOM",
        version=atom.__version__,
        redirect_slashes=False,
        root_path=root_path,
        generate_unique_id_function=lambda route: route.name,
    )
    add_docs_pages(app)
    handlers = generation_handlers(app, state, (*DIALECTS, MESSAGES, GENERATE, *OLLAMA))
    stored = ResponseStore() if responses is None else responses
    handlers |= responses_handlers(app, state, stored)
    add_model_routes(app, (state,))
    app.include_router(responses_routes(state, stored))
    app.include_router(health_routes(state))
    app.include_router(metrics_routes(state, batches))
    app.include_router(token_routes(state, shows_tokenizer=shows_tokenizer))
    app.include_router(message_routes(state))
    app.include_router(ollama_routes(state))
    app.include_router(ollama_list_routes((state,)))
    app.include_router(control_routes(state))
    app.include_router(lora_routes(state))
    app.include_router(weights_routes(state))
    app.include_router(pooling_routes(state))
    app.include_router(render_routes(state))
    app.include_router(batch_routes(state, batches))
    if takes_handovers:
        app.include_router(continue_routes(state))
        handlers[CONTINUE_PATH] = continue_handler(state)
    app.include_router(console_routes(shown=console, mcp_hosts=mcp_hosts))
    add_error_handlers(app)
    facts = DocumentFacts(needs_key, state.names_now)
    beside = (
        BATCH_DOCUMENTED,
        DOCUMENTED,
        DOCUMENTED_MESSAGES,
        LORA_DOCUMENTED,
        OLLAMA_DOCUMENTED,
        POOLING_DOCUMENTED,
        TOKENS_DOCUMENTED,
        WEIGHTS_DOCUMENTED,
    )
    document_bodies(app, facts, *beside)
    endpoints = {path: Endpoint(handle) for path, handle in handlers.items()}
    return _observed(Dispatch(app, endpoints), tracer, recorder)


def _observed(app: ASGIApp, tracer: Tracer | None, recorder: LoadRecorder | None) -> ASGIApp:
    """Put the layers around the routes through which requests are traced and recorded."""
    if recorder is not None:
        from atom.entrypoints.recording.recorded_requests import RecordedRequests

        app = RecordedRequests(app, recorder)
    if tracer is not None:
        from atom.entrypoints.tracing.traced_requests import TracedRequests

        app = TracedRequests(app, tracer)
    return app


@dataclass(frozen=True, slots=True)
class Layers:
    """Puts around the routes of a server keys, errors in the shape that a client knows,
    headers. allowed_origins, root_path: as for `build_app`."""

    keys: AccessKeys
    allowed_origins: Sequence[str] = ()
    root_path: str = ""

    def around(self, inner: ASGIApp, is_ending: Callable[[], bool]) -> ASGIApp:
        """Wrap an app in the layers. is_ending: whether it takes no more requests."""
        keyed = ApiKeyCheck(inner, self.keys)
        checked: ASGIApp = DialectErrors(keyed, (ollama_send, anthropic_send))
        if self.allowed_origins:
            # Before the key: browsers ask without it whether they may send it.
            checked = CORSMiddleware(
                checked,
                allow_origins=self.allowed_origins,
                allow_methods=["*"],
                allow_headers=["*"],
                expose_headers=[ID_HEADER, IGNORED_HEADER, "retry-after"],
            )
        if self.root_path:
            checked = RootPath(checked, self.root_path)
        # Outermost: refusals carry the headers too.
        return ResponseHeaders(checked, is_ending=is_ending)


def add_model_routes(app: FastAPI, states: Sequence[ServerState]) -> None:
    """Add /v1/models, which lists the names of all models that are served."""

    def found(name: str) -> ServerState:
        """Return the state of the model of this name. Raises `RequestError` if there is none."""
        for state in states:
            if name in state.all_names():
                return state
        raise not_served(name, [each for state in states for each in state.all_names()])

    def card(name: str) -> ModelCard:
        state = found(name)
        engine = state.started_engine()
        model, lora = engine.config.model, engine.loras.get(name)
        return ModelCard(
            root=UNSET if lora is None else lora.root,
            parent=UNSET if lora is None else state.served_names(engine)[0],
            id=name,
            created=state.created,
            max_model_len=model.max_model_len,
            vocab_size=model.facts.vocab_size,
            supported_endpoints=list(state.offer(engine).endpoints),
            input_modalities=["text"] if engine.images is None else ["text", "image"],
            weight_version=engine.pauses.weights_version,
            notice=fallback_notice(model.facts) or UNSET,
        )

    def info(name: str) -> ModelInfo:
        state = found(name)
        model = state.started_engine().config.model
        return model_info(name, created=state.created, max_model_len=model.max_model_len)

    example = ModelCard(
        id="MODEL",
        created=0,
        max_model_len=32768,
        vocab_size=151936,
        supported_endpoints=[CHAT, COMPLETIONS],
        input_modalities=["text"],
    )

    @app.get(
        "/v1/models",
        summary="List the served model's names",
        description=(
            "One card for each name by which requests may name the model; to a client that sends "
            "`anthropic-version`, in Anthropic's shape."
        ),
        responses=answers_of(ModelList, example=msgspec.to_builtins(ModelList(data=[example]))),
        tags=["models"],
    )
    async def list_models(http: Request) -> Response:
        names = [name for state in states for name in state.all_names()]
        if speaks_anthropic(http.scope):
            asked = {key: http.query_params.get(key) for key in ("limit", "after_id", "before_id")}
            page = model_page([info(name) for name in names], **asked)
            return Response(to_json(page), media_type="application/json")
        cards = [card(name) for name in names]
        return Response(to_json(ModelList(data=cards)), media_type="application/json")

    # A model's name may hold slashes: org/name, or the folder it was loaded from.
    @app.get(
        "/v1/models/{name:path}",
        summary="Describe the served model",
        description="Its card, by one of its names, which may hold slashes.",
        responses=answers_of(ModelCard, example=msgspec.to_builtins(example)),
        tags=["models"],
    )
    async def get_model(http: Request, name: ModelName) -> Response:
        shown = info(name) if speaks_anthropic(http.scope) else card(name)
        return Response(to_json(shown), media_type="application/json")


def _addresses(routes: Sequence[Any]) -> Iterator[str]:
    """Yield the paths of an application's routes, also those of its routers."""
    for route in routes:
        path = getattr(route, "path", None)
        if isinstance(path, str):
            yield path
        else:
            yield from _addresses(route.original_router.routes)


def add_error_handlers(app: FastAPI) -> None:
    """Answer errors in the API's shape."""

    @app.exception_handler(AtomError)
    async def known(http: Request, error: AtomError) -> Response:
        return response_for(error)

    @app.exception_handler(HTTPException)
    async def http_layer(http: Request, error: HTTPException) -> Response:
        place = f"{http.method} {shortened(http.url.path)}"
        if error.status_code == 404:
            meant = meant_address(http.url.path, _addresses(http.app.routes))
            return http_error(404, f"there is no {place}; {meant or _LISTED}")
        if error.status_code == 405:
            allowed = Headers(error.headers)["allow"]
            response = http_error(405, f"{place} is not possible; allowed: {allowed}")
            response.headers["allow"] = allowed
            return response
        return http_error(error.status_code, str(error.detail))

    # Starlette re-raises after this answer, so that the traceback is logged.
    @app.exception_handler(Exception)
    async def unknown(http: Request, error: Exception) -> Response:
        return response_for_fault(http, error)
