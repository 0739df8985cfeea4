"""Copies of pages between the KV cache and contiguous rows, by the kernels of the device.

Bytes alone, so the choice depends on the device and on no model: Triton's kernel on a GPU if Triton
is there, and otherwise PyTorch. The C backend has the reference's layout of blocks and copies as
PyTorch does.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Protocol, cast

import torch

from atom.model_ops.page_table import PageTable

_PACKAGE = "atom.model_ops.backends"


class PageOps(Protocol):
    """Copies whole pages. blocks: int64 [n] on the table's device; pages: uint8 [n, page_bytes] on
    that device, each row contiguous; sums: int64 [n] on that device, zeros, which get checksums of
    the pages: of 64 bits, the same for the same table and bytes, and of this device alone."""

    def read_pages(
        self,
        table: PageTable,
        blocks: torch.Tensor,
        pages: torch.Tensor,
        sums: torch.Tensor | None = None,
    ) -> None:
        """Copy blocks to pages."""
        ...

    def write_pages(
        self,
        table: PageTable,
        blocks: torch.Tensor,
        pages: torch.Tensor,
        sums: torch.Tensor | None = None,
    ) -> None:
        """Copy pages to blocks, which are different ones."""
        ...


def page_ops(device: torch.device) -> PageOps:
    """Choose the copies of a device."""
    has_kernel = device.type == "cuda" and find_spec("triton") is not None
    module = "triton_ops.pages" if has_kernel else "torch_ref.pages"
    return cast(PageOps, import_module(f"{_PACKAGE}.{module}"))
