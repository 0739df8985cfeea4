"""The bodies of requests about files and batches, and the answers to them: OpenAI's."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from atom.entrypoints.request_lines.batch_lines import URLS
from atom.entrypoints.stored_batches.records import (
    BatchRecord,
    BatchState,
    Problem,
    StoredFile,
)

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400}
_MOST_DAYS = 30
_EXPIRY = (3600, _MOST_DAYS * 86400)  # OpenAI's bounds


def window_seconds(text: str) -> int:
    """Return the seconds of a completion window. Raises `ValueError`."""
    match = _WINDOW.fullmatch(text)
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 0 < seconds <= _MOST_DAYS * 86400:
        raise ValueError(f"is a time such as 24h, 90m or 7d, at most {_MOST_DAYS}d")
    return seconds


def _window(text: str) -> str:
    window_seconds(text)
    return text


def _endpoint(text: str) -> str:
    if text not in URLS:
        raise ValueError(f"is one of {', '.join(URLS)}")
    return text


class _Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")


class ExpiresAfter(_Body):
    """Set the time at which a file is deleted."""

    anchor: Annotated[
        Literal["created_at"], Field(description="The moment that the time is counted from.")
    ]
    seconds: Annotated[
        int, Field(ge=_EXPIRY[0], le=_EXPIRY[1], description="Seconds after that moment.")
    ]


class UploadFields(_Body):
    """The fields of an upload beside the file."""

    purpose: Annotated[
        Literal["batch"], Field(description="What the file is for: requests of a batch.")
    ]
    expires_after: Annotated[
        ExpiresAfter | None,
        Field(description="When the file is deleted; it stays until it is, unless sent."),
    ] = None


class FileUpload(UploadFields):
    """A form of POST /v1/files."""

    file: Annotated[
        str,
        Field(
            description="Lines of JSON, each with custom_id, method (POST), url and body.",
            json_schema_extra={"format": "binary"},
        ),
    ]


Metadata = dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]]


class BatchRequestBody(_Body):
    """A body of POST /v1/batches."""

    input_file_id: Annotated[str, Field(description="Id of a file that was uploaded.")]
    endpoint: Annotated[
        str,
        AfterValidator(_endpoint),
        Field(
            description="Address that answers every request of the file.",
            json_schema_extra={"enum": list(URLS)},
        ),
    ]
    completion_window: Annotated[
        str,
        AfterValidator(_window),
        Field(
            description="Time after which requests without an answer expire, such as 24h, 90m or "
            "7d."
        ),
    ]
    metadata: Annotated[
        Metadata | None,
        Field(max_length=16, description="Your own notes, which are shown with the batch."),
    ] = None
    output_expires_after: Annotated[
        ExpiresAfter | None,
        Field(description="When the files of answers are deleted; they stay, unless sent."),
    ] = None


class FileObject(msgspec.Struct, frozen=True, omit_defaults=False):
    """A file as the API shows it."""

    id: Annotated[str, Meta(description="Id of the file.")]
    bytes: Annotated[int, Meta(description="Size.")]
    created_at: Annotated[int, Meta(description="Unix time of the upload.")]
    filename: Annotated[str, Meta(description="Name that the client gave.")]
    purpose: Annotated[str, Meta(description="batch, or batch_output for answers.")]
    expires_at: Annotated[int | None, Meta(description="Unix time at which it is deleted.")] = None
    status: Annotated[str, Meta(description="Always processed.")] = "processed"
    object: Annotated[Literal["file"], Meta(description="Always file.")] = "file"


class DeletedFile(msgspec.Struct, frozen=True):
    id: Annotated[str, Meta(description="Id of the file.")]
    deleted: Annotated[bool, Meta(description="Always true.")] = True
    object: Annotated[Literal["file"], Meta(description="Always file.")] = "file"


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    first_id: Annotated[str | None, Meta(description="Id of the first item shown.")] = None
    last_id: Annotated[str | None, Meta(description="Id of the last item shown.")] = None
    has_more: Annotated[bool, Meta(description="Whether there are more after it.")]
    object: Annotated[Literal["list"], Meta(description="Always list.")] = "list"


class FileList(_Page, frozen=True, kw_only=True):
    data: Annotated[list[FileObject], Meta(description="The files, the newest first.")]


class RequestCounts(msgspec.Struct, frozen=True):
    total: Annotated[int, Meta(description="Requests of the file, once they are counted.")]
    completed: Annotated[int, Meta(description="Those with an answer.")]
    failed: Annotated[int, Meta(description="Those with an error.")]


class BatchProblem(msgspec.Struct, frozen=True):
    code: Annotated[str, Meta(description="A word that a program can look at.")]
    message: Annotated[str, Meta(description="What is wrong, and where.")]
    line: Annotated[int | None, Meta(description="Line of the input file, from 1.")] = None
    param: Annotated[str | None, Meta(description="Always null.")] = None


class BatchProblems(msgspec.Struct, frozen=True):
    data: Annotated[list[BatchProblem], Meta(description="The first problems.")]
    object: Annotated[Literal["list"], Meta(description="Always list.")] = "list"


class BatchTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Unix times of a batch; null for a state that it has not had."""

    created_at: Annotated[int, Meta(description="Unix time at which it was made.")]
    expires_at: Annotated[int, Meta(description="Unix time at which its window ends.")]
    in_progress_at: Annotated[int | None, Meta(description="Unix time of its first request.")] = (
        None
    )
    finalizing_at: Annotated[int | None, Meta(description="Unix time after its last request.")] = (
        None
    )
    completed_at: Annotated[int | None, Meta(description="Unix time at which it was complete.")] = (
        None
    )
    failed_at: Annotated[int | None, Meta(description="Unix time at which it failed.")] = None
    expired_at: Annotated[int | None, Meta(description="Unix time at which it expired.")] = None
    cancelling_at: Annotated[int | None, Meta(description="Unix time of POST .../cancel.")] = None
    cancelled_at: Annotated[
        int | None, Meta(description="Unix time at which it was cancelled.")
    ] = None


