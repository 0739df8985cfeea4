"""The batch sizes that decode steps are recorded for."""

from __future__ import annotations

import pytest

from atom.model_engine.runner.cuda_graphs.graph_parts import bucket_sizes


@pytest.mark.parametrize(
    ("most", "sizes"),
    [
        (1, [1]),
        (3, [1, 2, 3]),
        (8, [1, 2, 4, 8]),
        (16, [1, 2, 4, 8, 16]),
        (20, [1, 2, 4, 8, 16, 20]),
        (48, [1, 2, 4, 8, 16, 32, 48]),
    ],
)
def test_small_batches_double_and_large_ones_grow_by_sixteen(most: int, sizes: list[int]) -> None:
    assert bucket_sizes(most) == sizes


@pytest.mark.parametrize("most", range(1, 513, 7))
def test_every_batch_has_a_size_that_is_not_much_larger(most: int) -> None:
    sizes = bucket_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for rows in range(1, most + 1):
        fitting = next(size for size in sizes if size >= rows)
        assert fitting < rows + 16
