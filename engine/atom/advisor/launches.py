"""Launches: how the engine starts a step on its device, and how long that keeps its host. Pure.

A GPU's decodes are graphs, and so are steps whose prompts fit a bucket (PromptBucket): the device
then computes the bucket's padding, too. Any other step is launched op by op. That takes the host as
long however few tokens there are, and the tokens of the step before it are read only afterwards.
Used by the virtual executor; the buckets are the engine's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from atom.advisor.operations import HostWork
from atom.advisor.rates import ASSUMED, StepSeconds
from atom.advisor.step_shape import StepShape
from atom.model_engine.runner.cuda_graphs.prompt_buckets import (
    PromptBucket,
    host_bound_tokens,
    prompt_buckets,
)
from atom.sizing.cards import Vendor
from atom.sizing.limits import RunLimits
from atom.sizing.model_facts import ModelFacts

if TYPE_CHECKING:
    from atom.advisor.engine_form import EngineForm


@dataclass(frozen=True, slots=True)
class Launch:
    """The start of a step. shape: with the padding that the device computes; before: seconds of the
    host until the device may begin; beside: further seconds that the host launches, during which
    the device computes."""

    shape: StepShape
    before: float = 0.0
    beside: float = 0.0

    def alone(self, device_seconds: float) -> float:
        """Return the seconds of the step if nothing else runs."""
        return self.before + max(device_seconds, self.beside)


@dataclass(frozen=True, slots=True)
class Launches:
    """The launches of an engine. buckets: of captured steps with prompts; prepare: seconds of the
    host for the inputs of a step with prompts; op_by_op: to launch one that no bucket holds, as one
    with images; mixed: further ones if it has answers beside its prompts; encoder: to launch an
    image's encoder."""

    buckets: tuple[PromptBucket, ...] = ()
    prepare: float = 0.0
    op_by_op: float = 0.0
    mixed: float = 0.0
    encoder: float = 0.0

    @classmethod
    def of(cls, form: EngineForm, vendor: Vendor, ranks: int, seconds: StepSeconds) -> Launches:
        """Describe the launches of an engine that is planned."""
        found = cls.for_limits(form.facts, form.limits, vendor, ranks, seconds)
        vision = form.facts.vision
        if form.pictures is None or vision is None:
            return found
        layer = _measured(seconds).launch
        return replace(found, encoder=layer * vision.num_layers)

    @classmethod
    def for_limits(
        cls,
        facts: ModelFacts,
        limits: RunLimits,
        vendor: Vendor,
        ranks: int,
        seconds: StepSeconds,
    ) -> Launches:
        """Describe an engine's launches. A CPU is its own host, so that its table has them
        already."""
        if vendor is Vendor.CPU:
            return cls()
        measured, work = _measured(seconds), HostWork.of(facts, ranks)
        alone = measured.of_host(work)
        return cls(
            captured_buckets(facts, limits, vendor, ranks),
            seconds.prepare or ASSUMED.seconds.prepare,
            alone,
            measured.of_host(work.beside_answers()) - alone,
        )

    def times(self, factor: float) -> Launches:
        """Return launches that take so many times as long, for the ends of an error's range."""
        return replace(
            self,
            prepare=self.prepare * factor,
            op_by_op=self.op_by_op * factor,
            mixed=self.mixed * factor,
            encoder=self.encoder * factor,
        )

    def of_step(self, shape: StepShape) -> Launch:
        """Return the launch of a step."""
        if not shape.chunks:
            return Launch(shape)
        for bucket in () if shape.has_images else self.buckets:
            prompts = shape.prompt_tokens
            if shape.decode_tokens == len(shape.contexts) and bucket.has_room(
                shape.decode_tokens, prompts, len(shape.chunks)
            ):
                padding = bucket.tokens - shape.decode_tokens - prompts
                return Launch(replace(shape, padding=padding), self.prepare)
        beside = self.op_by_op + self.mixed * bool(len(shape.contexts))
        return Launch(shape, self.prepare, beside + self.encoder * bool(shape.grids))


def _measured(seconds: StepSeconds) -> StepSeconds:
    """Return seconds with launches: assumed ones where a table has none."""
    return seconds if seconds.launch else ASSUMED.seconds


NO_LAUNCHES = Launches()  # of a host that takes no time


def captured_buckets(
    facts: ModelFacts, limits: RunLimits, vendor: Vendor, ranks: int
) -> tuple[PromptBucket, ...]:
    """Return the buckets that an engine captures; none for the kinds of steps that ADR 39 lists."""
    layers = [alike.layer.attention for alike in facts.layer_counts]
    searches = any(getattr(each, "index", None) is not None for each in layers)
    if vendor is Vendor.AMD or searches or limits.num_speculative_tokens:
        return ()
    return prompt_buckets(
        limits.max_num_seqs,
        limits.max_num_batched_tokens,
        host_bound_tokens(facts, ranks),
    )
