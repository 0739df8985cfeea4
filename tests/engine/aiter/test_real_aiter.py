"""The adapters with the real AITER: on an AMD device, `pytest -m rocm tests/engine/aiter`."""

from __future__ import annotations

import pytest
import torch

from atom.first_hour.exercises import EXERCISES
from atom.model_ops.backends import load_backend
from atom.utils.device import amd_architecture


@pytest.mark.rocm
@pytest.mark.parametrize("name", EXERCISES)
def test_an_operation_gives_what_the_reference_gives(name: str) -> None:
    backend = load_backend("aiter")
    if backend.unusable:
        pytest.skip("; ".join(backend.unusable))
    exercise, cards = EXERCISES[name]
    if amd_architecture() not in cards:
        pytest.skip(f"is for {' and '.join(cards)}")
    torch.manual_seed(0)
    with torch.device("cuda", 0), torch.inference_mode():
        exercise(dict(backend.operations))
