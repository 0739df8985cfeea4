"""The places of a step's decodes in the latent cache, and their division by AITER's persistent MLA
kernel.

They are computed once a step for all layers, except for tokens that attend to each layer's own
selection; on the device alone, so that a captured step replays the computation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from atom.model_ops.backends.aiter_ops.library import Library
from atom.utils.forward_context import AttentionMetaData

# Blocks of this size are pages as they are; of others each token is one.
_PAGE = 64
_GRANULARITY = 16
_BUFFERS = (  # in the order of get_mla_metadata_info_v1, which is not that of its filler
    "work_metadata_ptrs",
    "work_indptr",
    "work_info_set",
    "reduce_indptr",
    "reduce_final_map",
    "reduce_partial_map",
)


@dataclass(frozen=True, slots=True)
class LatentRows:
    """The cache pages of rows. queries, pages [rows + 1], last [rows] int32: the first query and
    page of each row, and the fill of its last page; indices int32: the rows' pages one after the
    other; work: the kernel's division."""

    queries: torch.Tensor
    pages: torch.Tensor
    indices: torch.Tensor
    last: torch.Tensor
    page_size: int
    work: dict[str, torch.Tensor]


@dataclass(frozen=True, slots=True)
class LatentDecode:
    """A layer's decode: `heads` in dtype, over blocks of block_size tokens."""

    heads: int
    dtype: torch.dtype
    block_size: int

    @property
    def page_size(self) -> int:
        return _PAGE if self.block_size == _PAGE else 1


def latent_rows(library: Library, asked: LatentDecode, step: AttentionMetaData) -> LatentRows:
    """Find the pages of the step's decodes."""
    key = f"aiter.latent_rows.{asked.heads}"
    found: LatentRows | None = step.per_step.get(key)
    if found is None:
        found = step.per_step[key] = _planned(library, asked, step)
    return found


def _planned(library: Library, asked: LatentDecode, step: AttentionMetaData) -> LatentRows:
    rows, page = step.num_decodes, asked.page_size
    contexts = step.context_lens[:rows]
    counts = (contexts + page - 1) // page
    pages = torch.zeros(rows + 1, dtype=torch.int32, device=contexts.device)
    pages[1:] = counts.cumsum(0)
    queries = torch.arange(rows + 1, dtype=torch.int32, device=contexts.device)
    last = contexts - (counts - 1).clamp_min(0) * page
    indices = _indices(asked, step, counts, pages)
    return _divided(library, asked, LatentRows(queries, pages, indices, last, page, {}))


def selected_rows(library: Library, asked: LatentDecode, selected: torch.Tensor) -> LatentRows:
    """Return each token as a separate row, whose pages are its selected slots [T, k] (below 0:
    none)."""
    rows, most = selected.shape
    found = selected >= 0
    pages = torch.zeros(rows + 1, dtype=torch.int32, device=selected.device)
    pages[1:] = found.sum(1).cumsum(0)
    # Unused selections are placed after all others.
    place = torch.where(found, pages[:-1].unsqueeze(1) + found.cumsum(1) - 1, rows * most)
    room = torch.zeros(rows * most + 1, dtype=torch.int32, device=selected.device)
    indices = room.scatter_(0, place.flatten(), selected.flatten().to(torch.int32))
    queries = torch.arange(rows + 1, dtype=torch.int32, device=selected.device)
    last = torch.ones(rows, dtype=torch.int32, device=selected.device)
    return _divided(library, asked, LatentRows(queries, pages, indices, last, 1, {}))


def _divided(library: Library, asked: LatentDecode, rows: LatentRows) -> LatentRows:
    """Add the kernel's own division of the rows' work to them."""
    shapes = library["get_mla_metadata_info_v1"](
        batch_size=len(rows.last),
        max_seqlen_qo=1,
        num_head_qo=asked.heads,
        q_dtype=asked.dtype,
        kv_dtype=asked.dtype,
        is_sparse=False,
        fast_mode=True,
    )
    work = {
        name: torch.empty(shape, dtype=dtype, device=rows.last.device)
        for name, (shape, dtype) in zip(_BUFFERS, shapes, strict=True)
    }
    library["get_mla_metadata_v1"](
        seqlens_qo_indptr=rows.queries,
        seqlens_kv_indptr=rows.pages,
        kv_last_page_lens=rows.last,
        num_heads_per_head_k=asked.heads,
        num_heads_k=1,
        is_causal=True,
        page_size=rows.page_size,
        kv_granularity=max(rows.page_size, _GRANULARITY),
        max_seqlen_qo=1,
        uni_seqlen_qo=1,
        fast_mode=True,
        dtype_q=asked.dtype,
        dtype_kv=asked.dtype,
        **work,
    )
    return replace(rows, work=work)


def _indices(
    asked: LatentDecode, step: AttentionMetaData, counts: torch.Tensor, pages: torch.Tensor
) -> torch.Tensor:
    """Return page indices, padded to the most that there may be, since only the device knows the
    count."""
    rows, per_block = len(counts), asked.block_size // asked.page_size
    most = -(-step.max_context_len // asked.page_size)
    at = torch.arange(most, device=counts.device)
    blocks = step.block_tables[:rows].index_select(1, at // per_block)
    found = blocks * per_block + (at % per_block).to(torch.int32)  # [rows, most]
    # Pages that a row does not have are placed after all others.
    place = torch.where(at < counts.unsqueeze(1), pages[:-1].unsqueeze(1) + at, rows * most)
    room = torch.zeros(rows * most + 1, dtype=torch.int32, device=counts.device)
    return room.scatter_(0, place.flatten().long(), found.flatten())
