"""Open the files of tensors that are read together with another file's: the scales of a matrix.

A checkpoint is cut into files between any two tensors, so that a matrix and its scales may be
separate. Each such file is opened once while one file is loaded, by several threads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Any, Self

from atom.model_loader.load_plan import StoredAt, opened


class OtherFiles:
    """The places of all companions, and the open files; `file` is open already, as `shard`."""

    def __init__(self, places: Mapping[str, StoredAt], file: Path, shard: Any) -> None:
        self._places = places
        self._open: dict[Path, Any] = {file: shard}
        self._lock, self._stack = Lock(), ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def place(self, names: Sequence[str]) -> StoredAt:
        """Return the place of a tensor by any of its names; the plan has one."""
        return next(self._places[name] for name in names if name in self._places)

    def opened(self, file: Path) -> Any:
        """Return the open file. Raises `ModelError` if it cannot be opened any more."""
        with self._lock:
            if file not in self._open:
                self._open[file] = self._stack.enter_context(opened(file))
            return self._open[file]
