"""ReadSpeed and ReadOrCompute: whether pages of a tier, or of another engine, are worth their time.

A speed is that of the newest reads, not of all since the start: a link that was congested and a
disk that was busy become fast again, and a fast one may become slow. A tier whose pages are
computed instead is not measured any more. So a read that does not pay is tried from time to time
(a probe), one request at a time, and its speed takes the place of the earlier one. Pure policy: the
time is a parameter. Used by TierReads for the host's pages and files, and by PullSpeeds for the
pages of other engines.
"""

from __future__ import annotations

from enum import Enum, auto

# Fewer bytes tell no speed at first: their time is mostly the start of copies.
LEAST_MEASURED_BYTES = 64 << 20
MOST_MEASURED_BYTES = 256 << 20  # of the newest reads that make a speed
PROBE_SECONDS = 10.0  # between the end of a read and the next probe, at least
PROBE_SHARE = 20  # probes take at most one of so many parts of the time


class ReadSpeed:
    """The speed of the newest reads from one place. Bytes and seconds are told as totals, so that
    the counters of metrics serve."""

    def __init__(self) -> None:
        self._told = 0, 0.0  # totals of bytes and seconds
        self._bytes = self._seconds = 0.0  # of the newest reads
        self._probed: tuple[float, float] | None = None  # bytes and seconds since a probe began
        self._is_known = False

    def observe(self, total_bytes: int, total_seconds: float) -> None:
        """Note the totals of bytes and seconds until now."""
        told, self._told = self._told, (total_bytes, total_seconds)
        moved, spent = total_bytes - told[0], total_seconds - told[1]
        if self._probed is not None:
            self._probed = self._probed[0] + moved, self._probed[1] + spent
            return
        self._bytes, self._seconds = self._bytes + moved, self._seconds + spent
        self._is_known = self._is_known or self._bytes >= LEAST_MEASURED_BYTES
        self._forget()

    def seconds_for(self, size_bytes: float) -> float:
        """Predict the time of reading; 0 before enough bytes are measured."""
        return size_bytes * self._seconds / self._bytes if self._is_known else 0.0

    def begin_probe(self) -> None:
        """Measure apart from the earlier reads from now on; predictions stay."""
        self._probed = 0.0, 0.0

    def end_probe(self) -> None:
        """Replace the speed by what was measured since `begin_probe`; keep it if nothing was."""
        probed, self._probed = self._probed, None
        if probed is not None and probed[0] > 0:
            self._bytes, self._seconds = probed
            self._forget()

    def _forget(self) -> None:
        """Let earlier reads count less, so that a change shows after so many bytes at most."""
        if self._bytes > MOST_MEASURED_BYTES:
            self._seconds *= MOST_MEASURED_BYTES / self._bytes
            self._bytes = MOST_MEASURED_BYTES


class Choice(Enum):
    """Decide the fate of tokens whose pages could be read."""

    READ = auto()
    PROBE = auto()  # computing is predicted to be faster, and reading is tried
    COMPUTE = auto()


class ReadOrCompute:
    """Decide for the reads of one kind. A caller that begins a probe says when it has ended."""

    def __init__(self, *speeds: ReadSpeed) -> None:
        """speeds: of all places that these reads use."""
        self._speeds = speeds
        self._due: float | None = None  # when to probe, once a read was avoided
        self._began: float | None = None  # of the probe under way

    def choose(self, read_seconds: float, compute_seconds: float, now: float) -> Choice:
        """Decide by predictions; 0 is an unknown time, which is to be measured by reading."""
        if not 0 < compute_seconds < read_seconds:
            self._due = None
            return Choice.READ
        return Choice.PROBE if self.avoid(now) else Choice.COMPUTE

    def avoid(self, now: float) -> bool:
        """Note that reading does not pay; returns whether it is to be tried nevertheless."""
        if self._due is None:
            self._due = now + PROBE_SECONDS
        return self._began is None and now >= self._due

    def begin_probe(self, now: float) -> None:
        """Note that the pages of a probe have been asked for."""
        self._began = now
        for speed in self._speeds:
            speed.begin_probe()

    def end_probe(self, now: float) -> None:
        """Note that a request waits for the pages of the probe no longer."""
        assert self._began is not None, "a probe that ends has begun"
        pause = max(PROBE_SECONDS, PROBE_SHARE * (now - self._began))
        self._due, self._began = now + pause, None
        for speed in self._speeds:
            speed.end_probe()
