"""LoadRecorder: writes a line for each request that has ended, in the format of a timed trace.

    {"timestamp": 12.5, "input_length": 40, "output_length": 8, "hash_ids": [7, 9]}

A thread hashes and writes, so that the event loop does neither. Lines come in the order in which
requests ended, and `timestamp` is the seconds from the first request's arrival to this one's. The
file is new, bounded, and has no text. A fault of the disk ends the recording, never the server.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from atom.entrypoints.recording.prompt_hashes import prompt_hashes
from atom.entrypoints.recording.record_options import RecordOptions
from atom.errors import ConfigError
from atom.model_engine.request import Request

logger = logging.getLogger(__name__)

_MOST_FILES = 1000  # of one name, each with a number but the first
_MOST_WAITING = 10_000  # prompts and lines for the thread, beyond which a stuck disk loses lines
_OWNER_ALONE = 0o600


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request whose answer is not complete. hash_ids: are being computed."""

    time: float
    input_tokens: int
    hash_ids: Future[list[int]]


def open_recorder(options: RecordOptions) -> LoadRecorder | None:
    """Begin a recording, if there is to be one. A file that exists stays as it is: the recording
    then has a number in its name. Raises `ConfigError` if no file can be made."""
    if options.file is None:
        return None
    path, file = _new_file(options.file)
    logger.info("recording the load (lengths, times and hashes of prompts) in %s", path)
    return LoadRecorder(path, file, options.most_bytes)


def _new_file(path: Path) -> tuple[Path, BinaryIO]:
    names = [path, *(path.with_stem(f"{path.stem}-{number}") for number in range(2, _MOST_FILES))]
    for name in names:
        try:
            file = name.open("xb", buffering=0)
            name.chmod(_OWNER_ALONE)
        except FileExistsError:
            continue
        except OSError as error:
            raise ConfigError(
                f"--record {path}: cannot be written ({error.strerror}); name a file elsewhere"
            ) from error
        return name, file
    raise ConfigError(f"--record {path}: {_MOST_FILES} recordings of this name exist; name another")


class LoadRecorder:
    """Records requests until its file is full or it is closed. Its calls belong to one thread."""

    def __init__(self, path: Path, file: BinaryIO, most_bytes: int) -> None:
        self._path = path
        self._file = file
        self._left_bytes = most_bytes
        self._key = secrets.token_bytes(32)
        self._began: float | None = None
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="record")
        self._ended = threading.Event()  # nothing more is written
        self._waiting = threading.Semaphore(_MOST_WAITING)
        self.num_recorded = 0
        self.num_lost = 0

    def arrived(self, request: Request) -> Arrival | None:
        """Note a request that was queued; None if it is not recorded."""
        if self._ended.is_set():
            return None
        if not self._waiting.acquire(blocking=False):
            self._lose()
            return None
        if self._began is None:
            self._began = request.arrive_time
        hashes = self._worker.submit(self._hashed, request)
        return Arrival(request.arrive_time, len(request.prompt_token_ids), hashes)

    def answered(self, arrival: Arrival, output_tokens: int) -> None:
        """Record a request whose answer had so many tokens, at least one."""
        if self._ended.is_set() or self._began is None:
            return
        if not self._waiting.acquire(blocking=False):
            self._lose()
            return
        line: dict[str, object] = {
            "timestamp": round(arrival.time - self._began, 4),
            "input_length": arrival.input_tokens,
            "output_length": output_tokens,
        }
        self._worker.submit(self._write, line, arrival.hash_ids)

    def close(self) -> None:
        """Write the rest, and end."""
        self._worker.shutdown()
        self._ended.set()
        self._file.close()

    def _lose(self) -> None:
        if not self.num_lost:
            logger.warning("%s: the disk is slow, and requests are left out", self._path)
        self.num_lost += 1

    # ---- on the thread ------------------------------------------------------------------------

    def _hashed(self, request: Request) -> list[int]:
        try:
            return prompt_hashes(request, self._key)
        finally:
            self._waiting.release()

    def _write(self, line: dict[str, object], hash_ids: Future[list[int]]) -> None:
        try:
            if not self._ended.is_set():
                self._append({**line, "hash_ids": hash_ids.result()})
        except OSError as error:
            logger.warning("%s: the recording ends: %s", self._path, error)
            self._ended.set()
        finally:
            self._waiting.release()

    def _append(self, line: dict[str, object]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if len(data) > self._left_bytes:
            logger.warning(
                "%s: the recording ends after %d requests, which fill --record-mib",
                *(self._path, self.num_recorded),
            )
            self._ended.set()
            return
        self._file.write(data)
        self._left_bytes -= len(data)
        self.num_recorded += 1
