"""time_left: the estimate of the time that long work still takes, and its words. Pure.

Used by the start, benchmarks and batches. An estimate assumes that the rest goes as fast as the
work so far.
"""

from __future__ import annotations


def seconds_left(share: float, spent_seconds: float) -> float | None:
    """Estimate the rest of work of which `share` (0 to 1) took `spent_seconds`; None if nothing is
    known yet."""
    if not 0 < share <= 1 or spent_seconds <= 0:
        return None
    return spent_seconds * (1 - share) / share


def left_text(seconds: float | None) -> str:
    """Return the words of an estimate, such as ", about 12 s left"; empty if there is none."""
    return "" if seconds is None else f", about {seconds:.0f} s left"
