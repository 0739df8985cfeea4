from __future__ import annotations

from atom.model_engine.wire.heartbeat import HeartbeatWatch, Pulse


def test_a_long_step_beats_as_long_as_its_layers_are_computed() -> None:
    pulse = Pulse()
    assert not pulse.got_on(), "nothing has happened yet"
    pulse.tick()
    assert pulse.got_on()
    assert not pulse.got_on(), "no layer since the last beat"
    pulse.tick()
    assert pulse.got_on()


def test_a_core_that_waits_for_work_is_alive() -> None:
    pulse = Pulse()
    pulse.resting = True
    assert pulse.got_on()
    assert pulse.got_on()
    pulse.resting = False
    assert not pulse.got_on()


def test_silence_is_a_stall_after_the_limit_and_told_once() -> None:
    watch = HeartbeatWatch(2, limit_seconds=10.0, now=100.0)
    watch.hear(1, 105.0)
    assert watch.newly_stalled(109.9) == []
    assert watch.seconds_to_next(109.0) == 1.0
    assert watch.newly_stalled(110.0) == [0]
    assert watch.newly_stalled(111.0) == []
    assert watch.seconds_to_next(111.0) == 4.0
    assert watch.silent_seconds(0, 112.0) == 12.0
    assert watch.newly_stalled(115.0) == [1]
    assert watch.seconds_to_next(115.0) is None


def test_one_beat_ends_a_stall_and_the_next_is_told_again() -> None:
    watch = HeartbeatWatch(1, limit_seconds=10.0, now=0.0)
    assert not watch.hear(0, 1.0), "it was well"
    assert watch.newly_stalled(11.0) == [0]
    assert watch.hear(0, 12.0)
    assert not watch.hear(0, 13.0)
    assert watch.newly_stalled(23.0) == [0]
