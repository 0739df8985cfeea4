"""AsyncIOProcManager: the name that the specification gives to the executor of several processes.

Each device has a process here, and the first one's runner is in the core's. Where names of the
specification went is listed in docs/guides/scheduling.md.
"""

from __future__ import annotations

from atom.model_engine.executor.group import GroupExecutor as AsyncIOProcManager

__all__ = ["AsyncIOProcManager"]
