from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console

from atom.progress import SECONDS_BETWEEN_LINES, StartupProgress


def test_a_terminal_shows_a_bar_per_phase() -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=100)
    now = 0.0
    with StartupProgress(console, clock=lambda: now) as progress:
        progress.show("loading weights", 0.0)
        now = 20.0
        progress.show("loading weights", 0.4)
        progress._bars.refresh()
        progress.show("sizing the KV cache", 0.0)
    shown = screen.getvalue()
    assert "loading weights" in shown
    assert "sizing the KV cache" in shown
    assert "100%" in shown
    assert "about 30 s left" in shown


def test_a_log_gets_a_line_per_phase_and_now_and_then_one_more(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    with StartupProgress(Console(file=io.StringIO()), clock=lambda: now) as progress:
        for percent in range(50):
            progress.show("loading weights", percent / 100)
        now = SECONDS_BETWEEN_LINES
        progress.show("loading weights", 0.5)
        progress.show("loading weights", 0.6)
        progress.show("sizing the KV cache", 0.0)
    assert [record.message for record in caplog.records] == [
        "loading weights: 0 %",
        "loading weights: 50 %, about 10 s left",
        "sizing the KV cache: 0 %",
    ]
