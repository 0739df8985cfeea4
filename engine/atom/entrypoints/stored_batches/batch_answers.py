"""BatchAnswers: the two files of a batch's answers, and how they end.

An answer is appended to one of them by one write, and the files tell what is answered, so a batch
that is ended at any moment goes on without asking a request twice. Blocking.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atom.entrypoints.http.errors import LEAST_ERROR
from atom.entrypoints.request_lines.batch_lines import (
    AnswerFile,
    answer_line,
    error_line,
    lines_of,
    read_request,
)
from atom.entrypoints.stored_batches.line_check import MOST_LINE_BYTES

_NO_STATUS = 1000  # every answer counts, errors of the server too
_EXPIRED = "this request was not answered within the batch's completion_window"


@dataclass(frozen=True, slots=True)
class Ended:
    """Count the requests of a batch that has ended. expired: some had no answer in time."""

    completed: int
    failed: int
    expired: bool


class BatchAnswers:
    def __init__(self, output: Path, errors: Path, grow: Callable[[int], None]) -> None:
        """grow: called with the bytes of each line before it is written; may refuse them. Raises
        `ConfigError`."""
        self._output = _open(output)
        try:
            self._errors = _open(errors)
        except BaseException:
            self._output.close()
            raise
        self._grow = grow
        self._refused = {name for name, _ in self._errors.refused if name is not None}

    def has(self, custom_id: str) -> bool:
        return (
            self._output.has(custom_id) or self._errors.has(custom_id) or custom_id in self._refused
        )

    def answer(self, custom_id: str, status: int, body: bytes) -> None:
        file = self._output if status < LEAST_ERROR else self._errors
        self._append(file, answer_line(custom_id, status, body))

    def refuse(self, custom_id: str | None, message: str) -> None:
        self._append(self._errors, error_line(custom_id, message))

    def _append(self, file: AnswerFile, line: bytes) -> None:
        self._grow(len(line))
        file.append(line)

    @property
    def num_answered(self) -> tuple[int, int]:
        """Count the requests that were answered, and that failed, before this run."""
        return len(self._output.answered), len(self._errors.answered | self._refused)

    def expire(self, requests: Path) -> None:
        """Write that the file's other requests were not answered in time."""
        for number, line in lines_of(requests, MOST_LINE_BYTES):
            name = read_request(line, number).custom_id
            if not self.has(name):
                self._append(self._errors, error_line(name, _EXPIRED, "batch_expired"))
                self._refused.add(name)
                self._errors.refused.add((name, _EXPIRED))

    @property
    def ended(self) -> Ended:
        completed, failed = self.num_answered
        expired = any(message == _EXPIRED for _, message in self._errors.refused)
        return Ended(completed, failed, expired)

    def close(self) -> None:
        self._output.close()
        self._errors.close()


def _open(path: Path) -> AnswerFile:
    # Clients read the error, and the paths of the server are none of theirs.
    return AnswerFile(path, least_fault=_NO_STATUS, title="a file of --batch-dir")
