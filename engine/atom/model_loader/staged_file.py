"""StagedFile: copy whole tensors of a safetensors file onto a GPU, through pinned memory.

A mapped file is read page by page, and copied once more before a GPU gets it. This class reads it
in large pieces into pinned memory, from which the GPU copies directly, one piece while another is
in flight. load_plan.py has checked the header before.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

_PIECE_BYTES = 16 << 20
_LENGTH_BYTES = 8  # of the header's length, in front of it


@dataclass(frozen=True, slots=True)
class StagedTensor:
    """A tensor on its device, complete once the queued copies are, and some of its values on the
    host."""

    whole: torch.Tensor
    sample: torch.Tensor


class StagedFile:
    """An open file; several threads may call `read`, each with two pieces of memory."""

    def __init__(self, descriptor: int) -> None:
        length = int.from_bytes(os.pread(descriptor, _LENGTH_BYTES, 0), "little")
        self._descriptor = descriptor
        self._header: dict[str, Any] = json.loads(os.pread(descriptor, length, _LENGTH_BYTES))
        self._begin = _LENGTH_BYTES + length
        self._of_thread = threading.local()

    @classmethod
    @contextmanager
    def opened(cls, file: Path) -> Iterator[StagedFile]:
        """Open a context with the file. Raises OSError."""
        descriptor = os.open(file, os.O_RDONLY)
        try:
            yield cls(descriptor)
        finally:
            os.close(descriptor)

    def read(self, name: str, like: torch.Tensor) -> StagedTensor:
        """Read a tensor of the header's shape and of `like`'s dtype onto the device of `like`.
        Raises OSError."""
        begin, end = self._header[name]["data_offsets"]
        whole = torch.empty(self._header[name]["shape"], dtype=like.dtype, device=like.device)
        flat, samples = whole.view(-1).view(torch.uint8), []
        for first in range(0, end - begin, _PIECE_BYTES):
            piece, travelled = self._next_piece()
            piece = piece[: end - begin - first]
            travelled.synchronize()
            self._read_piece(piece, self._begin + begin + first)
            values = piece.view(like.dtype)
            samples.append(values[:: max(1, len(values) // 64)].clone())
            flat[first : first + len(piece)].copy_(piece, non_blocking=True)
            travelled.record()
        return StagedTensor(whole, torch.cat(samples) if samples else whole.cpu())

    def _read_piece(self, piece: torch.Tensor, offset: int) -> None:
        left = piece.numpy().data
        while left:
            count = os.preadv(self._descriptor, [left], offset)
            if count == 0:
                raise OSError("the file ends before its tensors do")
            left, offset = left[count:], offset + count

    def _next_piece(self) -> tuple[torch.Tensor, torch.cuda.Event]:
        own = self._of_thread
        if not hasattr(own, "pieces"):
            own.pieces = [
                (torch.empty(_PIECE_BYTES, dtype=torch.uint8, pin_memory=True), torch.cuda.Event())
                for _ in range(2)
            ]
        own.pieces.reverse()
        found: tuple[torch.Tensor, torch.cuda.Event] = own.pieces[0]
        return found
