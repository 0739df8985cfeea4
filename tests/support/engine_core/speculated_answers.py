"""Seeded requests over every sampling control, and what an engine answers them.

Two engines' answers can be compared token by token: with and without speculation, for one.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from atom.config import SchedulerConfig
from atom.model_engine.block_manager import BlockManager
from atom.model_engine.blocks.state_checkpoints import StateCheckpoints
from atom.model_engine.executor.base import StepExecutor
from atom.model_engine.request import Request
from atom.model_engine.schedule.step_result import StepResult
from atom.model_engine.scheduler import Scheduler
from atom.model_engine.step_pipeline import StepPipeline, draft_by_suffix
from atom.model_engine.wire.core_stats import StatsBody
from atom.sizing.mask_rule import CAUSAL, MaskRule
from atom.speculation.draft_lengths import AdaptiveDraftLengths
from atom.speculation.step_cost import StepCost
from atom.speculative_config import SuffixOptions
from tests.support.engine_core.builders_engine import make_request
from tests.support.engine_core.scheduler_integrity import check_integrity

MAX_MODEL_LEN = 128
BLOCK_SIZE = 16
AMPLE_BLOCKS = 64
SCARCE_BLOCKS = MAX_MODEL_LEN // BLOCK_SIZE + 3
STOP_TOKEN = 40


@dataclass(frozen=True)
class Setting:
    """How an engine runs its steps; drafts: of a row, 0 for an engine that does not draft; suffix:
    how the host drafts, None where the device does."""

    drafts: int = 0
    depth: int = 0
    policy: str = "mixed"
    budget: int = 256
    threshold: int = 0
    num_blocks: int = AMPLE_BLOCKS
    prefix_caching: bool = True
    aborts: bool = False
    adaptive: bool = False
    suffix: SuffixOptions | None = None


@dataclass
class Answer:
    """tokens, with log-probabilities where they were asked for; ended: how, None when aborted."""

    tokens: list[int] = field(default_factory=list)
    reports: list[tuple[int, int]] = field(default_factory=list)  # token, rank
    logprobs: list[float] = field(default_factory=list)
    ended: tuple[str, str] | None = None


def some_requests(seed: int, count: int, vocab_size: int) -> list[Request]:
    draw = random.Random(seed)
    return [_some_request(number, draw, vocab_size) for number in range(count)]


def _some_request(number: int, draw: random.Random, vocab_size: int) -> Request:
    # Prompts that repeat themselves, and begin alike; answers of few tokens that do.
    phrase = [draw.randrange(3, vocab_size) for _ in range(draw.randrange(1, 9))]
    prompt = [10 + draw.randrange(2)] * draw.choice([0, 0, 20]) + phrase * draw.randrange(1, 5)
    return make_request(
        number,
        prompt,
        max_tokens=draw.randrange(1, 60),
        priority=draw.randrange(-2, 3),
        cache_salt=draw.choice(["", "", "a"]),
        seed=draw.getrandbits(63),
        temperature=draw.choice([0.0, 0.0, 0.3, 0.8, 1.3]),
        **_controls(draw, vocab_size),
    )


def _controls(draw: random.Random, vocab_size: int) -> dict[str, Any]:
    """A few of all that a request may ask of its tokens, together."""

    def tokens(count: int) -> list[int]:
        return [draw.randrange(3, vocab_size) for _ in range(count)]

    few = tokens(12)
    controls: list[dict[str, Any]] = [
        {"top_k": draw.choice([1, 3, 20])},
        {"top_p": draw.choice([0.3, 0.9])},
        {"min_p": 0.1},
        {"repetition_penalty": draw.choice([0.5, 1.3])},
        {"frequency_penalty": draw.choice([-1.5, 0.4])},
        {"presence_penalty": draw.choice([-1.0, 0.8])},
        {"logit_bias": {token: draw.choice([-100.0, 5.0]) for token in few}},
        {"allowed_token_ids": tuple(tokens(4))},
        {"allowed_token_ids": tuple(tokens(3)), "repetition_penalty": 1.1},
        {"bad_words_token_ids": tuple((a, b) for a in few for b in few)},
        {"bad_words_token_ids": tuple((token,) for token in few)},
        {"min_tokens": 1, "ignore_eos": False},
        {"ignore_eos": True},
        {"stop_token_ids": (STOP_TOKEN, *few)},
        {"logprobs": draw.choice([0, 2])},
    ]
    chosen: dict[str, Any] = {}
    for control in draw.sample(controls, draw.choice([0, 1, 1, 2, 3, 5])):
        chosen |= control
    return chosen


def cache_masks(scheduler: Scheduler) -> list[MaskRule]:
    """What each group of layers sees."""
    return [group.mask for group in scheduler.blocks.groups]


class PlayedEngine:
    """An executor's steps under a setting's scheduler, for one run of requests."""

    def __init__(
        self,
        executor: StepExecutor,
        setting: Setting,
        eos: tuple[int, ...],
        checkpoints: StateCheckpoints | None = None,
        masks: Sequence[MaskRule] = (CAUSAL,),
    ) -> None:
        """checkpoints: of states, where layers keep any; masks: what each group of layers sees, of
        which each has the setting's blocks."""
        self._setting = setting
        config = SchedulerConfig(
            policy=setting.policy,  # type: ignore[arg-type]
            max_num_seqs=8,
            max_num_batched_tokens=setting.budget,
            long_prefill_token_threshold=setting.threshold,
            max_step_seconds=0.0,
            num_speculative_tokens=setting.drafts,
        )
        blocks = BlockManager(
            setting.num_blocks * len(masks),
            BLOCK_SIZE,
            enable_prefix_caching=setting.prefix_caching,
            masks=masks,
            checkpoints=checkpoints if setting.prefix_caching else None,
        )
        self.scheduler = Scheduler(
            config, blocks, max_model_len=MAX_MODEL_LEN, eos_token_ids=eos,
            draft_lengths=AdaptiveDraftLengths(setting.drafts, 8, StepCost(16.0))
            if setting.adaptive
            else None,
        )  # fmt: skip
        if setting.suffix is not None:
            draft_by_suffix(self.scheduler, setting.suffix)
        self._pipeline = StepPipeline(self.scheduler, executor, depth=setting.depth)

    def play(self, requests: list[Request]) -> list[Answer]:
        """All answers; a few requests come before each step, and some leave again if `aborts`."""
        answers = [Answer() for _ in requests]
        draw, waiting = random.Random(0), list(requests)
        for step in range(100_000):
            for request in waiting[: draw.randrange(4)]:
                waiting.remove(request)
                self._pipeline.add(request)
            if not self._pipeline.has_work():
                if not waiting:
                    return answers
                continue
            if self._setting.aborts and draw.random() < 0.1:
                self._pipeline.abort([draw.randrange(len(requests))])
            result = self._pipeline.step(float(step))
            check_integrity(self.scheduler)
            if result is not None:
                _take(result, answers)
        raise AssertionError("no progress")

    @property
    def stats(self) -> StatsBody:
        return self.scheduler.stats()


