"""A rehearsed start meets its kernels, compiles them side by side, and launches none of them."""

from __future__ import annotations

import ast
import logging
import os
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import torch
import triton

from atom.model_ops.backends.triton_ops import norms, rehearsal
from atom.model_ops.backends.triton_ops.activation import act_and_mul
from atom.model_ops.values import Activation, NormWeight, Stream
from tests.support.compile_only import compile_only

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_card(tmp_path: Path) -> Iterator[None]:
    """Kernels are compiled for a card that is not there, into a cache of the test's own."""
    with compile_only(), triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        yield


def small_step(width: int) -> torch.Tensor:
    """A norm and an activation: one form of each for a width."""
    x = torch.ones(3, width, dtype=torch.bfloat16)
    normed, _ = norms.norm(Stream(x), NormWeight(torch.ones(width, dtype=torch.bfloat16), 1e-6))
    return act_and_mul(normed, Activation.SILU)


def compiled_forms(call: object) -> list[str]:
    """What is compiled while a rehearsal's kernels are met once more."""
    met: list[str] = []
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = lambda *, fn, **_: met.append(fn.name) or True
        with rehearsal._launching_nothing():
            call()
    return met


def test_a_rehearsed_step_finds_all_of_its_kernels_compiled() -> None:
    assert len(compiled_forms(lambda: small_step(160))) == 2
    with rehearsal.rehearsal(CPU, "a start", workers=2) as finish:
        for _ in range(3):  # as layers do
            out = small_step(160)
    finish()
    assert not out.any(), "where a kernel would have written there are zeros"
    assert compiled_forms(lambda: small_step(160)) == []


def test_kernels_are_parsed_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's parser fails in a thread beside whose tree another one is built."""
    parse, inside, met = ast.parse, threading.Semaphore(1), threading.Event()

    def watched(source: str) -> ast.Module:
        if not inside.acquire(blocking=False):
            met.set()
            return parse(source)
        met.wait(0.1)  # for one that must not come
        try:
            return parse(source)
        finally:
            inside.release()

    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", watched)
        with rehearsal.rehearsal(CPU, "a start", workers=2) as finish:
            small_step(192)
        finish()
    assert not met.is_set()


def test_a_start_is_rehearsed_once_while_its_cache_lasts(tmp_path: Path) -> None:
    assert not rehearsal.is_rehearsed(CPU, "a start")
    with rehearsal.rehearsal(CPU, "a start", workers=1) as finish:
        pass
    assert not rehearsal.is_rehearsed(CPU, "a start"), "nothing is compiled yet"
    finish()
    assert rehearsal.is_rehearsed(CPU, "a start")
    assert not rehearsal.is_rehearsed(CPU, "another")
    triton.knobs.cache.dir = str(tmp_path / "emptied")
    assert not rehearsal.is_rehearsed(CPU, "a start")


def test_a_rehearsal_that_fails_leaves_triton_as_it_was_and_no_mark() -> None:
    kernel, hook = triton.JITFunction, triton.knobs.runtime.jit_cache_hook
    run, parse = kernel.run, kernel.parse
    with pytest.raises(RuntimeError, match="of the step"):
        with rehearsal.rehearsal(CPU, "a start", workers=1):
            raise RuntimeError("of the step")
    assert kernel.run is run
    assert kernel.parse is parse
    assert triton.knobs.runtime.jit_cache_hook is hook
    assert not rehearsal.is_rehearsed(CPU, "a start")


def test_a_kernel_that_does_not_compile_is_left_to_the_call_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: object, data: str) -> None:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(triton.JITFunction, "preload", broken)
    with rehearsal.rehearsal(CPU, "a start", workers=1) as finish:
        small_step(224)
    with caplog.at_level(logging.WARNING):
        finish()
    assert "was not compiled ahead: out of registers" in caplog.text
    assert len(compiled_forms(lambda: small_step(224))) == 2
