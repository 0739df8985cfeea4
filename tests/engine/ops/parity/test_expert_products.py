"""Each row is multiplied with the matrix of a stack that it names."""

from __future__ import annotations

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.values import LinearWeight


@pytest.mark.parametrize("pairs", [5, 130], ids=["few", "many"])
def test_every_row_has_the_matrix_that_it_names(
    pairs: int, backend: Backend, device: torch.device
) -> None:
    w = LinearWeight(torch.randn(6, 48, 64, device=device), torch.randn(6, 48, device=device))
    x = torch.randn(pairs, 64, device=device)
    ids = torch.randint(-2, 9, (pairs,), dtype=torch.int32, device=device)
    told = backend.operations["expert_products"](x, w, ids)
    assert bool(told.isfinite().all())
    assert w.bias is not None
    for row, expert in enumerate(ids.tolist()):
        if 0 <= expert < 6:
            wanted = w.data[expert] @ x[row] + w.bias[expert]
            torch.testing.assert_close(told[row], wanted, rtol=1e-4, atol=1e-4)
