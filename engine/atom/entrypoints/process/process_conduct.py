"""What an HTTP process does to itself once it serves, for the sake of the tokens that pass it."""

from __future__ import annotations

import gc
import os

_OBJECTS_BETWEEN_COLLECTIONS = 20_000
_NICENESS = 10


def spare_the_collector() -> None:
    """What start-up made stays, so the collector need not look at it again; and a token makes many
    objects that go without it, so it need not look often."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS, *gc.get_threshold()[1:])


def yield_cores() -> None:
    """For an engine that computes on the same cores: when one of its threads has to wait for us,
    all of them do, at their next barrier; we can use the moments in which they leave a core alone.
    Where cores are free it changes nothing. Only the calling thread, and those that it starts."""
    os.nice(_NICENESS)
