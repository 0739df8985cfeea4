"""Arrays sent together arrive as they were sent one by one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from atom.utils.device import upload, upload_together

ARRAYS = {
    "odd": np.arange(5, dtype=np.int32),
    "none": np.zeros(0, dtype=np.int64),
    "table": np.arange(300, dtype=np.int32).reshape(3, 100)[:, ::3],
    "share": np.array([0.25], dtype=np.float32),
    "wide": np.arange(7, dtype=np.int64) - 3,
}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[
            pytest.mark.gpu,
            pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU"),
        ],
    ),
]


@pytest.mark.parametrize("name", DEVICES)
def test_each_has_its_shape_type_and_values(name: str) -> None:
    device = torch.device(name)
    together = upload_together(ARRAYS, device)
    assert list(together) == list(ARRAYS)
    for key, array in ARRAYS.items():
        alone = upload(array, device)
        assert together[key].dtype == alone.dtype
        assert torch.equal(together[key], alone)
        assert together[key].is_contiguous()
        assert together[key].data_ptr() % 16 == 0 or device.type == "cpu"
