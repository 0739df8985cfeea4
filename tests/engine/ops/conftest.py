"""Which backends the parity matrix compares with the reference here.

The Triton kernels run on a GPU, or with TRITON_INTERPRET=1 on CPU tensors: in a process of their
own, started by test_interpreted.py, because Triton decides at import whether it interprets. The
CPU's backend runs wherever there is no GPU.
"""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from atom.model_ops.backends.interface import Backend
from tests.engine.ops.inputs import load_backend

_ON_GPU = torch.cuda.is_available()
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_BACKENDS = ["triton"] if _ON_GPU or _INTERPRETED else ["torch_cpu"]
collect_ignore_glob = [] if "triton" in _BACKENDS else ["parity/test_skinny_linear.py"]


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", 0) if _ON_GPU else torch.device("cpu")


@pytest.fixture(params=_BACKENDS)
def backend(request: pytest.FixtureRequest, reference: Backend) -> Backend:
    """Operations that it lacks come from the reference, as in an engine."""
    found = load_backend(request.param)
    if found.unusable:
        pytest.skip(f"{request.param}: {'; '.join(found.unusable)}")
    return replace(found, operations=reference.operations | found.operations)


@pytest.fixture
def takes_padding(backend: Backend) -> bool:
    """Whether the backend is made for graphs, whose batches have rows of nobody."""
    return backend.name == "triton"


@pytest.fixture
def reference() -> Backend:
    return load_backend("torch_ref")
