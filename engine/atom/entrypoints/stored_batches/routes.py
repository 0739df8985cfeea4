"""The routes of files and batches. A client sees those of its own key alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Path
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from atom.entrypoints.control.control_body import read_control_body
from atom.entrypoints.http.json_body import to_json
from atom.entrypoints.openai.openapi import Beside, answers_of, body_of
from atom.entrypoints.openai.pages import Page, page_of
from atom.entrypoints.openai.state import ServerState
from atom.entrypoints.responses.store import owner_of
from atom.entrypoints.stored_batches.file_store import STORAGE_FULL
from atom.entrypoints.stored_batches.records import (
    BatchOrder,
    BatchRecord,
    BatchState,
    Purpose,
    StoredFile,
)
from atom.entrypoints.stored_batches.requests import (
    BatchList,
    BatchObject,
    BatchRequestBody,
    DeletedFile,
    FileList,
    FileObject,
    FileUpload,
    batch_object,
    file_object,
    window_seconds,
)
from atom.entrypoints.stored_batches.service import BatchService
from atom.entrypoints.stored_batches.upload_form import read_upload
from atom.errors import ConfigError, RequestError

BATCH_DOCUMENTED = Beside(
    (BatchRequestBody, FileUpload), (BatchList, BatchObject, DeletedFile, FileList, FileObject)
)
_FILES, _BATCHES = "/v1/files", "/v1/batches"
_FILE, _BATCH = f"file-{'0' * 32}", f"batch_{'0' * 32}"
FileId = Annotated[str, Path(description="Id of a file.", examples=[_FILE])]
BatchId = Annotated[str, Path(description="Id of a batch.", examples=[_BATCH])]
_PAGING = "In pages: limit (1 to 10000 files, 1 to 100 batches), after (an id)"
_MOST_FILES_LISTED, _MOST_BATCHES_LISTED, _BATCHES_LISTED = 10_000, 100, 20

_FILE_SHOWN = file_object(StoredFile(_FILE, "", "requests.jsonl", Purpose.BATCH, 117, 1767225600))
_ORDER = BatchOrder(_FILE, "/v1/chat/completions", "24h")
_BATCH_SHOWN = batch_object(
    BatchRecord(
        _BATCH, "", _ORDER, BatchState.VALIDATING, 1767312000, {BatchState.VALIDATING: 1767225600}
    ),
    (0, 0),
)
_BODY = '{"prompt": "ATOM is", "max_tokens": 32}'
_LINE = f'{{"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {_BODY}}}\n'
On = Callable[[], Awaitable[BatchService]]
Owner = Callable[[Request], str]
Item = TypeVar("Item", StoredFile, BatchRecord)


def _example(shown: msgspec.Struct) -> Any:
    return msgspec.to_builtins(shown)


def batch_routes(state: ServerState, service: BatchService | None) -> APIRouter:
    """Build the routes. service: None if the server keeps no batches."""
    router = APIRouter(tags=["batches"])

    async def on() -> BatchService:
        if service is None:
            raise RequestError(
                "this server keeps no files and no batches; start it with --batch-dir FOLDER",
                status=404,
                code="batches_off",
            )
        try:
            await service.refresh()
        except ConfigError as error:  # a description cannot be read
            raise RequestError(str(error), status=507, code=STORAGE_FULL) from error
        return service

    def owner(http: Request) -> str:
        return owner_of(state.clients.of(http.scope))

    _add_file_routes(router, on, owner)
    _add_batch_routes(router, state, on, owner)
    return router


def _add_file_routes(router: APIRouter, on: On, owner: Owner) -> None:
    form = {
        "schema": {"$ref": f"#/components/schemas/{FileUpload.__name__}"},
        "example": {"purpose": "batch", "file": _LINE},
    }
    lines = {"schema": {"type": "string"}, "example": _LINE}
    described = {"requestBody": {"required": True, "content": {"multipart/form-data": form}}}

    @router.post(
        _FILES,
        summary="Upload a file of requests",
        description="A form with the fields purpose and file, and perhaps `expires_after[anchor]` "
        "and `expires_after[seconds]`. The lines are checked when a batch is made of them.",
        openapi_extra=described,
        responses=answers_of(FileObject, example=_example(_FILE_SHOWN)),
    )
    async def upload_file(http: Request) -> Response:
        return _json(file_object(await read_upload(http, (await on()).files, owner(http))))

    @router.get(
        _FILES,
        summary="List files",
        description=f"Uploaded ones and answers of batches. {_PAGING}, order (desc or asc), "
        "purpose.",
        responses=answers_of(
            FileList,
            example=_example(
                FileList(data=[_FILE_SHOWN], first_id=_FILE, last_id=_FILE, has_more=False)
            ),
        ),
    )
    async def list_files(http: Request) -> Response:
        found = (await on()).files.of(owner(http))
        purpose = http.query_params.get("purpose")
        if purpose is not None:
            found = [file for file in found if file.purpose == purpose]
        if http.query_params.get("order", "desc") != "desc":
            found.reverse()
        page = _page(found, http, (_MOST_FILES_LISTED, _MOST_FILES_LISTED))
        data = [file_object(file) for file in page.items]
        return _json(FileList(data=data, **_ends(page)))

    @router.get(
        f"{_FILES}/{{file_id}}",
        summary="Describe a file",
        description="Its name, size, purpose and times.",
        responses=answers_of(FileObject, example=_example(_FILE_SHOWN)),
    )
    async def get_file(http: Request, file_id: FileId) -> Response:
        return _json(file_object((await on()).files.get(file_id, owner(http))))

    @router.get(
        f"{_FILES}/{{file_id}}/content",
        summary="Download a file",
        description="Its lines, as they were uploaded or answered.",
        response_class=Response,
        responses={200: {"content": {"application/jsonl": lines}}},
    )
    async def get_content(http: Request, file_id: FileId) -> Response:
        files = (await on()).files
        file = files.get(file_id, owner(http))
        return FileResponse(files.folder.content(file.id), media_type="application/jsonl")

    @router.delete(
        f"{_FILES}/{{file_id}}",
        summary="Delete a file",
        description="Not while a batch needs it.",
        responses=answers_of(DeletedFile, example=_example(DeletedFile(_FILE))),
    )
    async def delete_file(http: Request, file_id: FileId) -> Response:
        service = await on()
        file = service.files.get(file_id, owner(http))
        await service.files.remove(file.id)
        return _json(DeletedFile(file.id))


def _add_batch_routes(router: APIRouter, state: ServerState, on: On, owner: Owner) -> None:
    answer = answers_of(BatchObject, example=_example(_BATCH_SHOWN))

    async def shown(service: BatchService, batch: BatchRecord) -> BatchObject:
        return batch_object(batch, await service.worker.counts_of(batch))

    @router.post(
        _BATCHES,
        summary="Answer a file of requests",
        description="In the background, in the time that other requests leave. Its answers are "
        "files: output_file_id and error_file_id.",
        openapi_extra=body_of(
            BatchRequestBody,
            {
                "input_file_id": _FILE,
                "endpoint": "/v1/chat/completions",
                "completion_window": "24h",
            },
        ),
        responses=answer,
    )
    async def create_batch(http: Request) -> Response:
        service = await on()
        asked = await read_control_body(state, http, BatchRequestBody)
        file = service.files.get(asked.input_file_id, owner(http), "input_file_id")
        if file.purpose is not Purpose.BATCH:
            raise RequestError(
                f"input_file_id: the purpose of this file is {file.purpose}; upload one for batch",
                param="input_file_id",
            )
        expires = asked.output_expires_after
        order = BatchOrder(
            input_file_id=file.id,
            endpoint=asked.endpoint,
            completion_window=asked.completion_window,
            metadata=asked.metadata,
            output_seconds=None if expires is None else expires.seconds,
        )
        window = window_seconds(asked.completion_window)
        batch = await service.batches.add(owner(http), order, window)
        service.worker.added()
        return _json(await shown(service, batch))

    @router.get(
        _BATCHES,
        summary="List batches",
        description=f"The newest first. {_PAGING}.",
        responses=answers_of(
            BatchList,
            example=_example(
                BatchList(data=[_BATCH_SHOWN], first_id=_BATCH, last_id=_BATCH, has_more=False)
            ),
        ),
    )
    async def list_batches(http: Request) -> Response:
        service = await on()
        found = service.batches.of(owner(http))
        page = _page(found, http, (_BATCHES_LISTED, _MOST_BATCHES_LISTED))
        data = [await shown(service, batch) for batch in page.items]
        return _json(BatchList(data=data, **_ends(page)))

    @router.get(
        f"{_BATCHES}/{{batch_id}}",
        summary="Describe a batch",
        description="Its state, counts and files.",
        responses=answer,
    )
    async def get_batch(http: Request, batch_id: BatchId) -> Response:
        service = await on()
        return _json(await shown(service, service.batches.get(batch_id, owner(http))))

    @router.post(
        f"{_BATCHES}/{{batch_id}}/cancel",
        summary="Cancel a batch",
        description="Its requests that run are aborted. Answers so far become its files.",
        responses=answer,
    )
    async def cancel_batch(http: Request, batch_id: BatchId) -> Response:
        service = await on()
        batch = service.batches.get(batch_id, owner(http))
        return _json(await shown(service, await service.worker.cancel(batch)))


def _json(body: msgspec.Struct) -> Response:
    return Response(to_json(body), media_type="application/json")


def _page(items: list[Item], http: Request, limits: tuple[int, int]) -> Page[Item]:
    return page_of(items, lambda item: item.id, http.query_params, limits)


def _ends(page: Page[Item]) -> dict[str, Any]:
    return {"first_id": page.first_id, "last_id": page.last_id, "has_more": page.has_more}
