"""Files and batches as they are kept on disk, and the names of their parts. Pure."""

from __future__ import annotations

import re
from enum import StrEnum
from secrets import token_hex

import msgspec

_FILE_ID = re.compile(r"file-[0-9a-f]{32}(?:-output|-error)?")
_BATCH_ID = re.compile(r"batch_[0-9a-f]{32}")
MOST_PROBLEMS = 20  # that a failed batch lists


class Purpose(StrEnum):
    """Name the purposes of files as the API does. Clients upload only the first kind."""

    BATCH = "batch"
    BATCH_OUTPUT = "batch_output"


class BatchState(StrEnum):
    """Name the states of a batch as the API does."""

    VALIDATING = "validating"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    CANCELLING = "cancelling"
    COMPLETED = "completed"
    FAILED = "failed"
    EXPIRED = "expired"
    CANCELLED = "cancelled"


OPEN_STATES = (
    BatchState.VALIDATING, BatchState.IN_PROGRESS, BatchState.FINALIZING, BatchState.CANCELLING,
)  # fmt: skip


class StoredFile(msgspec.Struct, frozen=True):
    """Describe a kept file. owner: label of its client; empty without keys. Times in Unix seconds;
    expires_at: None for never."""

    id: str
    owner: str
    filename: str
    purpose: Purpose
    size_bytes: int
    created_at: int
    expires_at: int | None = None


class Problem(msgspec.Struct, frozen=True):
    """State why a batch failed. line: of the input file, from 1; None for the file as a whole."""

    code: str
    message: str
    line: int | None = None


class BatchOrder(msgspec.Struct, frozen=True):
    """Hold a batch as it was asked for. output_seconds: after which its answers are deleted."""

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None
    output_seconds: int | None = None


class BatchRecord(msgspec.Struct, frozen=True):
    """Describe a batch. expires_at, and times (by the state that then began): in Unix seconds.
    total: lines of its file, once they are counted; completed, failed: once it has ended."""

    id: str
    owner: str
    order: BatchOrder
    state: BatchState
    expires_at: int
    times: dict[BatchState, int]
    total: int = 0
    completed: int = 0
    failed: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def created_at(self) -> int:
        return self.times[BatchState.VALIDATING]

    @property
    def output_id(self) -> str:
        """Return the id of the file of answers, which exists if there are some."""
        return f"file-{self.id.removeprefix('batch_')}-output"

    @property
    def error_id(self) -> str:
        """Return the id of the file of failed requests, which exists if there are some."""
        return f"file-{self.id.removeprefix('batch_')}-error"

    def entering(self, state: BatchState, now: int, **changes: object) -> BatchRecord:
        """Return the batch in its next state."""
        times = {**self.times, state: now}
        return msgspec.structs.replace(self, state=state, times=times, **changes)


def new_file_id() -> str:
    return f"file-{token_hex(16)}"


def new_batch_id() -> str:
    return f"batch_{token_hex(16)}"


def is_file_id(text: str) -> bool:
    """Return whether a text is an id of ours: only such a text may become a name on disk."""
    return _FILE_ID.fullmatch(text) is not None


def is_batch_id(text: str) -> bool:
    return _BATCH_ID.fullmatch(text) is not None
