"""What runs beside drafts, or cannot have any: grammars, scored prompts, models with windows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from atom.structured_outputs import StructuredOutputsParams
from tests.support.engine_core.core_driver import CoreDriver
from tests.support.models.tiny_model import Architecture, make_tiny_checkpoint

ATOM_TINY = Path(__file__).resolve().parents[3] / "examples" / "models" / "atom-tiny"
DRAFTS = SpeculativeConfig(num_tokens=4, fewest_matched=1, most_matched=3, adaptive=False)
WAYS: dict[str, dict[str, Any]] = {"at once": {}, "a step behind": {"depth": 1}}


def engine_of(model: Path, speculative: SpeculativeConfig | None, **options: Any) -> CoreDriver:
    return CoreDriver(
        str(model), speculative=speculative, max_model_len=256, max_num_seqs=8,
        max_num_batched_tokens=64, num_kv_blocks=128, **options,
    )  # fmt: skip


def answers_of(engine: CoreDriver, asks: list[tuple[list[int], SamplingParams]]) -> list[list[int]]:
    tokens: dict[int, list[int]] = {engine.add(*ask): [] for ask in asks}
    while engine.has_work():
        result = engine.step()
        for number, run in result.runs() if result else ():
            tokens[number] += run
    return list(tokens.values())


def mixed_asks(vocab_size: int) -> list[tuple[list[int], SamplingParams]]:
    """Repeating prompts; every second is confined by a grammar."""
    asks = []
    for number in range(8):
        confined = StructuredOutputsParams(regex=r"(ab|cd ){3,20}") if number % 2 else None
        params = SamplingParams(
            temperature=(number % 4) / 4, seed=number, max_tokens=40, structured_outputs=confined,
            ignore_eos=number % 4 == 0,
        )  # fmt: skip
        asks.append(([5 + number, 7, 9, 7, 9] * 6, params))
    return asks


@pytest.mark.sampled(1)
@pytest.mark.parametrize("way", WAYS)
def test_rows_with_a_grammar_draft_nothing_and_their_neighbours_do(
    way: str, request: pytest.FixtureRequest
) -> None:
    plain, drafting = (engine_of(ATOM_TINY, asked, **WAYS[way]) for asked in (None, DRAFTS))
    for engine in (plain, drafting):
        request.addfinalizer(engine.guided.close)
    asks = mixed_asks(plain.vocab_size)
    assert answers_of(drafting, asks) == answers_of(plain, asks)
    stats = drafting.scheduler.stats()
    assert stats.accepted_tokens_total > 0
    before = stats.draft_tokens_total
    confined = [ask for ask in asks if ask[1].structured_outputs is not None]
    answers_of(drafting, confined)
    assert drafting.scheduler.stats().draft_tokens_total == before


def test_rows_with_a_grammar_run_beside_drafts_of_a_model_that_keeps_states(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """What a state takes in of drafts is each row's own, whatever confines its neighbours."""
    folder = make_tiny_checkpoint(tmp_path, "qwen3_5", layers=4, seed=5)
    drafting, plain = (engine_of(folder, asked, depth=1) for asked in (DRAFTS, None))
    request.addfinalizer(drafting.guided.close)
    free = [
        ([5, 7, 9, 7, 9, 11] * 5, SamplingParams(
            temperature=number / 4, seed=number, max_tokens=16, allowed_token_ids=(7, 9, 11),
            ignore_eos=True,
        ))
        for number in range(2)
    ]  # fmt: skip
    regex = StructuredOutputsParams(regex="(ab|cd ){2,6}")
    confined = [
        ([5 + number, 7, 9, 7, 9] * 5, SamplingParams(
            temperature=number / 4, seed=number, max_tokens=16, structured_outputs=regex
        ))
        for number in range(2)
    ]  # fmt: skip
    together = answers_of(drafting, [free[0], confined[0], free[1], confined[1]])
    stats = drafting.scheduler.stats()
    assert 0 < stats.accepted_tokens_total < stats.draft_tokens_total
    assert together[::2] == answers_of(plain, free)
    assert together[1::2] == answers_of(drafting, confined)
    assert drafting.scheduler.stats().draft_tokens_total == stats.draft_tokens_total


