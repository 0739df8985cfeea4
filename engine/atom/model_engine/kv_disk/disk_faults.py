"""DiskFaults: counts the faults of the disk, and decides if the tier is used.

A fault of the disk switches the tier off for a while, and is logged once until a page moves again.
Policy alone: the time is a parameter. Guarded by its store's lock.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter

logger = logging.getLogger(__name__)

OFF_SECONDS = 60.0
SLOW = "slow"
DAMAGED = "damaged"
_KINDS = {
    errno.ENOSPC: "no_space",
    errno.EDQUOT: "no_space",
    errno.EIO: "io_error",
    errno.EROFS: "read_only",
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.ESTALE: "missing",
}
_REMEDIES = {
    "no_space": "free space on the disk, or give a smaller --kv-disk-size",
    "read_only": "mount it for writing",
    "permission": "let this user write to the folder",
    "missing": "make the folder again",
    SLOW: "use a faster disk",
}


def kind_of(error: OSError) -> str:
    """Return the word of metrics and logs for a fault."""
    return _KINDS.get(error.errno or 0, "io_error")


class DiskFaults:
    """Remembers faults. counts: of faults and of damaged files, by kind."""

    def __init__(self, place: str, off_seconds: float = OFF_SECONDS) -> None:
        """place: the folder, for logs."""
        self._place, self._off_seconds = place, off_seconds
        self._off_until: float | None = None
        self._told: set[str] = set()
        self.counts: Counter[str] = Counter()

    @property
    def is_off(self) -> bool:
        return self._off_until is not None

    def fail(self, kind: str, detail: str, now: float) -> None:
        """Switch the tier off."""
        self.counts[kind] += 1
        self._off_until = now + self._off_seconds
        if kind in self._told:
            return
        self._told.add(kind)
        remedy = _REMEDIES.get(kind, "check the disk")
        logger.warning(
            "the KV cache's tier in %s is switched off for %g s, and tried again after that: %s; "
            "requests go on without it; %s",
            *(self._place, self._off_seconds, detail, remedy),
        )

    def damage(self, detail: str) -> None:
        """Count a file that is not the page that it should be."""
        self.counts[DAMAGED] += 1
        if DAMAGED not in self._told:
            self._told.add(DAMAGED)
            logger.warning(
                "a file of the KV cache in %s is damaged (%s) and removed; its tokens are "
                "computed, and further ones are counted alone",
                *(self._place, detail),
            )

    def may_try(self, now: float) -> bool:
        """Return whether a tier that is off is to be tried again."""
        return self._off_until is not None and now >= self._off_until

    def works(self) -> None:
        """Switch the tier on: a page was moved, or the folder was opened."""
        if self._off_until is not None:
            self._off_until = None
            logger.info("the KV cache's tier in %s is used again", self._place)

    def moved(self) -> None:
        """Note that the disk moved a page: a later fault is news again."""
        self._told &= {DAMAGED}
