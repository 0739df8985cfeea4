"""The choice between reading and computing follows the newest reads, on a simulated clock."""

from __future__ import annotations

import pytest

from atom.model_engine.schedule.read_speed import (
    LEAST_MEASURED_BYTES,
    MOST_MEASURED_BYTES,
    PROBE_SECONDS,
    PROBE_SHARE,
    Choice,
    ReadOrCompute,
    ReadSpeed,
)

MIB = 1 << 20


class Place:
    """Pages that are read one request after the other. rate: bytes a second."""

    def __init__(self, rate: float) -> None:
        self.rate, self.now = rate, 0.0
        self.speed = ReadSpeed()
        self.choices = ReadOrCompute(self.speed)
        self._bytes, self._seconds = 0, 0.0

    def read(self, size: int) -> None:
        seconds = size / self.rate
        self.now += seconds
        self._bytes, self._seconds = self._bytes + size, self._seconds + seconds
        self.speed.observe(self._bytes, self._seconds)

    def ask(self, size: int, compute_seconds: float) -> Choice:
        """A request, whose pages are read at once if they are to be read."""
        choice = self.choices.choose(self.speed.seconds_for(size), compute_seconds, self.now)
        if choice is Choice.PROBE:
            self.choices.begin_probe(self.now)
        if choice is Choice.COMPUTE:
            self.now += compute_seconds
        else:
            self.read(size)
        if choice is Choice.PROBE:
            self.choices.end_probe(self.now)
        return choice


def test_nothing_is_known_before_enough_bytes_are_measured() -> None:
    place = Place(rate=MIB)
    place.read(LEAST_MEASURED_BYTES - 1)
    assert place.speed.seconds_for(MIB) == 0
    assert place.ask(1, 1e-9) is Choice.READ
    assert place.speed.seconds_for(MIB) == pytest.approx(1.0)


@pytest.mark.parametrize("earlier_bytes", [LEAST_MEASURED_BYTES, 1 << 44])
@pytest.mark.parametrize("size", [MIB, 64 * MIB])
def test_a_place_that_becomes_fast_again_is_found(earlier_bytes: int, size: int) -> None:
    """However much was read slowly before, and however little a probe reads."""
    place = Place(rate=10 * MIB)
    place.read(earlier_bytes)
    compute_seconds = size / (100 * MIB)
    assert place.ask(size, compute_seconds) is Choice.COMPUTE
    place.rate, since = 1000 * MIB, place.now
    choices = []
    while Choice.READ not in choices:
        choices.append(place.ask(size, compute_seconds))
    assert choices.count(Choice.PROBE) == 1
    assert place.now - since <= PROBE_SECONDS + 2 * compute_seconds


@pytest.mark.parametrize("earlier_bytes", [LEAST_MEASURED_BYTES, 1 << 44])
@pytest.mark.parametrize("slower", [2.5, 10.0, 1000.0])
def test_a_place_that_becomes_slow_is_left_in_bounded_time(
    earlier_bytes: int, slower: float
) -> None:
    place, size = Place(rate=200 * MIB), 16 * MIB
    place.read(earlier_bytes)
    compute_seconds = size / (100 * MIB)
    assert place.ask(size, compute_seconds) is Choice.READ
    place.rate /= slower
    read = 0
    while place.ask(size, compute_seconds) is Choice.READ:
        read += size
    # Even if the new speed were as good as that of computing, its bytes outweigh the earlier ones.
    assert read <= 8 * MOST_MEASURED_BYTES / slower + size


def test_probes_of_a_slow_place_take_a_small_share_of_the_time() -> None:
    place, size = Place(rate=10 * MIB), 64 * MIB  # 6.4 s
    place.read(LEAST_MEASURED_BYTES)
    since, probed = place.now, 0.0
    for _ in range(20_000):
        before = place.now
        if place.ask(size, 0.1) is Choice.PROBE:
            probed += place.now - before
    assert 0 < probed <= (place.now - since) / PROBE_SHARE


def test_no_other_request_is_delayed_while_a_probe_is_under_way() -> None:
    place = Place(rate=MIB)
    place.read(LEAST_MEASURED_BYTES)
    assert place.ask(MIB, 0.1) is Choice.COMPUTE
    now = place.now + PROBE_SECONDS
    seconds = place.speed.seconds_for(MIB)
    assert place.choices.choose(seconds, 0.1, now) is Choice.PROBE
    place.choices.begin_probe(now)
    for later in range(1000):
        # What the first bytes say changes nothing: the rest of the probe may be slow.
        place.speed.observe(LEAST_MEASURED_BYTES + 1, LEAST_MEASURED_BYTES / MIB)
        seconds = place.speed.seconds_for(MIB)
        assert place.choices.choose(seconds, 0.1, now + later) is Choice.COMPUTE
    place.choices.end_probe(now + 1000)
    assert place.choices.choose(place.speed.seconds_for(MIB), 0.1, now + 1000) is Choice.READ


def test_a_probe_that_read_nothing_changes_no_speed() -> None:
    place = Place(rate=MIB)
    place.read(LEAST_MEASURED_BYTES)
    assert place.ask(MIB, 0.1) is Choice.COMPUTE
    now = place.now + PROBE_SECONDS
    place.choices.begin_probe(now)
    place.choices.end_probe(now)
    assert place.speed.seconds_for(MIB) == pytest.approx(1.0)
    assert place.choices.choose(1.0, 0.1, now + PROBE_SECONDS - 1) is Choice.COMPUTE
    assert place.choices.choose(1.0, 0.1, now + PROBE_SECONDS) is Choice.PROBE
