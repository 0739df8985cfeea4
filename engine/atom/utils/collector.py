"""Python's garbage collector at rest while a process imports what it then keeps.

Called by the engine's processes around what brings torch.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_at_rest() -> Iterator[None]:
    """Make objects that stay without the collector's walks, now and later.

    torch makes 180,000 of them; to walk over them again and again takes a third of its
    import, and every full collection of a serving engine would do it once more. They are given back
    at the end: libraries complain of what is not collected then.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        atexit.register(gc.unfreeze)
