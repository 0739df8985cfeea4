"""Warm-up compile: run a start's steps once without their kernels, to find every specialisation.

Triton compiles a kernel when a call first needs a specialisation of it (a signature and its
constants), and the call waits: a first start would compile some sixty, one after the other. In a
warm-up compile a launch hands its specialisation to compilers (CompilerPool) and does not run the
kernel. The results are in Triton's cache when a later launch needs them. Other operations run
normally, on zeros in place of kernels' results: tokens, places and tables of zero are valid
everywhere. A specialisation that is missed is compiled later as usual, so the warm-up changes the
time of a start and nothing else. A mark beside Triton's cache records that a start has completed
it.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITFunction

from atom.model_ops.backends.triton_ops.compile.compiler_pool import CompilerPool
from atom.model_ops.backends.triton_ops.compile.compiler_process import Specialisation

logger = logging.getLogger(__name__)

_UNFILLED = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
}


def is_compiled_ahead(device: torch.device, start: str) -> bool:
    """Return whether a start like this one was compiled ahead. start: a key of all settings that
    decide its specialisations. A cache that was emptied since has lost its marks, too."""
    return _mark(device, start).exists()


@contextmanager
def warmup_compile(device: torch.device, start: str, workers: int) -> Iterator[Callable[[], None]]:
    """Open a context in which this thread's launches are compiled and not run. It yields a function
    which, called after the context, waits until all are compiled."""
    began = time.perf_counter()
    compilers = CompilerPool(device, workers)
    ready = time.perf_counter()

    def meet(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Hand Triton's specialisation to the compilers (Triton's hook before it compiles); True
        keeps Triton from compiling it."""
        if compilers.is_calling:
            return False
        compilers.compile(Specialisation(fn.module, fn.name, compile["specialization_data"]))
        return True

    def finish() -> None:
        waits = time.perf_counter()
        compilers.wait()
        ends = time.perf_counter()
        logger.info(
            "compiled %d specialisations by %s in %.1f s, begun in %.1f, waited for %.1f",
            *(compilers.count, compilers.means, ends - ready, ready - began, ends - waits),
        )
        mark = _mark(device, start)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    hook = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = meet
    try:
        with _launching_nothing(), _Zeros():
            yield finish
    except BaseException:
        compilers.give_up()
        raise
    finally:
        triton.knobs.runtime.jit_cache_hook = hook


class _Zeros(TorchFunctionMode):
    """A torch mode that fills allocated tensors with zeros, since no kernel writes them."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func in _UNFILLED else made


@contextmanager
def _launching_nothing() -> Iterator[None]:
    """Open a context in which each launch is Triton's warm-up: it has the kernel compiled, and does
    not run it."""
    run = JITFunction.run

    def only_warm(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> Any:
        return run(self, *args, grid=grid, warmup=True, **options)

    JITFunction.run = only_warm
    try:
        yield
    finally:
        JITFunction.run = run


def _mark(device: torch.device, start: str) -> Path:
    digest = hashlib.sha256(f"{_sources()}|{device.type}|{start}".encode())
    if device.type == "cuda":
        digest.update(torch.cuda.get_device_name(device).encode())
    return Path(triton.knobs.cache.dir) / f"atom-compiled-ahead-{digest.hexdigest()[:24]}"


def _sources() -> str:
    """Return a hash of Triton's version, all kernels, and the code and tables that choose among
    them."""
    digest = hashlib.sha256(triton.__version__.encode())
    for path in sorted(Path(__file__).parent.parent.rglob("*.[pj][ys]*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
