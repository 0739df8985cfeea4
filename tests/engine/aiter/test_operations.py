"""Every operation of AITER's adapters gives what the reference gives, on every card and generation.

AITER is the double of its contracts; what is compared is what the adapters make of them.
"""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends import load_backend
from atom.self_test.exercises import EXERCISES
from tests.support.aiter.aiter_models import amd_card
from tests.support.fake_aiter import GENERATIONS

CASES = [(name, card) for name, (_, cards) in EXERCISES.items() for card in cards]


@pytest.mark.singles
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(("name", "card"), CASES, ids=lambda part: part)
def test_an_operation_gives_what_the_reference_gives(
    name: str, card: str, generation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    with amd_card(monkeypatch, generation, card) as aiter, torch.inference_mode():
        EXERCISES[name][0](load_backend("aiter").operations)
    assert aiter.calls
    assert not [call for call in aiter.calls if call.positional], "adapters pass keywords alone"
