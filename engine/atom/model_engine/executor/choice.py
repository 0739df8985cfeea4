"""Which executor an engine runs on: by how many devices share a copy of its model."""

from __future__ import annotations

from collections.abc import Callable

from atom.config import Config
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.in_process import InProcessExecutor


def build_executor(config: Config, on_failure: Callable[[str, bool], None]) -> Executor:
    """on_failure: see `start_group`; one device alone fails by exceptions. Raises `ModelError` or
    `ConfigError`."""
    if config.parallel.tensor_parallel_size == 1:
        return InProcessExecutor(config)
    from atom.model_engine.executor.group import start_group  # torch.distributed, for those who ask

    return start_group(config, on_failure)
