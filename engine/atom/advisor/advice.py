"""Advice: the least devices of each candidate that keep the targets, and which candidates to take.

For each candidate the search simulates numbers of engines, and bisects: fewer engines never keep
targets that more miss. Rows that no other row beats in cost and in latency remain. The figures of a
row are predicted three times: with the step times of the rates, and with both ends of their error.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from atom.advisor.candidates import Candidate, candidates
from atom.advisor.pair import Pair
from atom.advisor.partitions import price_of
from atom.advisor.question import Lost, Question
from atom.advisor.rows import Advice, Range, Row
from atom.advisor.simulation import Fleet, Served, simulate
from atom.advisor.slo import Figures, Metric, figures_of

_NODE_DEVICES = 8
_MOST_SCALE, _SCALE_STEPS = 8.0, 4
# A candidate that costs more than so many times the best, in money or devices, is not simulated.
_NOT_WORTH = 4.0
_MOST_CURVES = 4
_CURVE_SCALES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)


class Detail(enum.Enum):
    """The simulations of an answer: of the rows at their load; also at the most that they serve
    within the targets; also at a range of rates."""

    CHOICE = enum.auto()
    GOODPUT = enum.auto()
    CURVES = enum.auto()


@dataclass(frozen=True, slots=True)
class Stage:
    """Name the simulation that a search begins. doing: the part of the search; label: the form of a
    model on a card; done, of: forms of this part that are behind it, and all of them."""

    doing: str
    label: str
    done: int
    of: int


# Told before each simulation of a form.
Progress = Callable[[Stage], None]


def advise(
    question: Question,
    progress: Progress = lambda stage: None,
    detail: Detail = Detail.GOODPUT,
) -> Advice:
    """Search the answer. Simulations take seconds; nothing else is asked."""
    search = _Search(question, progress)
    advice = search.run()
    if detail is Detail.CHOICE:
        return advice
    told = search.told("the most that it serves:", advice.rows)
    advice = replace(advice, rows=tuple([search.with_goodput(row) for row in told]))
    if detail is Detail.GOODPUT:
        return advice
    drawn, nearest = advice.rows[:_MOST_CURVES], advice.nearest
    wanted = [*drawn, *([] if nearest is None else [nearest])]
    curves = [search.with_curve(row) for row in search.told("other rates:", wanted)]
    rows = (*curves[: len(drawn)], *advice.rows[_MOST_CURVES:])
    return replace(advice, rows=rows, nearest=None if nearest is None else curves[-1])


def one_fewer(
    question: Question, chosen: Row, detail: Detail, progress: Progress = lambda stage: None
) -> Row | None:
    """Return the row of the chosen row's model and card that keeps the targets best on at least one
    device fewer; None if there is none, as of one device alone."""
    if chosen.devices < 2:
        return None
    candidate = chosen.candidate
    narrowed = replace(
        question,
        models=(candidate.model,),
        cards=(candidate.card,),
        max_devices=chosen.devices - 1,
    )
    found = advise(narrowed, progress, detail)
    return found.chosen or found.nearest


class _Search:
    def __init__(self, question: Question, progress: Progress) -> None:
        self._question = question
        self._progress = progress
        self._priced = all(
            price_of(card.name, question.prices) is not None for card in question.cards
        )
        self._lost: list[Lost] = []
        self._kept: list[Row] = []
        self._missed: list[Row] = []
        self._short: list[Candidate] = []  # of devices, by the time of steps alone

    def run(self) -> Advice:
        found: list[Candidate] = []
        for each in candidates(self._question):
            if isinstance(each, Lost):
                self._lost.append(each)
            else:
                found.append(each)
        found.sort(key=self._least_cost)
        for number, candidate in enumerate(found):
            stage = Stage("simulating", candidate.label, number, len(found))
            self._try(candidate, stage)
        if self._short and not self._kept and not self._missed:
            nearest = min(self._short, key=self._least_cost)
            most = self._question.max_devices // nearest.ranks
            self._sort_in(self._row(nearest, most, 1))
        rows = self._pareto()
        rows.sort(key=lambda row: (self._cost(row), row.figures.at(Metric.TTFT, 90)))
        closest = None if rows else min(self._missed, key=_worst, default=None)
        for row in self._missed:
            if row is not closest:
                self._lost.append(Lost(row.label, _missing(row)))
        return Advice(
            rows=tuple([self._with_ends(row) for row in self.told("its errors:", rows)]),
            nearest=None if closest is None else self._with_ends(closest),
            lost=tuple(self._lost),
            notes=(*self._question.load.notes, *self._notes(rows)),
        )

    # ---- numbers of engines -------------------------------------------------------------------

    def _least_engines(self, candidate: Candidate) -> int:
        return max(1, math.ceil(self._question.load.rate / candidate.engine_rate))

    def _least_cost(self, candidate: Candidate) -> float:
        devices = self._least_engines(candidate) * candidate.ranks
        return devices * (self._price(candidate) or 0.0) if self._priced else devices

    def _cost(self, row: Row) -> float:
        return (row.hourly or 0.0) if self._priced else row.devices

    def _price(self, candidate: Candidate) -> float | None:
        return price_of(candidate.card.name, self._question.prices)

    def told(self, doing: str, rows: Sequence[Row]) -> Iterator[Row]:
        """Yield rows that are simulated further, and tell of each."""
        for number, row in enumerate(rows):
            self._progress(Stage(doing, row.label, number, len(rows)))
            yield row

    def _try(self, candidate: Candidate, stage: Stage) -> None:
        """Find the fewest engines that keep the targets. stage: told if that is simulated."""
        least = self._least_engines(candidate) + candidate.divided
        most = self._question.max_devices // candidate.ranks
        if least > most:
            why = f"needs at least {least * candidate.ranks} devices of at most"
            self._lost.append(Lost(candidate.label, f"{why} {self._question.max_devices}"))
            self._short.append(candidate)
            return
        best = min(map(self._cost, self._kept), default=None)
        if best is not None and self._least_cost(candidate) > _NOT_WORTH * best:
            unit = "an hour" if self._priced else "devices"
            least_cost = self._least_cost(candidate)
            why = f"costs at least {least_cost:,.4g} {unit}, and the best {best:,.4g}"
            self._lost.append(Lost(candidate.label, why))
            return
        self._progress(stage)
        row = self._fewest(candidate, least, most)
        self._sort_in(row)
        if candidate.divided:
            return
        copies = min(_NODE_DEVICES // candidate.ranks, 1 << row.pods.bit_length() - 1)
        pods = -(-row.pods // max(1, copies))
        if copies > 1 and pods * copies <= most and not row.misses:
            self._sort_in(self._row(candidate, pods, copies))

    def _sort_in(self, row: Row) -> None:
        (self._missed if row.misses else self._kept).append(row)

    def _fewest(self, candidate: Candidate, least: int, most: int) -> Row:
        engines, below = least, least - 1
        while (figures := self._within(candidate, engines)) is None:
            if engines == most:
                return self._row(candidate, most, 1)
            below, engines = engines, min(2 * engines, most)
        while engines - below > 1:
            middle = (below + engines) // 2
            found = self._within(candidate, middle)
            if found is None:
                below = middle
            else:
                engines, figures = middle, found
        return self._row(candidate, engines, 1, figures)

    def _within(self, candidate: Candidate, pods: int, scale: float = 1.0) -> Figures | None:
        """Return the figures of pods that keep the targets; None of others."""
        figures = self._figures(candidate, (pods, 1), scale, 1.0)
        return None if figures is None or self._question.slo.misses(figures) else figures

    # ---- figures ------------------------------------------------------------------------------

    def _row(
        self, candidate: Candidate, pods: int, copies: int, figures: Figures | None = None
    ) -> Row:
        """Build a row without its ends, which only rows of the answer need. figures: if they are
        known."""
        if figures is None:
            figures = self._whole(candidate, (pods, copies))
        return Row(
            candidate=candidate,
            pods=pods,
            copies=copies,
            figures=figures,
            slow=figures,
            fast=figures,
            misses=self._question.slo.misses(figures),
            price=self._price(candidate),
        )

    def _with_ends(self, row: Row) -> Row:
        """Simulate both ends of the error of a row."""
        slower = 1.0 + row.candidate.rates.error
        slow, fast = (
            self._whole(row.candidate, (row.pods, row.copies), factor=factor)
            for factor in (slower, 1.0 / slower)
        )
        return replace(row, slow=slow, fast=fast)

    def _whole(
        self,
        candidate: Candidate,
        pods_and_copies: tuple[int, int],
        *,
        scale: float = 1.0,
        factor: float = 1.0,
    ) -> Figures:
        """Simulate to the end, whatever is late."""
        figures = self._figures(candidate, pods_and_copies, scale, factor, to_the_end=True)
        assert figures is not None, "it ran to its end"
        return figures

    def _figures(
        self,
        candidate: Candidate,
        pods_and_copies: tuple[int, int],
        scale: float,
        factor: float,
        *,
        to_the_end: bool = False,
    ) -> Figures | None:
        """Simulate; None once it is certain that too many requests wait too long."""
        pods, copies = pods_and_copies
        load, simulated = self._question.load.share(1 if candidate.divided else pods, scale)
        pair, variants = None, self._question.variants
        if candidate.divided:  # both roles are simulated together
            simulated = pods
            pair = Pair(candidate.prefills_of(pods), variants.link_bytes_per_second / factor)
        timer = replace(candidate.timer, factor=factor * candidate.timer.factor)
        fleet = Fleet(
            candidate.form,
            timer.seconds,
            simulated * copies,
            candidate.server,
            "least_tokens" if simulated == 1 else "round_robin",
            candidate.launches.times(factor),
            pair,
            candidate.rates.host_bytes_per_second / factor,
            variants.disk_bytes_per_second / factor,
        )
        slow = _TooSlow(self._question, len(load.dues))
        outcome = simulate(fleet, load, None if to_the_end else slow.decided)
        if outcome.stopped_early:
            return None
        return figures_of(outcome, self._question.slo, load.prompt_tokens, simulated)

    def with_goodput(self, row: Row) -> Row:
        """Bisect the rate that the row's pods serve within the targets. Slower steps serve a rate
        that is as much lower, as they make every second of the simulation longer."""
        most = self._most_scale(row) * self._question.load.rate
        error = 1.0 + row.candidate.rates.error
        return replace(row, goodput=Range(most / error, most, most * error))

    def _most_scale(self, row: Row) -> float:
        low, high = 1.0, 2.0
        while high <= _MOST_SCALE and self._within(row.candidate, row.pods, high) is not None:
            low, high = high, 2.0 * high
        if high > _MOST_SCALE:
            return low
        for _ in range(_SCALE_STEPS):
            middle = (low + high) / 2
            if self._within(row.candidate, row.pods, middle) is None:
                high = middle
            else:
                low = middle
        return low

    def with_curve(self, row: Row) -> Row:
        """Simulate a row at other rates."""
        points = [(0.0, 0.0)]
        for scale in _CURVE_SCALES:
            figures = row.figures
            if scale != 1.0:
                figures = self._whole(row.candidate, (row.pods, row.copies), scale=scale)
            rate = scale * self._question.load.rate
            served = figures.kept * figures.request_rate * row.pods / figures.pods
            points.append((rate, min(rate, served)))
        return replace(row, curve=tuple(points))

    # ---- the answer ---------------------------------------------------------------------------

    def _pareto(self) -> list[Row]:
        """Keep the rows that no other beats, and say of the others which one does."""
        percent = self._question.slo.percentile
        metrics = tuple(self._question.slo.targets)

        def losses(row: Row) -> tuple[float, ...]:
            felt = (row.figures.at(each, percent) for each in metrics)
            beside = (row.candidate.host_bytes * row.pods, row.candidate.form.file_bytes * row.pods)
            return (self._cost(row), *felt, *beside)

        kept = []
        for row in self._kept:
            better = next(
                (other for other in self._kept if _beats(losses(other), losses(row))), None
            )
            if better is None:
                kept.append(row)
            else:
                why = f"{better.label} costs no more and is no slower"
                self._lost.append(Lost(row.label, f"{_does_not_pay(row)}{why}"))
        return kept

    def _notes(self, rows: Sequence[Row]) -> list[str]:
        notes = []
        unpriced = [
            card.name
            for card in self._question.cards
            if price_of(card.name, self._question.prices) is None
        ]
        if unpriced:
            named = ", ".join(unpriced)
            notes.append(
                f"no price is known of {named}: rows are ordered by devices; give --prices"
            )
        chosen = rows[0] if rows else None
        if chosen is not None and chosen.pods == 1 and chosen.figures.busy < _NOT_BUSY:
            notes.append(
                f"one engine computes {chosen.figures.busy:.0%} of the time: it may sleep between "
                "requests (spec.autoscaling to zero, or --sleep-idle-seconds) if the first token "
                "may wait until it is awake"
            )
        return notes


_NOT_BUSY = 0.1


class _TooSlow:
    """Watches a simulation for more late first tokens than the percentile allows."""

    def __init__(self, question: Question, requests: int) -> None:
        self._target = question.slo.targets.get(Metric.TTFT)
        # The warm-up does not count, so a part of the late ones may be its.
        self._allowed = requests * (1.0 - question.slo.percentile / 100) + 0.1 * requests + 1
        self._late = 0

    def decided(self, place: int, served: Served) -> bool:
        if self._target is not None and served.ttft > self._target:
            self._late += 1
        return self._late > self._allowed


def _does_not_pay(row: Row) -> str:
    """Return how little a row that another one beats gained by its tiers, its drafts or its
    division; "" if it has none of these."""
    if row.prefills:
        return f"separate pods do not pay ({row.figures.reuse.sent:.0%} of the prompts were sent): "
    if row.candidate.form.file_bytes:
        share = f"{row.figures.reuse.from_files:.0%} of prompt tokens"
        return f"the files do not pay (they held {share}): "
    if row.candidate.host_bytes:
        return (
            f"the tier does not pay (it held {row.figures.reuse.from_tier:.0%} of prompt tokens): "
        )
    drafts = row.candidate.form.drafts
    if drafts is not None:
        return f"drafts do not pay ({drafts.tokens_a_step:.2f} tokens a step at most): "
    return ""


def _beats(one: Sequence[float], other: Sequence[float]) -> bool:
    return all(a <= b for a, b in zip(one, other, strict=True)) and tuple(one) != tuple(other)


def _worst(row: Row) -> float:
    return max(miss.ratio for miss in row.misses)


def _missing(row: Row) -> str:
    return f"misses {', '.join(map(str, row.misses))} on {row.devices} devices"
