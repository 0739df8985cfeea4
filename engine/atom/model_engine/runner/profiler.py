"""TorchProfiler: traces of a running engine core, begun and ended by UTILITY messages.

One trace at a time, written as a gzipped Chrome trace below the configured folder. A trace that
no message ends is ended after `LIMIT_SECONDS`, since it grows with every step. Knows no steps and
no sockets; EngineCore owns one and calls it from the thread that runs the model. Imports torch only
when a trace begins.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

LIMIT_SECONDS = 300.0


class TorchProfiler:
    def __init__(
        self, folder: str | None, rank: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """folder: where traces go; None refuses to begin one."""
        self._folder = folder
        self._rank = rank
        self._clock = clock
        self._trace: Any = None
        self._ends_at = float("inf")

    def start(self) -> None:
        """Raises RuntimeError when profiling is off or a trace has begun, OSError when the folder
        cannot be made."""
        if self._folder is None:
            raise RuntimeError("profiling is off; start the server with --torch-profiler-dir DIR")
        if self._trace is not None:
            raise RuntimeError("a trace has begun already; end it with /stop_profile first")
        self._rank_folder(self._folder).mkdir(parents=True, exist_ok=True)
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        trace = profile(activities=activities)
        trace.start()
        self._trace = trace
        self._ends_at = self._clock() + LIMIT_SECONDS

    def stop(self) -> str:
        """End the trace and write it; the file's path. Raises RuntimeError when none has begun."""
        if self._trace is None or self._folder is None:
            raise RuntimeError("no trace has begun; begin one with /start_profile")
        trace, self._trace, self._ends_at = self._trace, None, float("inf")
        trace.stop()
        name = time.strftime("%Y%m%d-%H%M%S") + f"-{os.getpid()}-{time.monotonic_ns()}"
        path = self._rank_folder(self._folder) / f"{name}.pt.trace.json.gz"
        trace.export_chrome_trace(str(path))
        return str(path)

    def stop_if_forgotten(self) -> None:
        """End a trace that ran too long; called between steps."""
        if self._clock() >= self._ends_at:
            logger.warning("the trace was not ended in %.0f s: %s", LIMIT_SECONDS, self.stop())

    def _rank_folder(self, folder: str) -> Path:
        return Path(folder).absolute() / f"rank_{self._rank}"