class BatchObject(BatchTimes, frozen=True, kw_only=True):
    """A batch as the API shows it."""

    id: Annotated[str, Meta(description="Id of the batch.")]
    endpoint: Annotated[str, Meta(description="Address that answers its requests.")]
    errors: Annotated[BatchProblems | None, Meta(description="Why it failed.")] = None
    input_file_id: Annotated[str, Meta(description="Id of the file of requests.")]
    completion_window: Annotated[str, Meta(description="As it was sent.")]
    status: Annotated[BatchState, Meta(description="Its state.")]
    output_file_id: Annotated[
        str | None, Meta(description="Id of the file of answers, at the end, if there are some.")
    ] = None
    error_file_id: Annotated[
        str | None, Meta(description="Id of the file of errors, at the end, if there are some.")
    ] = None
    request_counts: Annotated[RequestCounts, Meta(description="Its requests by outcome.")]
    metadata: Annotated[dict[str, str] | None, Meta(description="As it was sent.")] = None
    object: Annotated[Literal["batch"], Meta(description="Always batch.")] = "batch"


class BatchList(_Page, frozen=True, kw_only=True):
    data: Annotated[list[BatchObject], Meta(description="The batches, the newest first.")]


def file_object(file: StoredFile) -> FileObject:
    return FileObject(
        id=file.id,
        bytes=file.size_bytes,
        created_at=file.created_at,
        filename=file.filename,
        purpose=file.purpose,
        expires_at=file.expires_at,
    )


def batch_object(batch: BatchRecord, counts: tuple[int, int]) -> BatchObject:
    """Show a batch. counts: of its requests that were answered, and that failed, so far."""
    completed, failed = counts
    times: dict[str, Any] = {
        f"{state}_at": batch.times.get(state)
        for state in BatchState
        if state is not BatchState.VALIDATING
    }
    return BatchObject(
        id=batch.id,
        endpoint=batch.order.endpoint,
        errors=_problems(batch.problems),
        input_file_id=batch.order.input_file_id,
        completion_window=batch.order.completion_window,
        status=batch.state,
        output_file_id=batch.output_id if batch.completed else None,
        error_file_id=batch.error_id if batch.failed else None,
        request_counts=RequestCounts(batch.total, completed, failed),
        metadata=batch.order.metadata,
        created_at=batch.created_at,
        expires_at=batch.expires_at,
        **times,
    )


def _problems(problems: tuple[Problem, ...]) -> BatchProblems | None:
    if not problems:
        return None
    return BatchProblems([BatchProblem(each.code, each.message, each.line) for each in problems])
