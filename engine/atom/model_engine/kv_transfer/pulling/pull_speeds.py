"""PullSpeeds: how fast the pages of each producer arrive, and whether they are worth their time.

The time is that during which at least one prompt waits for pages of the producer, so pulls beside
one another share its speed. Prompts are computed elsewhere so that answers here are not delayed:
pages may take several times as long as computing would. Owned by AwaitedPages; belongs to the
engine core's thread.
"""

from __future__ import annotations

from collections.abc import Callable

from atom.model_engine.kv_transfer.channel_events import Place
from atom.model_engine.schedule.prompt_pace import PromptPace
from atom.model_engine.schedule.read_speed import Choice, ReadOrCompute, ReadSpeed

PATIENCE = 8  # times as long as computing that pages may take
_MOST_PLACES = 1024


class _Producer:
    """The pulls from one producer. waiting: bytes that are on their way, by ticket."""

    def __init__(self) -> None:
        self.waiting: dict[str, int] = {}
        self.speed = ReadSpeed()
        self.choices = ReadOrCompute(self.speed)
        self._bytes, self._seconds, self._since = 0, 0.0, 0.0

    def observe(self, now: float, size_bytes: int = 0) -> None:
        """Count the time until now, and bytes that came."""
        if self.waiting:
            self._seconds += now - self._since
        self._since, self._bytes = now, self._bytes + size_bytes
        self.speed.observe(self._bytes, self._seconds)


class PullSpeeds:
    """Compare the speeds of producers with that of computing. pace: of the scheduler's prompts;
    None if no speed of computing is known."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._producers: dict[Place, _Producer] = {}
        self._pulls: dict[str, _Producer] = {}  # by ticket
        self._probes: dict[str, _Producer] = {}
        self.pace: PromptPace | None = None

    def pays(self, ticket: str, place: Place, size_bytes: int, num_tokens: int) -> bool:
        """Return whether to read the pages of a ticket instead of computing its tokens. If so,
        `end` is called once for it."""
        now, producer = self._clock(), self._producer(place)
        producer.observe(now)
        seconds = producer.speed.seconds_for(size_bytes + sum(producer.waiting.values()))
        token_seconds = 0.0 if self.pace is None else self.pace.seconds_a_token
        choice = producer.choices.choose(seconds, PATIENCE * num_tokens * token_seconds, now)
        if choice is Choice.PROBE:
            producer.choices.begin_probe(now)
            self._probes[ticket] = producer
        return choice is not Choice.COMPUTE

    def begin(self, ticket: str, place: Place, size_bytes: int) -> None:
        """Note that pages have been asked for."""
        producer = self._producer(place)
        producer.observe(self._clock())
        producer.waiting[ticket] = size_bytes
        self._pulls[ticket] = producer

    def came(self, ticket: str, size_bytes: int) -> None:
        """Note a page."""
        producer = self._pulls.get(ticket)
        if producer is not None:
            producer.observe(self._clock(), size_bytes)
            producer.waiting[ticket] -= size_bytes

    def end(self, ticket: str) -> None:
        """Note that no request waits for the pages of a ticket any more."""
        now, producer = self._clock(), self._pulls.pop(ticket, None)
        if producer is not None:
            producer.observe(now)
            del producer.waiting[ticket]
        probed = self._probes.pop(ticket, None)
        if probed is not None:
            probed.choices.end_probe(now)

    def _producer(self, place: Place) -> _Producer:
        found = self._producers.get(place)
        if found is None:
            if len(self._producers) >= _MOST_PLACES:
                self._producers.clear()  # pulls under way keep theirs
            found = self._producers[place] = _Producer()
        return found
