"""Running a coroutine at once, as far as it comes without waiting.

Sending a few bytes rarely has to wait, and a task for it would cost more than the sending. (Tasks
that start so are Python 3.12's; this is for 3.11 too, and makes no task in the common case.)
"""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any


def run_eagerly(awaitable: Awaitable[None]) -> Awaitable[None] | None:
    """Start an awaitable at once; return None if it has ended, else its remainder, to be awaited
    once. Raises its exception. It must not use the current task before its first wait: there may be
    none."""
    steps = awaitable.__await__()
    try:
        awaited = next(steps)
    except StopIteration:
        return None
    return _Rest(steps, awaited)


class _Rest:
    """The remainder of something that waits."""

    def __init__(self, steps: Generator[Any, Any, None], awaited: Any) -> None:
        self._steps = steps
        self._awaited = awaited

    def __await__(self) -> Generator[Any, Any, None]:
        awaited = self._awaited
        try:
            while True:
                try:
                    value = yield awaited
                except GeneratorExit:
                    self._steps.close()
                    raise
                except BaseException as error:
                    awaited = self._steps.throw(error)
                else:
                    awaited = self._steps.send(value)
        except StopIteration:
            return
