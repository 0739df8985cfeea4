"""Compiling side by side: a start's steps are run once without their kernels, only to meet them.

A kernel is compiled when a call first needs one of its forms, and the call waits: a first start
would compile some sixty, one after the other. In a rehearsal a launch compiles in a pool of threads
and starts nothing (Triton's passes hold no interpreter lock, its assembler is a process). Other
operations run as they do, on zeros where a kernel would have written: tokens, places and tables of
zero are valid everywhere. What a rehearsal leaves out is compiled later as ever, so it decides how
long a start takes and nothing else. A mark beside Triton's cache says that a start was rehearsed.
"""

from __future__ import annotations

import ast
import hashlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import triton
from torch.overrides import TorchFunctionMode
from triton.runtime.jit import JITCallable, JITFunction

logger = logging.getLogger(__name__)

_UNFILLED = {
    torch.empty,
    torch.empty_like,
    torch.empty_strided,
    torch.Tensor.new_empty,
    torch.Tensor.new_empty_strided,
}


def is_rehearsed(device: torch.device, start: str) -> bool:
    """Whether a start has been rehearsed; start: tells what runs from what would need other forms.
    A cache that was emptied since has lost its marks, too."""
    return _mark(device, start).exists()


@contextmanager
def rehearsal(device: torch.device, start: str, workers: int) -> Iterator[Callable[[], None]]:
    """Within it, in this thread, kernels are met and not launched. What it gives, called behind it,
    waits until they are compiled."""
    forms = _Forms(device, workers)

    def finish() -> None:
        forms.wait()
        logger.info("compiled %d forms of kernels by %d threads", forms.count, workers)
        mark = _mark(device, start)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    hook = triton.knobs.runtime.jit_cache_hook
    triton.knobs.runtime.jit_cache_hook = forms.meet
    try:
        with _launching_nothing(), _Zeros():
            yield finish
    except BaseException:
        forms.give_up()
        raise
    finally:
        triton.knobs.runtime.jit_cache_hook = hook


class _Forms:
    """The forms that were met, on their way through the compiler."""

    def __init__(self, device: torch.device, workers: int) -> None:
        self._device = device
        self._own = threading.local()
        self._compiled: dict[tuple[str, str, str], Future[object]] = {}
        self._pool = ThreadPoolExecutor(workers, "compile", self._enter_thread)
        self._parse = JITCallable.parse
        JITCallable.parse = _by_turns(self._parse)

    @property
    def count(self) -> int:
        return len(self._compiled)

    def wait(self) -> None:
        self._end(at_once=False)
        for form, done in self._compiled.items():
            if (error := done.exception()) is not None:  # the call that needs it will say so, too
                logger.warning("%s was not compiled ahead: %s", form[1], error)

    def give_up(self) -> None:
        self._end(at_once=True)

    def meet(self, *, key: str, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        """Triton's hook before it compiles; True keeps it from doing so."""
        if getattr(self._own, "compiles", False):
            return False
        form = (fn.module, fn.name, key)
        if form not in self._compiled:
            preload: Callable[[str], object] = fn.jit_function.preload
            self._compiled[form] = self._pool.submit(preload, compile["specialization_data"])
        return True

    def _end(self, at_once: bool) -> None:
        self._pool.shutdown(cancel_futures=at_once)
        JITCallable.parse = self._parse

    def _enter_thread(self) -> None:
        self._own.compiles = True
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)


def _by_turns(parse: Callable[[JITCallable], ast.AST]) -> Callable[[JITCallable], ast.AST]:
    """Python 3.11 keeps one depth of syntax trees for all threads, and raises SystemError in the
    one that finds it changed: kernels' sources are parsed one after the other."""
    turn = threading.Lock()

    def parse_alone(function: JITCallable) -> ast.AST:
        with turn:
            return parse(function)

    return parse_alone


class _Zeros(TorchFunctionMode):
    """Fills what is allocated: nothing writes to it."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        return made.zero_() if func in _UNFILLED else made


@contextmanager
def _launching_nothing() -> Iterator[None]:
    """Each launch is what Triton calls a warm-up: it has the kernel made, and no more."""
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
    return Path(triton.knobs.cache.dir) / f"atom-rehearsed-{digest.hexdigest()[:24]}"


def _sources() -> str:
    """Of all kernels and of what chooses among them."""
    digest = hashlib.sha256(triton.__version__.encode())
    for path in sorted(Path(__file__).parent.rglob("*.[pj][ys]*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
