"""Candidates: each model, in each format, on each card, divided over each number of devices. Pure.

A candidate that cannot be, or that misses a target even for a single request, is lost before
anything is simulated; the reason has the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from atom.advisor.engine_form import EngineForm
from atom.advisor.load import Demand
from atom.advisor.operations import model_work
from atom.advisor.question import Lost, ModelForm, Question
from atom.advisor.rates import Rates
from atom.advisor.room import Division, plan_form
from atom.advisor.simulation import Server
from atom.advisor.slo import Metric
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer
from atom.sizing.cards import Card
from atom.sizing.errors import DoesNotFitError
from atom.sizing.options.scheduling import SchedulerOptions
from atom.sizing.parallelism import valid_tensor_parallel_sizes

_LEAST_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Describe one engine: a model on `ranks` devices of a card. engine_rate: requests per second
    that no engine of this kind exceeds, by the time of its steps alone."""

    model: ModelForm
    card: Card
    ranks: int
    form: EngineForm
    timer: StepTimer
    engine_rate: float

    @property
    def rates(self) -> Rates:
        return self.timer.rates

    @property
    def server(self) -> Server:
        seconds = self.rates.seconds
        return Server(seconds.request, seconds.token)

    @property
    def label(self) -> str:
        return f"{self.model.label}, {self.card.name} x {self.ranks}"

    @property
    def max_num_seqs(self) -> int:
        return self.form.limits.max_num_seqs


def candidates(question: Question) -> Iterator[Candidate | Lost]:
    """Yield every candidate, or why it is none."""
    for model in question.models:
        for card in question.cards:
            sizes = valid_tensor_parallel_sizes(model.facts)
            for ranks in sizes:
                yield _candidate(question, model, card, ranks)


def _candidate(question: Question, model: ModelForm, card: Card, ranks: int) -> Candidate | Lost:
    label = f"{model.label}, {card.name} x {ranks}"
    if ranks > question.max_devices:
        return Lost(label, f"needs {ranks} devices of at most {question.max_devices}")
    if ranks > 1 and not card.link_bytes_per_second:
        return Lost(label, f"the links between several {card.name} are unknown")
    division = Division(model.facts, card, ranks)
    most_rows = SchedulerOptions().max_num_seqs
    try:
        if model.plain is not None:
            plan_form(Division(model.plain, card, ranks), most_rows, question.load.longest)
        form = plan_form(division, most_rows, question.load.longest)
        work = model_work(
            model.facts, division.kv, division.sharding, element_bytes=division.element_bytes
        )
        timer = StepTimer(work, card, question.tables.rates(card, ranks))
        rows = _rows_within(question, timer, form.limits.max_num_seqs)
        if rows < form.limits.max_num_seqs:
            form = plan_form(division, rows, question.load.longest)
    except DoesNotFitError as error:
        plain = "" if model.plain is None else " (the operator plans a plain checkpoint's bytes)"
        return Lost(label, f"does not fit: {error}{plain}")
    alone = _misses_alone(question, timer, form)
    if alone:
        return Lost(label, alone)
    return Candidate(
        model=model,
        card=card,
        ranks=ranks,
        form=form,
        timer=timer,
        engine_rate=_most_rate(question.load, timer, form),
    )


def _rows_within(question: Question, timer: StepTimer, most: int) -> int:
    """Return the most rows, in powers of two, whose steps are within the targets of a token."""
    targets = question.slo.targets
    token = min(
        (targets[each] for each in (Metric.ITL, Metric.TPOT) if each in targets), default=None
    )
    rows = most
    context = _context(question.load)
    while token is not None and rows > _LEAST_ROWS:
        if timer.seconds(StepShape.decodes(rows, context)) <= token:
            break
        rows = max(_LEAST_ROWS, 1 << (rows - 1).bit_length() - 1)
    return rows


def _misses_alone(question: Question, timer: StepTimer, form: EngineForm) -> str:
    """Return which target a single request misses; "" if it misses none."""
    load, targets = question.load, question.slo.targets
    token = timer.seconds(StepShape.decodes(1, _context(load)))
    server = timer.rates.seconds
    first = prompt_seconds(load, timer, form) + server.request + server.token
    whole = first + token * max(0.0, load.output_tokens - 1)
    felt = {Metric.TTFT: first, Metric.ITL: token, Metric.TPOT: token, Metric.E2EL: whole}
    for metric, target in targets.items():
        if felt[metric] > target:
            return (
                f"even a single request misses {metric.value}: {felt[metric] * 1e3:,.1f} ms of "
                f"{target * 1e3:,.1f}"
            )
    return ""


def prompt_seconds(load: Demand, timer: StepTimer, form: EngineForm) -> float:
    """Return the seconds of an average prompt's steps, computed alone and without its cached
    part."""
    left = max(1, round(load.computed_tokens))
    computed = max(0, round(load.input_tokens) - left)
    seconds, most = 0.0, form.limits.max_num_batched_tokens
    while left > 0:
        tokens = min(left, most)
        seconds += timer.seconds(StepShape.prompt(tokens, computed))
        left, computed = left - tokens, computed + tokens
    return seconds


def _context(load: Demand) -> int:
    return max(1, round(load.input_tokens + load.output_tokens / 2))


def _most_rate(load: Demand, timer: StepTimer, form: EngineForm) -> float:
    """Return the requests per second of an engine that is always full and never waits."""
    held = round(load.input_tokens + load.output_tokens)
    context = min(held, form.limits.max_model_len)
    rows = max(1, min(form.limits.max_num_seqs, form.budget.sequences(context)))
    step = timer.seconds(StepShape.decodes(rows, _context(load)))
    decoding = math.ceil(load.output_tokens) * step / rows
    # Prompts share steps with answers, which are paid already but for their own tokens.
    prompts = prompt_seconds(load, timer, form) - timer.seconds(StepShape.prompt(1))
    return 1.0 / (decoding + max(0.0, prompts))
