"""What a plan counts for buffers between ranks is what the kernels then keep, or more."""

from __future__ import annotations

import pytest
import torch

from atom.collectives.peer_buffers import new_buffer
from atom.model_ops.backends.aiter_ops.rank_group import _ROOM_BYTES
from atom.sizing import communication_bytes
from atom.sizing.weights import Sharding


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("hidden", [2048, 8192, 16384])
def test_buffers_of_sums_of_few_rows(ranks: int, hidden: int) -> None:
    row_bytes = 2 * hidden
    library = communication_bytes(row_bytes, Sharding(ranks), nodes=2)
    planned = communication_bytes(row_bytes, Sharding(ranks)) - library
    buffer = new_buffer(torch.device("meta"), ranks, row_bytes)
    assert planned == max(buffer.nbytes, 2 * _ROOM_BYTES)
