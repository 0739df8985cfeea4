"""Which backends the parity matrix compares with the reference here.

The Triton kernels run on a GPU, or in Triton's interpreter on CPU tensors. The interpreter needs a
process that runs nothing else: test_interpreted.py starts one, and so does a command line that
names only tests of kernels (tests/support/kernels/interpreter_choice.py). The CPU's backends run
wherever there is no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from atom.model_ops.backends.backend import Backend
from atom.model_ops.backends.composed import ComposedOps
from atom.model_ops.backends.op_case import OpCase
from atom.model_ops.backends.op_names import FUSED_OPS
from tests.engine.ops.inputs import load_backend
from tests.support.kernels.interpreted_bfloat16 import compute_in_bfloat16
from tests.support.kernels.interpreter_choice import is_interpreting, kernel_files
from tests.support.kernels.quick_interpreter import spare_repeated_work

_ON_GPU = torch.cuda.is_available()
_INTERPRETED = is_interpreting()
_BACKENDS = ["triton"] if _ON_GPU or _INTERPRETED else ["torch_cpu", "native_cpu"]
if _INTERPRETED:
    spare_repeated_work()
_LEFT_OUT = pytest.StashKey[list[Path]]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave tests of single kernels out of a run that cannot run kernels."""
    if "triton" in _BACKENDS or collection_path not in kernel_files():
        return None
    asked = [config.invocation_params.dir / each.partition("::")[0] for each in config.args]
    if any(collection_path.is_relative_to(each) for each in asked):
        config.stash.setdefault(_LEFT_OUT, []).append(collection_path)
    return True


def pytest_itemcollected(item: pytest.Item) -> None:
    """In the interpreter each value of a matrix has one case in `make test`: a fault of a kernel is
    one of a dtype or of a shape. A format of weights has code of its own on each path, so tests of
    formats that ask for pairs have them. Other runs, and `make test-all`, have all cases."""
    if not _INTERPRETED or not isinstance(item, pytest.Function):
        return
    of_formats = "kind" in getattr(item, "callspec", SimpleNamespace(params={})).params
    if not (of_formats and item.get_closest_marker("pairs")):
        item.add_marker(pytest.mark.singles)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    config = terminalreporter.config
    left_out = config.stash.get(_LEFT_OUT, [])
    if left_out:
        terminalreporter.write_line(
            f"\n{len(left_out)} files test single kernels, which run in Triton's interpreter: "
            "`make test-interpreted` runs them all, and "
            f"`pytest {left_out[0].relative_to(config.rootpath)}` runs one"
        )


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
