"""Pause Python's garbage collector while a process imports modules that it keeps.

The engine's processes use it around imports of torch.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Create long-lived objects without the collector's passes over them, now and later.

    torch makes 180,000 objects; repeated passes over them take a third of its import, and every
    full collection of a serving engine would repeat them. The objects are unfrozen at exit, since
    libraries complain of objects that are not collected then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)
