"""Candidates: each model, in each format, on each card, divided over each number of devices. Pure.

A candidate that cannot be, or that misses a target even for a single request, is lost before
anything is simulated; the reason has the numbers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from atom.advisor.engine_form import EngineForm
from atom.advisor.extra_work import extra_work
from atom.advisor.extras import Adapters, Drafts
from atom.advisor.launches import Launches
from atom.advisor.learned import Learned
from atom.advisor.load import Demand
from atom.advisor.operations import model_work
from atom.advisor.question import Lost, ModelForm, Question
from atom.advisor.rates import Rates
from atom.advisor.room import Division, plan_form, tier_of
from atom.advisor.simulation import Server
from atom.advisor.slo import Metric
from atom.advisor.step_shape import StepShape
from atom.advisor.step_time import StepTimer
from atom.sizing.cards import Card
from atom.sizing.drafting import draft_problems
from atom.sizing.errors import DoesNotFitError
from atom.sizing.host_tier import GIB
from atom.sizing.options.least_tokens import DEFAULT_LEAST_TOKENS
from atom.sizing.options.scheduling import SchedulerOptions
from atom.sizing.parallelism import valid_tensor_parallel_sizes

_LEAST_ROWS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Describe one engine: a model on `ranks` devices of a card. engine_rate: requests per second
    that no engine of this kind exceeds, by the time of its steps alone; divided: prefill and decode
    apart; prompt_share: of the time of steps, that prompts take; learned: the correction of its
    steps by running deployments."""

    model: ModelForm
    card: Card
    ranks: int
    form: EngineForm
    timer: StepTimer
    engine_rate: float
    prompt_share: float = 0.0
    divided: bool = False
    learned: Learned | None = None

    @property
    def host_bytes(self) -> int:
        """Return the bytes of the tier in the host's memory; 0 without one."""
        return self.form.host_bytes

    def prefills_of(self, pods: int) -> int:
        """Return how many of so many pods compute prompts, by their share of the time."""
        return max(1, min(pods - 1, round(self.prompt_share * pods))) if self.divided else 0

    @property
    def rates(self) -> Rates:
        return self.timer.rates

    @property
    def server(self) -> Server:
        seconds = self.rates.seconds
        return Server(seconds.request, seconds.token, seconds.accept)

    @property
    def launches(self) -> Launches:
        return launches_of(self.form, self.timer)

    @property
    def engine_label(self) -> str:
        """Return the label of one engine, divided or not."""
        engine = f"{self.model.label}, {self.card.name} x {self.ranks}"
        return f"{engine}{_of_form(self.form)}"

    @property
    def label(self) -> str:
        return f"{self.engine_label}{', prefill and decode apart' if self.divided else ''}"

    @property
    def max_num_seqs(self) -> int:
        return self.form.limits.max_num_seqs


def _of_form(form: EngineForm) -> str:
    """Return the label of an engine's drafts, adapters and tiers, each behind a comma."""
    tiers = _of_tiers(form.host_bytes, form.file_bytes)
    return f"{_of_extras(form.drafts, form.adapters)}{tiers}"


def _of_extras(drafts: Drafts | None, adapters: Adapters | None) -> str:
    return "".join(f", {each.label}" for each in (drafts, adapters) if each is not None)


def _of_tiers(host_bytes: int, file_bytes: int) -> str:
    host = f", {host_bytes / GIB:.3g} GiB of host memory" if host_bytes else ""
    return host + (f", {file_bytes / GIB:.4g} GiB of files" if file_bytes else "")


def candidates(question: Question) -> Iterator[Candidate | Lost]:
    """Yield every candidate, or why it is none."""
    variants = question.variants
    kinds = list(itertools.product((None, *variants.drafts), variants.adapters or (None,)))
    for model, card in itertools.product(question.models, question.cards):
        for ranks in valid_tensor_parallel_sizes(model.facts):
            for drafts, adapters in kinds:
                division = Division(model.facts, card, ranks, drafts, adapters)
                found = _candidate(question, model, division)
                yield found
                if isinstance(found, Candidate):
                    yield from _variants(question, found, division)
                elif drafts is None and found.is_of_every_kind:
                    break


def _variants(
    question: Question, plain: Candidate, division: Division
) -> Iterator[Candidate | Lost]:
    """Yield a candidate with each tier, and divided into prefill and decode."""
    for size_bytes in question.variants.host_sizes:
        tiered = _with_tier(plain, division, size_bytes)
        yield tiered
        if isinstance(tiered, Candidate):
            for file_bytes in question.variants.file_sizes:
                yield replace(tiered, form=replace(tiered.form, file_bytes=file_bytes))
    if question.variants.divides:
        divided = replace(plain, divided=True)
        why = _why_undivided(question, plain)
        yield Lost(divided.label, why) if why else divided


