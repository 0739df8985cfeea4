"""Answers that repeat across requests: suffix decoding drafts them, and changes no token."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from atom.model_engine.wire.core_stats import StatsBody
from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig, SuffixOptions
from tests.support.engine_core.builders_engine import make_request
from tests.support.engine_core.core_driver import CoreDriver

ATOM_TINY = Path(__file__).resolve().parents[3] / "examples" / "models" / "atom-tiny"
MOST_DRAFTS = 5
NGRAM = SpeculativeConfig(num_tokens=MOST_DRAFTS, adaptive=False)
SUFFIX = SpeculativeConfig(method="suffix", num_tokens=MOST_DRAFTS, adaptive=False)

Played = tuple[list[list[int]], StatsBody]


def engine_of(speculative: SpeculativeConfig | None, **options: Any) -> CoreDriver:
    return CoreDriver(
        str(ATOM_TINY), speculative=speculative, max_model_len=256, max_num_seqs=4,
        max_num_batched_tokens=64, num_kv_blocks=128, **options,
    )  # fmt: skip


def play(engine: CoreDriver, temperature: float) -> Played:
    """An agent's rounds: the same questions again, with the seeds of before, behind other text."""
    draw = random.Random(3)
    questions = [[draw.randrange(3, engine.vocab_size) for _ in range(30)] for _ in range(3)]
    tokens = []
    for _ in range(2):
        for number, question in enumerate(questions):
            params = SamplingParams(
                temperature=temperature, seed=number, max_tokens=40, ignore_eos=True
            )
            tokens += engine.generate_each([(question, params)])
    engine.guided.close()
    return tokens, engine.scheduler.stats()


@pytest.mark.parametrize(("temperature", "depth"), [(0.0, 1), (0.9, 0)])
def test_repeated_answers_are_drafted_and_no_token_changes(temperature: float, depth: int) -> None:
    (plain, _), (by_ngram, ngram), (by_suffix, suffix) = (
        play(engine_of(asked, depth=depth), temperature) for asked in (None, NGRAM, SUFFIX)
    )
    assert by_suffix == by_ngram == plain
    assert suffix.accepted_tokens_total > ngram.accepted_tokens_total
    assert suffix.steps_total < ngram.steps_total
    assert suffix.accepted_at_totals[0] >= suffix.accepted_at_totals[-1] > 0
    share, other = (
        each.accepted_tokens_total / each.draft_tokens_total for each in (suffix, ngram)
    )
    assert share > other, "counts and probabilities leave improbable drafts out"


def asked_again(salts: tuple[str, str], options: SuffixOptions, forget: bool = False) -> int:
    """How many drafts held of a sampled answer that was given under another salt, or the same."""
    engine = engine_of(SpeculativeConfig(method="suffix", adaptive=False, suffix=options))
    held = []
    for number, salt in enumerate(salts):
        sampled = {"temperature": 1.3, "seed": 5, "max_tokens": 60, "ignore_eos": True}
        engine.pipeline.add(make_request(number, [7, 8, 9] * 4, cache_salt=salt, **sampled))
        engine.run()
        held.append(engine.scheduler.stats().accepted_tokens_total)
        if forget:
            engine.scheduler.tokens.forget_answers()
    engine.guided.close()
    return held[1] - 2 * held[0]  # above what a row finds in its own text


def test_answers_are_shared_within_a_salt_alone_and_until_they_are_forgotten() -> None:
    kept = SuffixOptions()
    assert asked_again(("", ""), kept) > 30
    assert asked_again(("tenant", "tenant"), kept) > 30
    assert asked_again(("", "tenant"), kept) == 0
    assert asked_again(("tenant", "other"), kept) == 0
    assert asked_again(("", ""), kept, forget=True) == 0
    assert asked_again(("", ""), SuffixOptions(max_cached_requests=0)) == 0
