"""Where the parity matrix runs: on a GPU, or with TRITON_INTERPRET=1 on CPU tensors.

Elsewhere its files are not collected: test_interpreted.py runs them in a process of their own,
because Triton decides at import whether it interprets.
"""

from __future__ import annotations

import os

import pytest
import torch

from atom.model_ops.backends import available_backends
from atom.model_ops.backends.interface import Backend
from tests.engine.ops.inputs import load_backend

_CAN_RUN = torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if _CAN_RUN else ["parity/*"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(params=[name for name in available_backends() if name != "torch_ref"])
def backend(request: pytest.FixtureRequest) -> Backend:
    found = load_backend(request.param)
    if found.unusable:
        pytest.skip(f"{request.param}: {'; '.join(found.unusable)}")
    return found


@pytest.fixture
def reference() -> Backend:
    return load_backend("torch_ref")
