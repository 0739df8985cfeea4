"""A start that compiles ahead meets its kernels, compiles them side by side, and launches none of
them."""

from __future__ import annotations

import ast
import logging
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

if find_spec("triton") is None:
    pytest.skip("triton is not installed", allow_module_level=True)
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter compiles nothing", allow_module_level=True)

import psutil
import torch
import triton
from triton.compiler import ASTSource

from atom.model_ops.activations import Activation
from atom.model_ops.backends.triton_ops import activation, norms
from atom.model_ops.backends.triton_ops.activation import act_and_mul
from atom.model_ops.backends.triton_ops.attention import decode_append
from atom.model_ops.backends.triton_ops.attention.decode_append import decode_append_attention
from atom.model_ops.backends.triton_ops.attention.paged_tiles import LayerStep
from atom.model_ops.backends.triton_ops.compile import compiler_pool, compiler_process, warmup
from atom.model_ops.backends.triton_ops.compile.compiler_process import Specialisation
from atom.model_ops.backends.triton_ops.moe import grouped_gemm, grouped_kernel, sort_by_expert
from atom.model_ops.routing import Routed
from atom.model_ops.values import (
    AttentionShape,
    ExpertsWeight,
    LayerCache,
    LinearWeight,
    NormWeight,
    Rotary,
    Stream,
)
from atom.utils.forward_context import AttentionMetaData
from tests.support.kernels.compile_only import CompileOnlyDriver, compile_only
from tests.support.processes import children_of

CPU = torch.device("cpu")
KERNELS = ["_rms_norm_kernel", "_act_and_mul_kernel"]  # of a small step


@pytest.fixture(autouse=True)
def no_card(tmp_path: Path) -> Iterator[None]:
    """Kernels are compiled for a card that is not there, into a cache of the test's own."""
    for kernel in (
        norms._rms_norm_kernel, activation._act_and_mul_kernel,
        grouped_kernel.searched_gemm_kernel, grouped_kernel.sorted_gemm_kernel,
        grouped_gemm._sum_kernel, sort_by_expert._order_kernel,
        decode_append._decode_append_kernel,
    ):  # fmt: skip
        kernel.device_caches.clear()
    with compile_only(), triton.knobs.cache.scope():
        triton.knobs.cache.dir = str(tmp_path)
        yield


def small_step(width: int) -> torch.Tensor:
    """A norm and an activation: one form of each for a width."""
    x = torch.ones(3, width, dtype=torch.bfloat16)
    normed, _ = norms.norm(Stream(x), NormWeight(torch.ones(width, dtype=torch.bfloat16), 1e-6))
    return act_and_mul(normed, Activation.SILU)


def experts_step(tokens: int) -> torch.Tensor:
    """Both products of gated experts: kernels whose arguments are tuples, constants in one of them,
    and None in others. Many tokens are sorted, few are searched."""
    x = torch.ones(tokens, 64, dtype=torch.bfloat16)
    ids = torch.zeros(tokens, 2, dtype=torch.int32)
    w = ExpertsWeight(
        LinearWeight(torch.ones(4, 128, 64, dtype=torch.bfloat16)),
        LinearWeight(torch.ones(4, 64, 64, dtype=torch.bfloat16)),
        Activation.SILU,
    )
    return grouped_gemm.experts(x, w, Routed(ids, torch.ones(tokens, 2)))


def decode_step(scaled: bool) -> torch.Tensor:
    """A decode from the projection on: a cache and a rotation are one argument each."""
    cache = torch.zeros(4, 16, 2, 64, dtype=torch.float8_e4m3fn if scaled else torch.bfloat16)
    scale = torch.ones(4, 16, 2) if scaled else None
    out = torch.empty(3, 4, 64, dtype=torch.bfloat16)
    contexts = torch.ones(3, dtype=torch.int32)
    step = AttentionMetaData(
        query_starts=torch.arange(4, dtype=torch.int32),
        context_lens=contexts,
        block_tables=torch.zeros(3, 4, dtype=torch.int32),
        slot_mapping=torch.zeros(3, dtype=torch.int64),
        num_decodes=3,
        max_query_len=1,
        max_context_len=64,
    )
    layer = LayerStep(
        AttentionShape(4, 2, 64, 0.125), LayerCache(cache, cache.clone(), scale, scale), step
    )
    positions = torch.zeros(3, dtype=torch.int64)
    rotary = Rotary(cos_sin=torch.zeros(64, 64), positions=positions, q_norm=None, k_norm=None)
    decode_append_attention(torch.ones(3, 512, dtype=torch.bfloat16), layer, out, rotary)
    return out


