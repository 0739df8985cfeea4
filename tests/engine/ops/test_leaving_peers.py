"""Ranks whose kernels write each other's memory leave in the order that such memory asks for."""

from __future__ import annotations

import weakref

import pytest
import torch

from atom.collectives.group import Alone
from atom.collectives.peer_buffers import PeerBuffers, new_buffer
from atom.model_ops.backends.triton_ops.allreduce_group import PeerGroup


class Witness(Alone):
    """Notes at each word to the other ranks what this one still holds."""

    def __init__(self, **tensors: torch.Tensor) -> None:
        self._held = {name: weakref.ref(tensor) for name, tensor in tensors.items()}
        self.seen: list[tuple[str, set[str]]] = []

    def barrier(self) -> None:
        self._note("barrier")

    def close(self) -> None:
        self._note("close")

    def _note(self, word: str) -> None:
        self.seen.append((word, {name for name, held in self._held.items() if held() is not None}))


@pytest.mark.parametrize(
    ("rows", "hidden", "takes"), [(2, 64, True), (4, 64, True), (5, 64, False), (2, 32, False)]
)
def test_parts_of_few_rows_as_wide_as_the_models_are_taken(
    rows: int, hidden: int, takes: bool
) -> None:
    """A draft model's rows may be narrower: the group underneath adds those up."""
    own = new_buffer(torch.device("cpu"), 2, 64 * 4)[:, :, :4]
    addresses, sums = torch.zeros(2, dtype=torch.int64), torch.zeros(256, dtype=torch.int32)
    group = PeerGroup(Witness(), PeerBuffers(0, own, addresses, sums))
    residual = torch.zeros(rows, hidden)
    assert group.takes_parts(residual) is takes
    if not takes:
        assert group.add_and_norm(residual, residual, torch.ones(hidden), 1e-6) is None


def test_memory_of_others_is_let_go_before_any_rank_frees_its_own() -> None:
    own, others = (torch.zeros((2, 2, 256, 1), dtype=torch.int64) for _ in range(2))
    witness = Witness(own=own, others=others)
    addresses, sums = torch.zeros(2, dtype=torch.int64), torch.zeros(256, dtype=torch.int32)
    group = PeerGroup(witness, PeerBuffers(0, own, addresses, sums, (others,)))
    del own, others
    group.close()
    assert witness.seen == [("barrier", {"own", "others"}), ("barrier", {"own"}), ("close", set())]