def _with_tier(plain: Candidate, division: Division, size_bytes: int) -> Candidate | Lost:
    """Return a candidate with a tier of a size. A CPU takes the tier from the engine's own memory;
    a GPU has places there for pages on their way."""
    label = f"{plain.label}{_of_tiers(size_bytes, 0)}"
    form = replace(plain.form, host=tier_of(plain.form, size_bytes))
    if form.host is None:
        why = "its layers cannot share prefixes, or a page is larger"
        return Lost(label, f"no tier of the KV cache: {why}")
    try:
        limits = plain.form.limits
        tiered = replace(division, host_bytes=form.host_bytes)
        planned = plan_form(tiered, limits.max_num_seqs, limits.max_model_len)
        return replace(plain, form=replace(planned, pictures=plain.form.pictures))
    except DoesNotFitError as error:
        return Lost(label, f"does not fit: {error}")


def _why_undivided(question: Question, plain: Candidate) -> str:
    """Return why prefill and decode of a candidate are not divided; "" if they may be."""
    form = plain.form
    if plain.model.facts.keeps_states:
        return "layers keep states, whose way between pods is not simulated"
    if form.drafts is not None and form.drafts.by_layers:
        return "drafts by layers have a KV cache that pages between pods do not have"
    if form.pictures is not None:
        return "images beside pages that go between pods are not simulated"
    if question.load.input_tokens < DEFAULT_LEAST_TOKENS:
        tokens = f"prompts have {question.load.input_tokens:,.0f} tokens on average"
        why = f"{tokens}: below {DEFAULT_LEAST_TOKENS} they are computed where they are answered"
        return f"separate pods do not pay: {why}"
    if 2 * plain.ranks > question.max_devices:
        return f"needs {2 * plain.ranks} devices of at most {question.max_devices}"
    return ""


def _candidate(question: Question, model: ModelForm, division: Division) -> Candidate | Lost:
    card, ranks, drafts = division.card, division.ranks, division.drafts
    engine = f"{model.label}, {card.name} x {ranks}"
    if ranks > question.max_devices:
        why = f"needs {ranks} devices of at most {question.max_devices}"
        return Lost(engine, why, is_of_every_kind=True)
    if ranks > 1 and not card.link_bytes_per_second:
        why = f"the links between several {card.name} are unknown"
        return Lost(engine, why, is_of_every_kind=True)
    label = f"{engine}{_of_extras(drafts, division.adapters)}"
    problems = "; ".join((*_draft_problems(model, drafts), *_image_problems(question, model)))
    if problems:
        return Lost(label, problems)
    try:
        form, timer = _planned(question, model, division)
    except DoesNotFitError as error:
        plain = "" if model.plain is None else " (the operator plans a plain checkpoint's bytes)"
        return Lost(label, f"does not fit: {error}{plain}")
    alone = _misses_alone(question, timer, form)
    if alone:
        return Lost(label, alone)
    prompt = prompt_seconds(question.load, timer, form)
    rate = _most_rate(question.load, timer, form, prompt)
    return Candidate(
        model=model,
        card=card,
        ranks=ranks,
        form=form,
        timer=timer,
        engine_rate=rate,
        prompt_share=min(1.0, prompt * rate),
        learned=question.learned.get((model.source, card.name)),
    )


def _draft_problems(model: ModelForm, drafts: Drafts | None) -> Iterator[str]:
    """Yield why an engine would refuse to draft for a model."""
    if drafts is not None and drafts.by_layers:
        yield from draft_problems(drafts.method, model.facts, drafts.facts)


def _image_problems(question: Question, model: ModelForm) -> Iterator[str]:
    """Yield why prompts with these images are none of a model."""
    pictures, vision = question.pictures, model.facts.vision
    if pictures is None:
        return
    if vision is None:
        yield "it reads no images"
        return
    tokens = pictures.tokens(vision, model.facts.longest_context)
    if tokens >= question.load.input_tokens:
        yield (
            f"the images of a prompt have {tokens:,} tokens, and the prompt "
            f"{question.load.input_tokens:,.0f} with them"
        )


