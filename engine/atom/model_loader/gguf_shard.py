"""Read the weights of a GGUF file through the interface of a safetensors file.

A tensor is dequantised as it is read, some rows at a time, into the dtype that it is served in:
besides the parameter itself, memory holds only a few MiB in float32. Rows that llama.cpp has
permuted for its rotary embedding are returned in the checkpoint's order. The `gguf` package decodes
quantised blocks. Called by load_plan.py and weight_loader.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch

from atom.errors import ModelError
from atom.gguf_file.header import StoredTensor, read_header
from atom.gguf_file.model_config import model_config
from atom.gguf_file.tensor_names import ROPE_FACTORS, checkpoint_name, is_rotated

# Of a tensor's float32 values at a time; decoding needs it some five times over.
_CHUNK_BYTES = 4 << 20
_ROTATED_ARCHITECTURE = "llama"

Region = Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class StoredSlice:
    """The shape and dtype of a tensor, with the methods of safetensors' slices."""

    shape: tuple[int, ...]

    def get_shape(self) -> list[int]:
        """Return the shape, rows first."""
        return list(self.shape)

    def get_dtype(self) -> str:
        """Return the type that values are dequantised to first."""
        return "F32"


class GgufShard:
    """An open GGUF file. Threads may read it side by side."""

    def __init__(self, file: Path) -> None:
        """Raises `ModelError` when it is damaged or of a kind that is not read."""
        header = read_header(file)
        config = model_config(header)
        self._file = file
        self._tensors: Mapping[str, StoredTensor] = {
            checkpoint_name(name): tensor
            for name, tensor in header.tensors.items()
            if name != ROPE_FACTORS  # which are in the configuration
        }
        rotated = header.metadata["general.architecture"] == _ROTATED_ARCHITECTURE
        self._head_dim = int(config["head_dim"]) if rotated else 0
        self._descriptor = os.open(file, os.O_RDONLY)

    def keys(self) -> list[str]:
        """List the tensors by their names in a Hugging Face checkpoint."""
        return list(self._tensors)

    def get_slice(self, name: str) -> StoredSlice:
        """Return the shape and dtype that the tensor will have."""
        return StoredSlice(self._tensors[name].shape)

    def read(self, name: str, region: Region, dtype: torch.dtype) -> torch.Tensor:
        """Read a region of a tensor, first and end in each dimension. Raises `ModelError`."""
        tensor = self._tensors[name]
        rows = self._rows_at_once(tensor)
        if len(tensor.shape) == 1:
            ((first, end),) = region
            (values,) = self._decoded(tensor, 0, 1)
            column = values.reshape(-1, 1)
            return torch.from_numpy(self._in_order(tensor, column)[first:end, 0]).to(dtype)
        (first, end), (left, right) = region
        found = torch.empty(end - first, right - left, dtype=dtype)
        for at in range(first // rows * rows, end, rows):
            upto = min(at + rows, tensor.shape[0])
            values = self._in_order(tensor, self._decoded(tensor, at, upto))
            low, high = max(at, first), min(upto, end)
            part = torch.from_numpy(values[low - at : high - at, left:right])
            found[low - first : high - first].copy_(part)
        return found

    def _rows_at_once(self, tensor: StoredTensor) -> int:
        """Return the rows to read at once: whole heads if the tensor's rows are permuted."""
        unit = self._head_dim if self._head_dim and is_rotated(tensor.name) else 1
        if tensor.shape[0] % unit or len(tensor.shape) > 2:
            raise ModelError(
                f"{self._file}: {tensor.name} has shape {list(tensor.shape)}, and is to have rows "
                f"of whole heads of {unit}; the file is damaged: download it again"
            )
        return max(1, _CHUNK_BYTES // (4 * tensor.shape[-1] * unit)) * unit

    def _decoded(self, tensor: StoredTensor, first: int, end: int) -> Any:
        """Decode rows of a tensor to an array [rows, columns] float32."""
        from gguf.constants import GGMLQuantizationType
        from gguf.quants import dequantize

        size = (end - first) * tensor.row_bytes
        data = os.pread(self._descriptor, size, tensor.first_byte + first * tensor.row_bytes)
        if len(data) != size:
            raise ModelError(
                f"{self._file}: {tensor.name} cannot be read to its end: the file has become "
                "shorter; copy or download it again"
            )
        stored = np.frombuffer(data, dtype=np.uint8).reshape(end - first, tensor.row_bytes)
        with np.errstate(all="ignore"):  # the loader reports scales that are NaN
            values = dequantize(stored, GGMLQuantizationType[tensor.kind.name])
        return values.reshape(end - first, tensor.shape[-1]).astype(np.float32, copy=False)

    def _in_order(self, tensor: StoredTensor, rows: Any) -> Any:
        """Undo llama.cpp's permutation of the elements of each head, [.., 2] to [2, ..]."""
        if not self._head_dim or not is_rotated(tensor.name):
            return np.require(rows, requirements="W")
        pairs = rows.reshape(-1, self._head_dim // 2, 2, rows.shape[-1])
        return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)

    def __enter__(self) -> GgufShard:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._descriptor)