def _take(result: StepResult, answers: list[Answer]) -> None:
    given = dict(result.runs())
    for number, run in given.items():
        answers[number].tokens += run
    for row in result.finished:
        answers[row.request_id].ended = (row.reason, row.detail)
    for number, entry in result.logprobs.entries() if result.logprobs else ():
        answer = answers[number]
        # What was drawn behind an end is reported, and taken by none.
        if number in given and len(answer.reports) < len(answer.tokens):
            answer.reports.append((entry.token_id, entry.rank))
            answer.logprobs.append(entry.logprob)


def differing(answers: list[Answer], expected: list[Answer]) -> list[int]:
    """Which answers are not the expected ones; of those that were aborted, not their beginning."""
    return [
        number
        for number, (answer, other) in enumerate(zip(answers, expected, strict=True))
        if not _alike(answer, other)
    ]


def _alike(answer: Answer, other: Answer) -> bool:
    aborted = answer.ended is None or answer.ended[0] == "abort"
    length = len(answer.tokens) if aborted else None
    if not aborted and answer.ended != other.ended:
        return False
    close = all(
        abs(one - two) < 1e-3
        for one, two in zip(answer.logprobs, other.logprobs[:length], strict=True)
    )
    return (
        answer.tokens == other.tokens[:length]
        and answer.reports == other.reports[:length]
        and close
    )
