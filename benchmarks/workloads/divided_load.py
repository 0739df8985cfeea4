"""Load on two engines that exchange KV pages: steady answers beside long prompts, in two ways.

WHOLE: each engine answers its share of the requests. DIVIDED: the first computes every long prompt
and the second answers everything. Each stream is a closed loop: its next request begins when its
last one has ended. If a load is spread, the first answers have unlike lengths, and the measurement
begins once all of them have ended. Used by benchmarks/engines/prefill_decode.py.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from multiprocessing.connection import wait

from atom.model_engine.request import FinishReason, Request
from atom.model_engine.transfer_legs import DecodeLeg, Leg, PrefillLeg, TransferResult
from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.sampling_params import SamplingParams
from benchmarks.engines.linked_engine import EngineProcess, Rows, ticket_of

_SAME_AT_ONCE = 16
SILENT_SECONDS = 60.0  # without any news: the measurement has failed


class Way(StrEnum):
    WHOLE = "whole"
    DIVIDED = "divided"


@dataclass(frozen=True, slots=True)
class Load:
    """Hold the sizes of a load. steady, long: streams of each kind. prompt, answer: tokens of a
    long request; short: of a steady stream's prompt, whose answer is as long; seconds: that are
    measured; spread: streams are at unlike places of their answers."""

    steady: int
    long: int
    prompt: int
    answer: int
    short: int
    vocabulary: int
    seconds: float
    spread: bool = False

    def first_answer(self, stream: int) -> int:
        """Return the tokens of the first answer of a stream."""
        streams = self.steady + self.long
        return max(1, self.answer * (stream + 1) // streams) if self.spread else self.answer


@dataclass(frozen=True, slots=True)
class Window:
    """The time that is measured, in perf_counter seconds."""

    begin: float
    end: float

    def __contains__(self, moment: float) -> bool:
        return self.begin <= moment <= self.end

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(slots=True)
class Seen:
    """One answer. started: perf_counter seconds; pieces: when each token came; source: of its
    prompt, empty for a whole request; is_warm: its stream had none before."""

    is_long: bool
    started: float
    pieces: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    source: str = ""
    is_warm: bool = False

    @property
    def ttft_seconds(self) -> float:
        return self.pieces[0] - self.started

    @property
    def gaps(self) -> list[float]:
        return [after - before for before, after in itertools.pairwise(self.pieces)]

    def gaps_in(self, window: Window) -> list[float]:
        """Return the gaps that ended in a time."""
        return [
            after - before for before, after in itertools.pairwise(self.pieces) if after in window
        ]


@dataclass(slots=True)
class _Asked:
    """A request under way. divided: its prompt is computed by the first engine."""

    stream: int
    prompt: list[int]
    answer: int
    divided: bool
    salt: str
    seen: Seen


class Engines:
    """The engines, and the requests under way on them, by id."""

    def __init__(self, *engines: EngineProcess) -> None:
        """engines: two, or one that answers everything whole."""
        self._engines = engines
        self._numbers = itertools.count(1)
        self._under_way: dict[int, _Asked] = {}

    def __len__(self) -> int:
        return len(self._engines)

    def whole(self, asked: _Asked, engine: int) -> None:
        """Send a request to one engine, which answers it."""
        self._send(asked, engine, asked.answer, None)

    def divided(self, asked: _Asked) -> None:
        """Send a prompt to the first engine, and then the request to the second one."""
        self._send(asked, 0, 1, PrefillLeg())

    def news(self) -> list[_Asked]:
        """Wait for news; return the requests that have ended."""
        ready = wait([each.pipe for each in self._engines], SILENT_SECONDS)
        if not ready:
            raise SystemExit(f"no engine has told anything for {SILENT_SECONDS:g} s")
        ended: list[_Asked] = []
        for engine in self._engines:
            while engine.pipe.poll():
                ended += self._take(engine.pipe.recv())
        return ended

    def wait(self, count: int) -> None:
        """Wait until so many requests have ended."""
        while count > 0:
            count -= len(self.news())

    def _send(self, asked: _Asked, engine: int, answer: int, leg: Leg | None) -> None:
        number = next(self._numbers)
        self._under_way[number] = asked
        params = SamplingParams(temperature=0.0, max_tokens=answer, ignore_eos=True)
        request = Request(
            id=number,
            prompt_token_ids=asked.prompt,
            params=params,
            max_total_tokens=len(asked.prompt) + answer,
            arrive_time=0.0,
            cache_salt=asked.salt,
            kv_transfer=leg,
        )
        self._engines[engine].add(request)

    def _take(self, rows: Rows) -> list[_Asked]:
        for outcome in rows.outcomes:
            self._under_way[outcome.request_id].seen.source = outcome.result.value
        pairs = zip(rows.request_ids.tolist(), rows.tokens.tolist(), strict=True)
        for number, token in pairs:
            asked = self._under_way[number]
            if not asked.divided:  # or it is the one token of a prefill leg
                asked.seen.pieces.append(rows.seconds)
                asked.seen.tokens.append(token)
        ended = [self._end(row) for row in rows.finished]
        return [asked for asked in ended if asked is not None]

    def _end(self, row: FinishedRow) -> _Asked | None:
        """Return a request that has ended; None if its answer begins now."""
        asked = self._under_way.pop(row.request_id)
        if row.reason != FinishReason.LENGTH:
            raise SystemExit(f"a request ended early: {row}")
        if not asked.divided:
            return asked
        note, asked.divided = ticket_of(row), False
        leg = DecodeLeg(
            note.host, note.port, note.engine_id, note.ticket, note.layout, note.num_tokens
        )
        self._send(asked, 1, asked.answer, leg)
        return None


def run(engines: Engines, way: Way, load: Load, seed: int) -> tuple[list[Seen], Window]:
    """Keep all streams going for `load.seconds`, and then let them end. Returns the answers, and
    the time that counts: until the last one ended, or `load.seconds` of a spread load."""
    kinds = [False] * load.steady + [True] * load.long
    dice = [random.Random(f"{seed} {way} {number}") for number in range(len(kinds))]
    turns = [0] * len(kinds)
    began = time.perf_counter()

    def begin(number: int) -> None:
        is_long = kinds[number]
        count = load.prompt if is_long else load.short
        prompt = [dice[number].randrange(3, load.vocabulary) for _ in range(count)]
        seen = Seen(is_long, time.perf_counter(), is_warm=load.spread and not turns[number])
        divided = way is Way.DIVIDED and is_long
        answer = load.answer if turns[number] else load.first_answer(number)
        asked = _Asked(number, prompt, answer, divided, "", seen)
        turns[number] += 1
        if divided:
            engines.divided(asked)
        else:
            engines.whole(
                asked, 1 if way is Way.DIVIDED else (number + turns[number]) % len(engines)
            )

    for number in range(len(kinds)):
        begin(number)
    answers: list[Seen] = []
    left = len(kinds)
    while left:
        for asked in engines.news():
            answers.append(asked.seen)
            now = time.perf_counter()
            if load.spread and min(turns) == 1:
                began = now
            if now - began < load.seconds:
                begin(asked.stream)
            else:
                left -= 1
    return answers, Window(began, began + load.seconds if load.spread else time.perf_counter())


@dataclass(slots=True)
class Differing:
    """Count prompts by the answers that differ. of_first, of_second: the divided answer and the
    whole one of that engine; wholes: the whole ones of both engines, so the transfer is no part of
    it; again: the divided answer and another divided one, so the same work had two results."""

    of_first: int = 0
    of_second: int = 0
    wholes: int = 0
    again: int = 0


def count_differing(engines: Engines, prompts: Sequence[list[int]], answer: int) -> Differing:
    """Answer prompts greedily, whole by each engine and divided twice, so many at once each time,
    and count the answers that differ."""
    found = Differing()
    for first in range(0, len(prompts), _SAME_AT_ONCE):
        some = prompts[first : first + _SAME_AT_ONCE]
        of_first, of_second = (_whole_answers(engines, some, answer, which) for which in (0, 1))
        apart, again = (_divided_answers(engines, some, answer, salt) for salt in ("", "again"))
        found.of_first += _unlike(apart, of_first)
        found.of_second += _unlike(apart, of_second)
        found.wholes += _unlike(of_first, of_second)
        found.again += _unlike(apart, again)
    return found


def _whole_answers(
    engines: Engines, prompts: Sequence[list[int]], answer: int, engine: int
) -> list[list[int]]:
    """Let one engine answer prompts at once, which it has not seen."""
    asked = [_Asked(0, each, answer, False, "whole", Seen(False, 0.0)) for each in prompts]
    for each in asked:
        engines.whole(each, engine)
    engines.wait(len(asked))
    return [each.seen.tokens for each in asked]


def _divided_answers(
    engines: Engines, prompts: Sequence[list[int]], answer: int, salt: str
) -> list[list[int]]:
    """Let both engines answer prompts at once. Raises `SystemExit` for pages that did not come."""
    asked = [_Asked(0, each, answer, True, salt, Seen(False, 0.0)) for each in prompts]
    for each in asked:
        engines.divided(each)
    engines.wait(len(asked))
    for each in asked:
        if each.seen.source != TransferResult.TRANSFERRED:
            raise SystemExit(f"a prompt was not transferred: {each.seen.source!r}")
    return [each.seen.tokens for each in asked]


def _unlike(ones: Sequence[list[int]], others: Sequence[list[int]]) -> int:
    return sum(one != other for one, other in zip(ones, others, strict=True))


def figures(answers: list[Seen], window: Window) -> dict[str, float]:
    """Return the figures that users see: gaps in milliseconds, first tokens in seconds, requests in
    a second. Good: the first token within 2 s and 30 ms a token in the mean."""
    steady = sorted(gap for each in answers if not each.is_long for gap in each.gaps_in(window))
    both = sorted(gap for each in answers for gap in each.gaps_in(window))
    long = [each for each in answers if each.is_long]
    ended = [each for each in long if each.pieces[-1] in window]
    first = sorted(
        each.ttft_seconds for each in long if each.pieces[0] in window and not each.is_warm
    )
    good = [
        each
        for each in ended
        if each.ttft_seconds <= 2.0 and sum(each.gaps) / max(1, len(each.gaps)) <= 0.030
    ]
    tokens = sum(moment in window for each in answers for moment in each.pieces)
    return {
        "steady_gap_p50_ms": _share(steady, 0.5) * 1e3,
        "steady_gap_p99_ms": _share(steady, 0.99) * 1e3,
        "steady_gap_p999_ms": _share(steady, 0.999) * 1e3,
        "gap_p50_ms": _share(both, 0.5) * 1e3,
        "gap_p99_ms": _share(both, 0.99) * 1e3,
        "longest_gap_ms": _share(both, 1.0) * 1e3,
        "ttft_p50_s": _share(first, 0.5),
        "ttft_p90_s": _share(first, 0.9),
        "ttft_p99_s": _share(first, 0.99),
        "long_requests_a_second": len(ended) / window.seconds,
        "good_long_requests_a_second": len(good) / window.seconds,
        "tokens_a_second": tokens / window.seconds,
        "transferred_share": sum(each.source == "transferred" for each in long) / max(1, len(long)),
    }


def _share(ordered: list[float], share: float) -> float:
    if not ordered:
        return float("nan")
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
