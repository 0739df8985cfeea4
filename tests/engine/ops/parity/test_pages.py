"""Pages of every kind of cache are copied to the byte, and no other block changes."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.torch_ref import pages as reference_pages
from atom.model_ops.page_table import PageTable

BLOCKS = 7
# Tensors of a layer, by the shape of a block; elements of different sizes make words of one byte.
CACHES: dict[str, list[tuple[tuple[int, ...], torch.dtype]]] = {
    "dense": [((16, 2, 8), torch.float32), ((16, 2, 8), torch.float32)] * 3,
    "bf16": [((4, 1, 6), torch.bfloat16), ((4, 1, 6), torch.bfloat16)] * 2,
    "fp8-scales": [((16, 2, 16), torch.float8_e4m3fn)] * 2 + [((16, 2), torch.float32)] * 2,
    "latent-indexer": [((16, 40), torch.bfloat16), ((16, 8), torch.bfloat16)],
    "odd-bytes": [((3, 5), torch.uint8), ((1, 7), torch.bfloat16)],
    "long-rows": [((16, 5, 300), torch.float32)],
    "states": [((2, 12, 8), torch.float32), ((20, 3), torch.float32)],
}


def page_module(backend: Backend) -> object:
    name = "triton_ops" if backend.name == "triton" else "torch_ref"
    return import_module(f"atom.model_ops.backends.{name}.pages")


def drawn(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    size = int(np.prod(shape)) * dtype.itemsize
    draw = np.random.default_rng(seed).integers(0, 256, size, dtype=np.uint8)
    return torch.from_numpy(draw).view(dtype).view(shape)


def caches(kind: str, form: str, device: torch.device) -> tuple[list[torch.Tensor], int]:
    """The tensors of a group: each alone, two layers side by side in a tensor, or all in one
    block."""
    found: list[torch.Tensor] = []
    if form == "packed":
        sizes = [int(np.prod(shape)) * dtype.itemsize for shape, dtype in CACHES[kind]]
        ends = np.cumsum([-(-size // 4) * 4 for size in sizes]).tolist()
        pool = drawn((BLOCKS, ends[-1] + 8), torch.uint8, 1).to(device)
        for (shape, dtype), size, first in zip(CACHES[kind], sizes, [0, *ends], strict=False):
            part = pool[:, first : first + size].view(dtype)
            found.append(part.view(BLOCKS, *shape))
        return found, 1
    factor = 2 if form == "side-by-side" else 1
    for number, (shape, dtype) in enumerate(CACHES[kind]):
        whole = drawn((BLOCKS * factor, *shape), dtype, number).to(device)
        found.append(whole[number % factor :])
    return found, factor


@pytest.mark.parametrize("form", ["alone", "side-by-side", "packed"])
@pytest.mark.parametrize("kind", CACHES)
def test_pages_return_to_the_byte(
    backend: Backend, device: torch.device, kind: str, form: str
) -> None:
    if form == "packed" and kind == "odd-bytes":
        form = "alone"  # no block packs elements at odd addresses
    module = page_module(backend)
    tensors, factor = caches(kind, form, device)
    table = PageTable.of(tensors, factor)
    before = [segment.memory.clone() for segment in table.segments]
    blocks = torch.tensor([5, 0, 3], device=device)
    pages = torch.zeros(3, table.page_bytes, dtype=torch.uint8, device=device)
    expected = pages.clone()
    sums, expected_sums = (torch.zeros(3, dtype=torch.int64, device=device) for _ in range(2))
    module.read_pages(table, blocks, pages, sums)  # type: ignore[attr-defined]
    reference_pages.read_pages(table, blocks, expected, expected_sums)
    assert torch.equal(pages, expected)
    assert torch.equal(sums, expected_sums)
    assert len(set(sums.tolist())) == 3
    assert pages.any(dim=1).all()
    others = torch.tensor([1, 6, 2], device=device)
    again = torch.zeros_like(sums)
    module.write_pages(table, others, pages, again)  # type: ignore[attr-defined]
    assert torch.equal(sums, again)
    for segment, old in zip(table.segments, before, strict=True):
        old[others * factor] = old[blocks * factor]
        assert torch.equal(segment.memory, old)


@pytest.mark.parametrize("kind", CACHES)
def test_any_wrong_word_changes_a_checksum(kind: str) -> None:
    """Also two words with the same bit, and two that are exchanged."""
    tensors, factor = caches(kind, "alone", torch.device("cpu"))
    table = PageTable.of(tensors, factor)
    draw = np.random.default_rng(1)
    page = torch.from_numpy(draw.integers(0, 256, (1, table.page_bytes), dtype=np.uint8))
    seen: dict[bytes, int] = {}

    def note() -> None:
        seen[page.numpy().tobytes()] = int(reference_pages.page_sums(table, page))

    for at in draw.integers(0, table.page_bytes, 60).tolist():
        for bit in range(8):
            page[0, at] ^= 1 << bit
            note()
            other = (at + 8) % table.page_bytes
            page[0, other] ^= 1 << bit
            note()
            page[0, other] ^= 1 << bit
            page[0, at] ^= 1 << bit
    note()
    assert len(seen) > 100
    assert len(set(seen.values())) == len(seen)
    swapped = page.clone()
    swapped[0, :8], swapped[0, 8:16] = page[0, 8:16], page[0, :8]
    assert int(reference_pages.page_sums(table, swapped)) != seen[page.numpy().tobytes()]
