"""SharedDevice: the books of models that share a device: which of them are awake, compute or wait.

Policy is swap_policy.py's; time is a parameter, and nothing is carried out here: `turn` returns the
next actions, and the caller reports their completion. So a simulation runs the same code as the
server.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from atom.entrypoints.swap.swap_policy import Decision, ModelView, SwapRule, decide


@dataclass(frozen=True, slots=True)
class SharingModel:
    """A model of the server. share: of the device's memory while it is awake. pinned: it never
    sleeps for others."""

    name: str
    share: float
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Sharing:
    """Configure the sharing of a device. capacity: the sum of shares that may be awake."""

    capacity: float
    rule: SwapRule = field(default_factory=SwapRule)


@dataclass(frozen=True, slots=True)
class Turn:
    """List the actions to take now. admitted: tickets of requests that may compute; sleep, wake: a
    model to put to sleep or wake up, at most one of both, followed by a call of `changed` or
    `failed`; again_at: when to ask again if nothing happens until then."""

    admitted: tuple[int, ...] = ()
    sleep: str | None = None
    wake: str | None = None
    again_at: float | None = None


@dataclass(slots=True)
class _Books:
    model: SharingModel
    awake: bool = False
    stuck: bool = False  # could not sleep
    running: int = 0
    preempted_since: float | None = None  # it sleeps, and requests of it are open
    waiting: deque[tuple[float, int]] = field(default_factory=deque)  # since when, ticket
    used: float = 0.0
    woke: float = 0.0
    wakes: int = 0

    def view(self) -> ModelView:
        model = self.model
        times = [self.preempted_since, self.waiting[0][0] if self.waiting else None]
        since = min((time for time in times if time is not None), default=None)
        return ModelView(
            model.name, model.share, model.pinned or self.stuck, self.awake, self.running, since,
            used=self.used, woke=self.woke,
        )  # fmt: skip


class SharedDevice:
    def __init__(self, models: Sequence[SharingModel], sharing: Sharing) -> None:
        """All models sleep at first."""
        self._sharing = sharing
        self._books = {model.name: _Books(model) for model in models}
        self._changing: Turn | None = None  # the sleep or wake under way
        self._closed: frozenset[str] = frozenset()  # awake, and take no further requests

    def set_awake(self, name: str, now: float) -> None:
        """Note that a model is awake from its start."""
        books = self._books[name]
        books.awake, books.woke = True, now

    def set_asleep(self, name: str) -> None:
        """Note that a model sleeps from its start."""
        self._books[name].awake = False

    def arrive(self, name: str, ticket: int, now: float) -> None:
        """Queue a request for a model; `turn` admits it."""
        books = self._books[name]
        books.waiting.append((now, ticket))
        books.used = now

    def give_up(self, name: str, ticket: int) -> None:
        """Remove a request that has left before its admission."""
        books = self._books[name]
        books.waiting = deque(each for each in books.waiting if each[1] != ticket)

    def end(self, name: str, now: float) -> None:
        """Record the end of an admitted request."""
        books = self._books[name]
        books.running -= 1
        books.used = now
        if not books.running:
            books.preempted_since = None

    def changed(self, now: float) -> None:
        """Record that the sleep or wake-up under way is complete."""
        change, self._changing = self._changing, None
        assert change is not None, "told of what `turn` asked for"
        if change.wake is not None:
            books = self._books[change.wake]
            books.awake, books.woke = True, now
            books.preempted_since = None
            books.wakes += 1
        elif change.sleep is not None:
            books = self._books[change.sleep]
            books.awake = False
            books.preempted_since = now if books.running else None

    def failed(self) -> list[int]:
        """Record that the sleep or wake-up under way has failed; return the tickets of the requests
        that waited for the model, which are refused. A model that could not sleep is not asked to
        again."""
        change, self._changing = self._changing, None
        assert change is not None, "told of what `turn` asked for"
        if change.sleep is not None:
            self._books[change.sleep].stuck = True
        if change.wake is None:
            return []
        books = self._books[change.wake]
        tickets = [ticket for _, ticket in books.waiting]
        books.waiting.clear()
        return tickets

    def turn(self, now: float) -> Turn:
        """Return the next actions; call `turn` again after every event."""
        admitted = self._admit()  # first: a model that is to compute is not idle
        decision = Decision()
        if self._changing is None:  # one change at a time
            views = [books.view() for books in self._books.values()]
            decision = decide(views, self._sharing.capacity, self._sharing.rule, now)
            self._closed = decision.closed | ({decision.sleep} if decision.sleep else set())
            admitted += self._admit()
        turn = Turn(tuple(admitted), decision.sleep, decision.wake, decision.again_at)
        if turn.sleep is not None or turn.wake is not None:
            self._changing = turn
        return turn

    def _admit(self) -> list[int]:
        """Let requests of models compute that are awake and take any."""
        admitted: list[int] = []
        for name, books in self._books.items():
            if books.awake and name not in self._closed:
                admitted += (ticket for _, ticket in books.waiting)
                books.running += len(books.waiting)
                books.waiting.clear()
        return admitted

    # ---- reports ------------------------------------------------------------------------------

    def num_waiting(self, name: str) -> int:
        """Count a model's requests that are held."""
        return len(self._books[name].waiting)

    def wakes(self, name: str) -> int:
        """Count how often a model has woken up."""
        return self._books[name].wakes

    @property
    def awake_share(self) -> float:
        """Sum the shares of models that have memory of the device, those included that wake up."""
        waking = self._changing.wake if self._changing is not None else None
        return sum(
            books.model.share
            for name, books in self._books.items()
            if books.awake or name == waking
        )
