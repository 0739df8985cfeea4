"""Which executor an engine runs on: by how many devices share a copy of its model."""

from __future__ import annotations

from atom.config import Config
from atom.model_engine.executor.base import Executor
from atom.model_engine.executor.single import SingleDeviceExecutor
from atom.model_engine.wire.first_loss import OnFailure
from atom.model_engine.wire.peer_mesh import MeshOrder


def build_executor(
    config: Config, on_failure: OnFailure, order: MeshOrder | None = None
) -> Executor:
    """Build the executor that the config asks for. on_failure: see `start_group`; one device alone
    fails by exceptions. order: the way to other cores that share experts with this one. Raises
    `ModelError` or `ConfigError`."""
    if order is not None:
        from atom.model_engine.executor.expert_parallel.executor import start_peers

        return start_peers(config, order, on_failure)
    if config.parallel.tensor_parallel_size == 1:
        return SingleDeviceExecutor(config)
    from atom.model_engine.executor.tensor_parallel.executor import (
        start_group,  # torch.distributed, imported on demand
    )

    return start_group(config, on_failure)
