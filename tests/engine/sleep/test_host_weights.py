"""Weights that wait in the host's memory come back as they were, whatever is a view of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from atom.model_engine.runner.sleep import host_weights
from atom.model_engine.runner.sleep.host_weights import HostMemory, HostWeights


class Tied(nn.Module):
    """Two names of one matrix, a table, and a view that is no parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(5, 7)
        self.second.weight = self.first.weight
        self.register_buffer("table", torch.arange(11))
        self.upper = self.first.weight.data[2:]


@pytest.mark.parametrize("slab", [1 << 20, 64, 7])
def test_storages_are_emptied_and_filled_again(slab: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a storage lies in one slab or over several."""
    monkeypatch.setattr(host_weights, "_SLAB_BYTES", slab)
    model = Tied()
    expected = [each.detach().clone() for each in (model.first.weight, model.table, model.upper)]
    kept = HostWeights([model, nn.ModuleList([model.first])], HostMemory(100))
    assert kept.nbytes == (5 * 7 + 7 + 7) * 4 + 11 * 8
    for _ in range(2):
        kept.empty()
        held = {each.untyped_storage() for each in (*model.parameters(), *model.buffers())}
        assert not any(each.nbytes() for each in held)
        kept.refill()
        kept.refill()  # what is back stays
        found = [model.second.weight, model.table, model.upper]
        assert all(map(torch.equal, found, expected))


def test_weights_that_kept_their_addresses_are_overwritten() -> None:
    model = Tied()
    expected = model.upper.clone()
    kept = HostWeights([model], HostMemory(0))
    model.first.weight.data.fill_(7.0)
    kept.refill()
    assert torch.equal(model.upper, expected)