def test_a_scored_prompt_beside_drafts_is_scored_all_the_same() -> None:
    found = []
    for asked in (None, DRAFTS):
        engine = engine_of(ATOM_TINY, asked)
        scored = SamplingParams(temperature=0.0, max_tokens=4, prompt_logprobs=1)
        plain = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
        first = [engine.add([5, 7, 9, 7, 9] * 4, plain) for _ in range(2)]
        for _ in range(6):
            engine.step()
        late = engine.add(list(range(20, 120)), scored)
        entries = []
        while engine.has_work():
            result = engine.step()
            if result is not None and result.prompt_logprobs is not None:
                entries += list(result.prompt_logprobs.entries())
        assert {number for number, _ in entries} == {late}
        assert late not in first
        found.append([(entry.token_id, entry.rank) for _, entry in entries])
        assert (engine.scheduler.stats().draft_tokens_total > 0) == (asked is not None)
    assert found[0] == found[1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("architecture", ["gemma3", "deepseek3", "gpt_oss", "mixtral"])
def test_windows_latents_and_experts_verify_drafts(
    tmp_path: Path, architecture: Architecture
) -> None:
    model = make_tiny_checkpoint(tmp_path, architecture)
    plain, drafting = (engine_of(model, asked) for asked in (None, DRAFTS))
    asks = [
        ([5 + number, 7, 9, 7, 9] * 8, SamplingParams(
            temperature=number / 8, seed=number, max_tokens=60, ignore_eos=True,
            allowed_token_ids=(7, 9, 11),
        ))
        for number in range(4)
    ]  # fmt: skip
    assert answers_of(drafting, asks) == answers_of(plain, asks)
    assert drafting.scheduler.stats().accepted_tokens_total > 0


def test_a_draft_is_never_longer_than_the_context_allows() -> None:
    short = replace(DRAFTS, num_tokens=8)
    engine = CoreDriver(
        str(ATOM_TINY), speculative=short, max_model_len=48, max_num_seqs=2, num_kv_blocks=6
    )
    (tokens,) = answers_of(
        engine, [([7, 9] * 10, SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True))]
    )
    assert len(tokens) == 28


def reported(
    engine: CoreDriver, asks: list[tuple[list[int], SamplingParams]]
) -> tuple[list[list[int]], dict[int, list[int]]]:
    """Tokens of each request, and those of them that were reported with a log-probability."""
    tokens: dict[int, list[int]] = {engine.add(*ask): [] for ask in asks}
    told: dict[int, list[int]] = {}
    while engine.has_work():
        result = engine.step()
        if result is None:
            continue
        runs = dict(result.runs())
        for number, run in runs.items():
            tokens[number] += run
        for number, entry in result.logprobs.entries() if result.logprobs else ():
            if number in runs and len(told.setdefault(number, [])) < len(tokens[number]):
                told[number].append(entry.token_id)
    return list(tokens.values()), told


def test_reports_of_a_step_are_its_own_rows_when_their_slots_have_others_by_then() -> None:
    """A row that said its stop token runs once more before the host, a step behind, has heard of
    it, and its slot is another's when that step is taken in."""
    engine = CoreDriver(
        str(ATOM_TINY), speculative=DRAFTS, max_model_len=128, max_num_seqs=2, depth=1,
        num_kv_blocks=32,
    )  # fmt: skip
    prompts = [[5 + number, 7, 9, 7, 9] * 4 for number in range(12)]
    likeliest = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    unbounded = answers_of(engine, [(prompt, likeliest) for prompt in prompts])
    asks = [
        (prompt, SamplingParams(
            temperature=0.0, max_tokens=24, ignore_eos=True, logprobs=0 if number % 3 else None,
            stop_token_ids=(answer[4 + number],),
        ))
        for number, (prompt, answer) in enumerate(zip(prompts, unbounded, strict=True))
    ]  # fmt: skip
    tokens, told = reported(engine, asks)
    assert [answer[: len(run)] for answer, run in zip(unbounded, tokens, strict=True)] == tokens
    assert list(told.values()) == [run for number, run in enumerate(tokens) if number % 3]
