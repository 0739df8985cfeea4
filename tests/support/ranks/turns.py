"""Turns: threads of which one at a time goes on, in an order that a seed decides.

A thread stops where it would wait for others, with a condition; who goes on is chosen among those
whose condition holds. So an interleaving can be played again, a hang is known at once, by what each
waits for, and a thread can be ended where it stands, as SIGKILL ends a process.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.support.waiting import HANG_SECONDS

Condition = Callable[[], bool]


class Killed(BaseException):
    """SIGKILL: nothing that catches errors catches this."""


@dataclass
class _Player:
    thread: threading.Thread
    go: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    waits_for: str = "its start"
    condition: Condition = lambda: True
    is_killed: bool = False
    error: BaseException | None = None
    has_ended: bool = False


class Turns:
    """Belongs to the thread that made it; players are numbers."""

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._players: dict[int, _Player] = {}
        self._back = threading.Semaphore(0)

    # ---- the players' side --------------------------------------------------------------------

    def pause(self, number: int, waits_for: str, condition: Condition = lambda: True) -> None:
        """Let others go on, until the condition holds and it is this one's turn."""
        player = self._players[number]
        player.waits_for, player.condition = waits_for, condition
        self._back.release()
        player.go.acquire()
        if player.is_killed:
            raise Killed

    # ---- the director's side ------------------------------------------------------------------

    def enter(self, number: int, play: Callable[[], None]) -> None:
        """Have a player wait for its first turn."""

        def run() -> None:
            player.go.acquire()
            try:
                if not player.is_killed:
                    play()
            except Killed:
                pass
            except BaseException as error:
                player.error = error
            player.has_ended = True
            self._back.release()

        player = _Player(threading.Thread(target=run, name=f"player {number}", daemon=True))
        self._players[number] = player
        player.thread.start()

    @property
    def playing(self) -> list[int]:
        """Those that have not ended."""
        return [number for number, player in self._players.items() if not player.has_ended]

    def go_on(self) -> bool:
        """Give one a turn, unless all wait for what does not hold. Raises what a player raised."""
        able = [number for number in self.playing if self._players[number].condition()]
        if able:
            self._give(self._players[self._draw.choice(able)])
        return bool(able)

    def kill(self, number: int) -> None:
        """End one where it stands."""
        player = self._players[number]
        player.is_killed = True
        if not player.has_ended:
            self._give(player)

    def waits(self) -> str:
        """What each is waiting for, in words."""
        return "; ".join(f"{n} waits for {self._players[n].waits_for}" for n in self.playing)

    def _give(self, player: _Player) -> None:
        player.go.release()
        assert self._back.acquire(timeout=HANG_SECONDS), "a player neither stops nor ends"
        if player.has_ended:
            player.thread.join()
        if player.error is not None:
            raise player.error
