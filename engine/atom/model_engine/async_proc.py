"""AsyncIOProcManager: the name that the specification gives to the core's way to its runners.

What it is here stands in executor/; the specification's names are listed in
docs/guides/scheduling.md.
"""

from __future__ import annotations

from atom.model_engine.executor.in_process import InProcessExecutor as AsyncIOProcManager

__all__ = ["AsyncIOProcManager"]
