"""A slow start is told from a stalled one, and what it took is remembered."""

from __future__ import annotations

from atom.entrypoints.startup.startup_timeline import LOADING_WEIGHTS, StartupTimeline

GB = 10**9


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def started(budget_seconds: float | None = 100.0) -> tuple[StartupTimeline, Clock]:
    clock = Clock()
    timeline = StartupTimeline(budget_seconds, clock)
    timeline.weights_bytes = 10 * GB
    return timeline, clock


def test_progress_has_bytes_and_their_rate() -> None:
    timeline, clock = started()
    clock.now = 5.0
    timeline.note(LOADING_WEIGHTS, 0.0)
    clock.now = 25.0
    timeline.note(LOADING_WEIGHTS, 0.4)
    clock.now = 26.0
    shown = timeline.progress()
    assert (shown["bytes_done"], shown["bytes_total"]) == (4 * GB, 10 * GB)
    assert shown["bytes_per_second"] == GB // 5
    assert (shown["seconds_without_progress"], shown["elapsed_seconds"]) == (1.0, 26.0)
    assert shown["stalled"] is False
    assert shown["seconds_left"] == 29.0  # 20 s for 40 %, a second ago
    clock.now = 90.0
    assert timeline.progress()["seconds_left"] == 0.0  # never below
    timeline.note("compiling kernels", 0.0)
    assert timeline.progress()["seconds_left"] is None
    clock.now = 100.0
    timeline.note("compiling kernels", 0.25)
    assert timeline.progress()["seconds_left"] == 30.0


def test_a_slow_start_outlives_its_budget_and_a_stalled_one_is_overdue() -> None:
    timeline, clock = started(budget_seconds=100.0)
    timeline.note(LOADING_WEIGHTS, 0.1)
    assert not timeline.outlives_budget
    for step in range(2, 9):
        clock.now += 100.0
        timeline.note(LOADING_WEIGHTS, step / 10)
        assert timeline.outlives_budget
        assert not timeline.is_overdue
    clock.now += 170.0
    timeline.note(LOADING_WEIGHTS, 0.8)  # the same again is no progress
    clock.now += 20.0
    assert timeline.progress()["stalled"]
    assert timeline.is_overdue
    assert not timeline.outlives_budget
    timeline.note("sizing the KV cache", 0.0)
    assert not timeline.is_overdue


def test_a_stall_within_the_budget_is_shown_and_waited_for() -> None:
    timeline, clock = started(budget_seconds=1000.0)
    timeline.note(LOADING_WEIGHTS, 0.1)
    clock.now = 200.0
    assert timeline.progress()["stalled"]
    assert not timeline.is_overdue


def test_kernels_may_be_compiled_in_silence() -> None:
    timeline, clock = started(budget_seconds=1.0)
    timeline.note("capturing decode graphs", 0.0)
    clock.now = 600.0
    assert not timeline.progress()["stalled"]


def test_without_a_budget_nothing_is_overdue() -> None:
    timeline, clock = started(budget_seconds=None)
    clock.now = 1e6
    assert not timeline.is_overdue
    assert not timeline.outlives_budget


def test_what_start_up_took_is_known_once_it_is_over() -> None:
    timeline, clock = started()
    assert timeline.measured()["startup_seconds"] is None
    clock.now = 2.0
    timeline.note(LOADING_WEIGHTS, 0.0)
    clock.now = 12.0
    timeline.note("sizing the KV cache", 0.0)
    clock.now = 15.0
    timeline.ready()
    clock.now = 9999.0
    timeline.ready()
    assert timeline.measured() == {
        "startup_seconds": 15.0,
        "weights_loading_seconds": 10.0,
        "checkpoint_bytes": 10 * GB,
    }
    assert not timeline.is_overdue
