"""Which backends the parity matrix compares with the reference here.

The Triton kernels run on a GPU, or with TRITON_INTERPRET=1 on CPU tensors: in a process of their
own, started by test_interpreted.py, because Triton decides at import whether it interprets. The
CPU's backends run wherever there is no GPU.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.interface import Backend, OpCase
from atom.model_ops.backends.op_names import FUSED_OPS
from tests.engine.ops.inputs import load_backend
from tests.support.kernels.interpreted_bfloat16 import compute_in_bfloat16
from tests.support.kernels.quick_interpreter import spare_repeated_work

_ON_GPU = torch.cuda.is_available()
_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
_BACKENDS = ["triton"] if _ON_GPU or _INTERPRETED else ["torch_cpu", "native_cpu"]
if _INTERPRETED:
    spare_repeated_work()
_FOLDER = Path(__file__).parent
# Tests of single kernels rather than of a backend's operations.
_OF_KERNELS = [
    str(path.relative_to(_FOLDER))
    for path in (_FOLDER / "parity").rglob("test_*.py")
    if "backends.triton_ops" in path.read_text() or path.name == "test_batch_invariant.py"
]
collect_ignore_glob = [] if "triton" in _BACKENDS else _OF_KERNELS


@pytest.fixture(autouse=True)
def fixed_draws() -> None:
    """A test's inputs are its own, whatever ran before it: bounds hold for what was measured."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def shared_card() -> Iterator[None]:
    """A card may be several workers': each gives back what its test had."""
    yield
    if _ON_GPU:
        torch.cuda.empty_cache()


@pytest.fixture(autouse=True)
def shared_loops() -> Iterator[None]:
    """Two threads share the loops of the CPU's backends, as in an engine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1 if _INTERPRETED else 2)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels compute in bfloat16 as on a card, those of other activations too."""
    if _INTERPRETED:
        compute_in_bfloat16(monkeypatch)


@pytest.fixture
def device() -> torch.device:
    return torch.device("cuda", 0) if _ON_GPU else torch.device("cpu")


@pytest.fixture(params=_BACKENDS)
def backend(request: pytest.FixtureRequest, reference: Backend) -> Backend:
    """What the CPU's lacks comes from the reference or is composed, as in an engine; the kernels'
    must lack nothing."""
    found = load_backend(request.param)
    if found.unusable:
        pytest.skip(f"{request.param}: {'; '.join(found.unusable)}")
    asked = getattr(request.node, "callspec", None)
    dtype = asked.params.get("dtype", torch.float32) if asked else torch.float32
    reasons = found.reasons_against("linear", OpCase(dtype=dtype, kv_dtype=dtype))
    if reasons:
        pytest.skip(f"{request.param}: {'; '.join(reasons)}")
    if found.name == "triton":
        return found
    return _composed(found, reference)


def _composed(found: Backend, reference: Backend) -> Backend:
    single = reference.operations | found.operations
    ops = SimpleNamespace(**single)
    fused = {op: getattr(ComposedOps(ops), op) for op in FUSED_OPS}
    vars(ops).update(fused | found.operations)  # some are composed of others
    return replace(found, operations=single | fused | found.operations)


@pytest.fixture
def takes_padding(backend: Backend) -> bool:
    """Whether the backend is made for graphs, whose batches have padding rows."""
    return backend.name == "triton"


@pytest.fixture
def reference() -> Backend:
    return load_backend("torch_ref")


@pytest.fixture
def composed(reference: Backend) -> Backend:
    """The reference, with what is made of its operations."""
    return _composed(reference, reference)
