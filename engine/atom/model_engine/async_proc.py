"""AsyncIOProcManager: upstream's name for what runs a model in a process per device.

Here it is `TensorParallelExecutor`, whose first runner is in the engine core's own process. A model
on one device has no such processes (`SingleDeviceExecutor`). Other names of upstream's guides are
listed in docs/guides/upstream-names.md.
"""

from __future__ import annotations

from atom.model_engine.executor.tensor_parallel.executor import (
    TensorParallelExecutor as AsyncIOProcManager,
)

__all__ = ["AsyncIOProcManager"]
