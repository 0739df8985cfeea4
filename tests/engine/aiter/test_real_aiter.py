"""The adapters with the real AITER: `make test-aiter` on a machine with a GPU and that package.

On AMD's cards all of it. On NVIDIA's AITER's Triton functions, where their import allows; exercises
that need others are skipped with what their import said.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from atom.model_ops.backends import load_backend
from atom.model_ops.backends.aiter_ops.library import load_library
from atom.self_test.exercises import EXERCISES
from atom.utils import device
from tests.support.aiter.aiter_models import amd_card

# Like an H200, it has e4m3fn.
STAND_IN = "gfx950"


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The architecture that adapters take this machine's GPU for."""
    if not torch.cuda.is_available():
        pytest.skip("torch sees no GPU")
    found = device.amd_architecture()
    if found is None:
        # Read when aiter is imported: it then leaves out what it would compile for AMD's cards.
        monkeypatch.setitem(os.environ, "AITER_TRITON_ONLY", "1")
        monkeypatch.setattr("atom.utils.device.amd_architecture", lambda: STAND_IN)
    with torch.device("cuda", 0):
        yield found or STAND_IN


@pytest.mark.aiter
@pytest.mark.parametrize("name", EXERCISES)
def test_an_operation_gives_what_the_reference_gives(name: str, card: str) -> None:
    _try(name, card)


def test_what_an_installation_lacks_is_skipped_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with amd_card(monkeypatch, "2026-08", STAND_IN, lacking=["aiter.silu_and_mul"]):
        _try("norms", STAND_IN)
        with pytest.raises(pytest.skip.Exception, match="has no silu_and_mul"):
            _try("activation", STAND_IN)
    with pytest.raises(pytest.skip.Exception, match="torch sees no AMD GPU"):
        _try("activation", STAND_IN)


def _try(name: str, card: str) -> None:
    exercise, cards = EXERCISES[name]
    if card not in cards:
        pytest.skip(f"is for {' and '.join(cards)}")
    backend = load_backend("aiter")
    if backend.unusable:
        pytest.skip("; ".join(backend.unusable))
    torch.manual_seed(0)
    library = load_library()
    try:
        with torch.inference_mode():
            exercise(dict(backend.operations))
    except KeyError as error:
        reasons = library.reasons_without(*error.args)
        if not reasons:
            raise
        pytest.skip("; ".join(reasons))
