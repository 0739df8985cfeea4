"""Texts whose answers are given are of the size asked for, and engines say them."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from atom.sampling_params import SamplingParams
from atom.speculative_config import SpeculativeConfig
from benchmarks.drafts.drafter_time import own_runner
from benchmarks.drafts.said_texts import SAID, Sayer, TextSize, said_text
from benchmarks.engines.offline_engine import OfflineEngine
from tests.support.models.tiny_model import make_tiny_checkpoint


@pytest.mark.parametrize("name", SAID)
def test_answers_say_again_much_of_what_was_asked(name: str) -> None:
    text = said_text(name, TextSize(2000, 200, 30_000), np.random.default_rng(0))
    assert len(text.answer) == 200
    assert len(text.prompt) + len(text.answer) <= 2000
    tokens = text.prompt + text.answer
    pairs = list(itertools.pairwise(tokens))
    again = [pair in pairs[: len(text.prompt) + at] for at, pair in enumerate(pairs[-199:])]
    assert sum(again) > 100


def test_an_engine_says_what_it_is_told_with_drafts_and_without(tmp_path: Path) -> None:
    folder = make_tiny_checkpoint(tmp_path, "llama")
    text = said_text("edit", TextSize(200, 60, 256), np.random.default_rng(0))
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    for speculative in (None, SpeculativeConfig(num_tokens=3)):
        engine = OfflineEngine(
            str(folder), speculative=speculative, max_model_len=256, max_num_seqs=2,
            num_kv_blocks=40,
        )  # fmt: skip
        sayer = Sayer(own_runner(engine).steps, 256)
        told = [_answer(engine, text.prompt, params)]
        sayer.say(text)
        told.append(_answer(engine, text.prompt, params))
        sayer.say(None)
        assert _answer(engine, text.prompt, params) == told[0] != told[1] == text.answer
        engine.close()


def _answer(engine: OfflineEngine, prompt: list[int], params: SamplingParams) -> list[int]:
    engine.add(prompt, params)
    tokens: list[int] = []
    while engine.has_work():
        result = engine.step()
        for _, run in result.runs() if result else ():
            tokens += run
    return tokens