def _planned(
    question: Question, model: ModelForm, division: Division
) -> tuple[EngineForm, StepTimer]:
    """Plan an engine with as many rows as targets of a token allow. Raises DoesNotFitError."""
    most_rows, longest = SchedulerOptions().max_num_seqs, question.load.longest
    if model.plain is not None:
        plan_form(replace(division, facts=model.plain), most_rows, longest)
    form = plan_form(division, most_rows, longest)
    learned = question.learned.get((model.source, division.card.name))
    parts = model.facts, division.kv, division.sharding
    pictures = question.pictures
    element, extras = division.element_bytes, (division.drafts, division.adapters, pictures)
    timer = StepTimer(
        model_work(*parts, element_bytes=element),
        division.card,
        question.tables.rates(division.card, division.ranks),
        1.0 if learned is None else learned.factor,
        extras=extra_work(*parts, extras, element),
    )
    rows = _rows_within(question, timer, form.limits.max_num_seqs)
    if rows < form.limits.max_num_seqs:
        form = plan_form(division, rows, longest)
    return replace(form, pictures=pictures), timer


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
    gap = timer.seconds(StepShape.decodes(1, _context(load)))
    token = _token_seconds(timer, form, 1, _context(load))
    server = timer.rates.seconds
    first = _alone_seconds(load, timer, form) + server.request + server.token
    whole = first + token * max(0.0, load.output_tokens - 1)
    felt = {Metric.TTFT: first, Metric.ITL: gap, Metric.TPOT: token, Metric.E2EL: whole}
    for metric, target in targets.items():
        if felt[metric] > target:
            return (
                f"even a single request misses {metric.value}: {felt[metric] * 1e3:,.1f} ms of "
                f"{target * 1e3:,.1f}"
            )
    return ""


def launches_of(form: EngineForm, timer: StepTimer) -> Launches:
    """Return the launches of an engine of this form."""
    found = Launches.of(form, timer.card.vendor, timer.work.ranks, timer.rates.seconds)
    return found.times(timer.factor)


def _alone_seconds(load: Demand, timer: StepTimer, form: EngineForm) -> float:
    """Return the seconds of an average prompt's steps with their launches, if nothing else runs."""
    launches = launches_of(form, timer)
    seconds = 0.0
    for shape in _prompt_steps(load, form):
        launch = launches.of_step(shape)
        seconds += launch.alone(timer.seconds(launch.shape))
    return seconds


def prompt_seconds(load: Demand, timer: StepTimer, form: EngineForm) -> float:
    """Return the device's seconds for an average prompt, computed alone and without its cached
    part."""
    return sum(timer.seconds(shape) for shape in _prompt_steps(load, form))


def _prompt_steps(load: Demand, form: EngineForm) -> Iterator[StepShape]:
    """Yield the steps of an average prompt without its cached part."""
    left = max(1, round(load.computed_tokens))
    computed = max(0, round(load.input_tokens) - left)
    grids: tuple[tuple[int, int, int], ...] | None = None  # of images; they are encoded once
    if form.pictures is not None and form.facts.vision is not None:
        longest = form.limits.max_model_len
        grids = (form.pictures.grid(form.facts.vision, longest),) * form.pictures.count
    while left > 0:
        tokens = min(left, form.limits.max_num_batched_tokens)
        step = StepShape.prompt(tokens, computed)
        yield step if grids is None else replace(step, grids=grids, has_images=True)
        grids = None if grids is None else ()
        left, computed = left - tokens, computed + tokens


def _token_seconds(timer: StepTimer, form: EngineForm, rows: int, context: int) -> float:
    """Return the seconds of a step of so many rows for each token that a row gets of it, on
    average, with the number of drafts for which these are fewest."""
    drafts = form.drafts
    fewest = timer.seconds(StepShape.decodes(rows, context))
    for count in range(1, 1 + (0 if drafts is None else drafts.tokens)):
        assert drafts is not None, "they are counted"
        got = replace(drafts, tokens=count).tokens_a_step
        fewest = min(fewest, timer.seconds(StepShape.decodes(rows, context, count)) / got)
    return fewest


def _context(load: Demand) -> int:
    return max(1, round(load.input_tokens + load.output_tokens / 2))


def _most_rate(load: Demand, timer: StepTimer, form: EngineForm, prompt: float) -> float:
    """Return the requests per second of an engine that is always full and never waits. prompt: the
    seconds of an average prompt."""
    held = round(load.input_tokens + load.output_tokens)
    context = min(held, form.limits.max_model_len)
    rows = max(1, min(form.limits.max_num_seqs, form.budget.sequences(context)))
    step = _token_seconds(timer, form, rows, _context(load))
    decoding = math.ceil(load.output_tokens) * step / rows
    # Prompts share steps with answers, which are paid already but for their own tokens.
    own_seconds = prompt - timer.seconds(StepShape.prompt(1))
    return 1.0 / (decoding + max(0.0, own_seconds))