def met_forms(call: Callable[[], object]) -> list[str]:
    """What Triton would compile or look for, in a step that launches nothing."""
    met: list[str] = []
    with triton.knobs.runtime.scope():
        triton.knobs.runtime.jit_cache_hook = lambda *, fn, **_: met.append(fn.name) or True
        with warmup._launching_nothing():
            call()
    return met


def looked_up(call: Callable[[], object]) -> list[tuple[str, bool]]:
    """Kernels that a step has Triton make, and whether they were in its cache on disk."""
    made: list[tuple[str, bool]] = []
    with triton.knobs.compilation.scope():
        triton.knobs.compilation.listener = lambda *, src, cache_hit, **_: made.append(
            (src.name, cache_hit)
        )
        with warmup._launching_nothing():
            call()
    return made


def test_a_step_compiled_ahead_finds_all_of_its_kernels_compiled(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def link(card: CompileOnlyDriver, source: ASTSource, metadata: object) -> None:
        (tmp_path / f"launches{source.name}").touch()

    monkeypatch.setattr(CompileOnlyDriver, "launcher_cls", link)
    with caplog.at_level(logging.INFO):
        with warmup.warmup_compile(CPU, "a start", workers=2) as finish:
            for _ in range(3):  # as layers do
                out = small_step(160)
        finish()
    assert "compiled 2 specialisations by 2 processes" in caplog.text
    assert not out.any(), "where a kernel would have written there are zeros"
    assert looked_up(lambda: small_step(160)) == [(name, True) for name in KERNELS]
    assert all((tmp_path / f"launches{name}").exists() for name in KERNELS)


@pytest.mark.parametrize(
    ("step", "kernels"),
    [
        (partial(experts_step, 3), {"searched_gemm_kernel", "_sum_kernel"}),
        (
            partial(experts_step, 64),
            {"_order_kernel", "sorted_gemm_kernel", "_sum_kernel"},
        ),
        (partial(decode_step, False), {"_decode_append_kernel"}),
        (partial(decode_step, True), {"_decode_append_kernel"}),
    ],
    ids=["searched", "sorted", "decode", "decode of fp8"],
)
def test_kernels_whose_arguments_are_tuples_are_found_compiled(
    step: Callable[[], torch.Tensor], kernels: set[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A specialisation travels as JSON, in which tuples are lists."""
    with warmup.warmup_compile(CPU, "a start", workers=1) as finish:
        step()
    finish()
    assert "not compiled ahead" not in caplog.text
    assert "compiled by threads" not in caplog.text
    found = looked_up(step)
    assert {name for name, _ in found} == kernels
    assert all(hit for _, hit in found)


@pytest.mark.parametrize(
    ("failure", "why"),
    [
        (lambda form: "KeyError: 'target'", "KeyError: 'target'"),
        (lambda form: os._exit(3), "_kernel ended with code 3"),
        (lambda form: signal.pause(), "_kernel took over 0 s"),
    ],
    ids=["refuse", "end", "hang"],
)
def test_threads_compile_what_processes_cannot(
    failure: Callable[[Specialisation], str | None],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(compiler_process, "_failure", failure)
    if "took over" in why:
        monkeypatch.setattr(compiler_process, "_PATIENCE_SECONDS", 0.0)
    with caplog.at_level(logging.INFO):
        with warmup.warmup_compile(CPU, "a start", workers=1) as finish:
            small_step(160)
        finish()
    assert caplog.text.count("compiled by threads from here on") == 1
    assert why in caplog.text
    assert "compiled 2 specialisations by 1 threads" in caplog.text
    assert met_forms(lambda: small_step(160)) == [], "they are in memory, too"


def test_compilers_leave_nothing_behind() -> None:
    before = set(children_of())
    compilers = compiler_pool.CompilerPool(CPU, 2)
    forks, pipes = compilers._processes, [fork._pipe for fork in compilers._processes]
    started = set(children_of()) - before
    assert len(started) == len(forks) == 2
    compilers.give_up()
    assert not any(psutil.pid_exists(fork.pid) for fork in started), "nor as a zombie"
    assert all(pipe.closed for pipe in pipes)
    assert not any(thread.name.startswith("compile") for thread in threading.enumerate())


def test_threads_compile_where_no_process_can_be_started(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(self: object) -> None:
        raise BlockingIOError("too many processes")

    monkeypatch.setattr(multiprocessing.context.ForkProcess, "start", refuse)
    with warmup.warmup_compile(CPU, "a start", workers=2) as finish:
        small_step(160)
    finish()
    assert "no process for them: BlockingIOError('too many processes')" in caplog.text
    assert met_forms(lambda: small_step(160)) == []


def test_a_variable_has_threads_compile(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("ATOM_COMPILE_AHEAD", "threads")
    with caplog.at_level(logging.INFO):
        with warmup.warmup_compile(CPU, "a start", workers=2) as finish:
            small_step(160)
        finish()
    assert "compiled 2 specialisations by 2 threads" in caplog.text
    assert met_forms(lambda: small_step(160)) == []


def test_processes_end_with_the_one_that_started_them() -> None:
    ours, theirs = os.pipe()

    def start_and_wait() -> None:
        compiler_process.start_compilers(2)
        os.write(theirs, b"started")
        signal.pause()

    parent = multiprocessing.get_context("fork").Process(target=start_and_wait)
    parent.start()
    os.close(theirs)
    assert os.read(ours, 7) == b"started"
    parent.kill()
    parent.join()
    assert os.read(ours, 1) == b"", "all who held the pipe are gone"
    os.close(ours)


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

    monkeypatch.setenv("ATOM_COMPILE_AHEAD", "threads")
    with monkeypatch.context() as patched:
        patched.setattr(ast, "parse", watched)
        with warmup.warmup_compile(CPU, "a start", workers=2) as finish:
            small_step(192)
        finish()
    assert not met.is_set()


def test_a_start_is_compiled_ahead_once_while_its_cache_lasts(tmp_path: Path) -> None:
    assert not warmup.is_compiled_ahead(CPU, "a start")
    with warmup.warmup_compile(CPU, "a start", workers=1) as finish:
        pass
    assert not warmup.is_compiled_ahead(CPU, "a start"), "nothing is compiled yet"
    finish()
    assert warmup.is_compiled_ahead(CPU, "a start")
    assert not warmup.is_compiled_ahead(CPU, "another")
    triton.knobs.cache.dir = str(tmp_path / "emptied")
    assert not warmup.is_compiled_ahead(CPU, "a start")


def test_a_warmup_compile_that_fails_leaves_triton_as_it_was_and_no_mark() -> None:
    kernel, hook = triton.JITFunction, triton.knobs.runtime.jit_cache_hook
    run, parse = kernel.run, kernel.parse
    with pytest.raises(RuntimeError, match="of the step"):
        with warmup.warmup_compile(CPU, "a start", workers=1):
            raise RuntimeError("of the step")
    assert kernel.run is run
    assert kernel.parse is parse
    assert triton.knobs.runtime.jit_cache_hook is hook
    assert not warmup.is_compiled_ahead(CPU, "a start")


def test_a_kernel_that_does_not_compile_is_left_to_the_call_that_needs_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(self: object, data: str) -> None:
        raise RuntimeError("out of registers")

    monkeypatch.setattr(triton.JITFunction, "preload", broken)
    with warmup.warmup_compile(CPU, "a start", workers=1) as finish:
        small_step(224)
    with caplog.at_level(logging.WARNING):
        finish()
    assert "was not compiled ahead: out of registers" in caplog.text
    assert "by threads" not in caplog.text, "processes do as well as these"
    assert len(met_forms(lambda: small_step(224))) == 2
