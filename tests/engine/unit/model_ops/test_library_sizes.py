"""The vendor's library is used at the numbers of rows at which it gave the kernel's bits, and at
none where the numbers that were tried could not show another order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton")

from atom.model_ops.backends.batch_invariant import library
from atom.model_ops.values import LinearWeight


@pytest.fixture(autouse=True)
def nothing_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_alike", {})


def _weight(value: float | None = None) -> LinearWeight:
    draw = torch.Generator().manual_seed(1)
    data = torch.randn(24, 32, generator=draw) if value is None else torch.full((24, 32), value)
    return LinearWeight(data)


class Kernel:
    """Multiply as the library does, up to so many rows; beyond them with another last bit."""

    def __init__(self, most: int) -> None:
        self.most, self.tried = most, 0

    def __call__(self, x: torch.Tensor, w: LinearWeight, *, in_two: bool) -> torch.Tensor:
        self.tried += 1
        out = F.linear(x, w.data, w.bias)
        out[self.most :] = torch.nextafter(out[self.most :], torch.tensor(torch.inf))
        return out + 1e-3 * out if in_two else out


def test_sizes_that_agree_are_kept_and_rows_are_filled_up_to_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Row by row: the library of this machine may itself take another order for other rows.
    monkeypatch.setattr(F, "linear", lambda x, w, bias: torch.stack([w @ row for row in x]))
    w, kernel = _weight(), Kernel(most=400)
    library.note_sizes_alike(w, kernel)
    assert library.sizes_alike(w) == (64, 128, 256, 384)
    x = torch.randn(70, 32)
    out = library.library_linear(x, w, library.sizes_alike(w))
    assert torch.equal(out, F.linear(x, w.data, None))
    library.note_sizes_alike(w, kernel)
    assert kernel.tried == 3, "a shape is tried once"


def test_numbers_that_show_no_order_prove_nothing() -> None:
    w = _weight(0.0)
    library.note_sizes_alike(w, Kernel(most=4096))
    assert library.sizes_alike(w) == ()


def test_an_unknown_shape_has_no_sizes() -> None:
    assert library.sizes_alike(_weight()) == ()
