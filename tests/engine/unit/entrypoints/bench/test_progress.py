"""What a running benchmark shows of itself, on a clock that jumps."""

from __future__ import annotations

import asyncio
import io

from atom.entrypoints.bench.exchange import Exchange
from atom.entrypoints.bench.progress import Progress, shown
from tests.support.virtual_time import run_virtually


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def run(out: io.StringIO, *, enabled: bool = True) -> None:
    progress = Progress("4 requests/s", 3)
    async with shown(progress, out, enabled=enabled):
        progress.sent()
        progress.sent()
        await asyncio.sleep(15)
        progress.answered(Exchange(output_tokens=300))
        progress.answered(Exchange(error="HTTP 500"))
        await asyncio.sleep(60)


def test_a_log_has_a_line_every_ten_seconds_and_one_at_the_end() -> None:
    out = io.StringIO()
    run_virtually(run(out))
    lines = out.getvalue().splitlines()
    assert len(lines) == 8
    first = "4 requests/s: 0 of 3 answered, 2 in flight, 0 failed, 0 output tok/s, 0:10"
    assert lines[0] == first
    answered, left = "4 requests/s: 2 of 3 answered", "about 38 s left"
    assert lines[-1] == f"{answered}, {left}, 0 in flight, 1 failed, 4 output tok/s, 1:15"


def test_a_terminal_has_one_line_that_is_redrawn() -> None:
    out = Terminal()
    run_virtually(run(out))
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().endswith("\n")
    assert (
        out.getvalue()
        .rpartition("\r")[2]
        .startswith("\x1b[2K4 requests/s: 2 of 3 answered, about 38")
    )
    assert out.getvalue().count("\r\x1b[2K") > 250


def test_a_run_that_has_all_answers_has_nothing_left() -> None:
    async def whole(out: io.StringIO) -> None:
        progress = Progress("1 at a time", 1)
        async with shown(progress, out):
            progress.sent()
            await asyncio.sleep(5)
            progress.answered(Exchange(output_tokens=3))

    out = io.StringIO()
    run_virtually(whole(out))
    assert out.getvalue().endswith("0:05\n")


def test_nothing_is_shown_to_who_wants_nothing() -> None:
    out = io.StringIO()
    run_virtually(run(out, enabled=False))
    assert out.getvalue() == ""
