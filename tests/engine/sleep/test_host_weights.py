"""Weights that wait in the host's memory come back as they were, whatever is a view of them."""

from __future__ import annotations

import torch
from torch import nn

from atom.model_engine.runner.host_weights import HostWeights


class Tied(nn.Module):
    """Two names of one matrix, a table, and a view that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(5, 7)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(11))
        self.upper = self.first.weight.data[2:]


def test_storages_are_emptied_and_filled_again() -> None:
    model = Tied()
    expected = [each.detach().clone() for each in (model.first.weight, model.table, model.upper)]
    kept = HostWeights([model, nn.ModuleList([model.first])])
    assert kept.nbytes == (5 * 7 + 7 + 7) * 4 + 11 * 8
    for _ in range(2):
        kept.give_back()
        held = {each.untyped_storage() for each in (*model.parameters(), *model.buffers())}
        assert not any(each.nbytes() for each in held)
        kept.restore()
        kept.restore()  # what is back stays
        found = [model.second.weight, model.table, model.upper]
        assert all(map(torch.equal, found, expected))
