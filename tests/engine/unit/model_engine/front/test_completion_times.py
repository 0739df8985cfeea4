"""The times of a finished answer: to its first token, per further token, and altogether."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from atom.model_engine import llm_engine
from atom.model_engine.llm_engine import Completion
from atom.model_engine.request import FinishReason, RequestOutput

ASKED_AT = 100.0


def completion(monkeypatch: pytest.MonkeyPatch, *arrivals: tuple[float, int]) -> Completion:
    """Of an answer whose pieces came then, with so many tokens each."""
    clock = SimpleNamespace(now=ASKED_AT)
    monkeypatch.setattr(llm_engine, "time", SimpleNamespace(monotonic=lambda: clock.now))
    item = llm_engine._Collected(arrive_time=ASKED_AT)
    for number, (now, count) in enumerate(arrivals, start=1):
        clock.now = now
        last = number == len(arrivals)
        output = RequestOutput(
            request_id="r",
            text="",
            output_tokens=[7] * count,
            finished=last,
            finish_reason=FinishReason.LENGTH if last else None,
            finish_detail="max_tokens" if last else None,
            num_prompt_tokens=3,
            num_output_tokens=count,
            num_cached_tokens=0,
        )
        llm_engine._collect(item, output)
    return llm_engine._completion(item)


def test_further_tokens_share_the_time_since_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    done = completion(monkeypatch, (102.0, 1), (103.0, 1), (105.0, 2))
    assert (done["ttft"], done["tpot"], done["latency"]) == (2.0, 1.0, 5.0)


def test_a_single_token_has_no_time_per_further_token(monkeypatch: pytest.MonkeyPatch) -> None:
    done = completion(monkeypatch, (102.5, 1))
    assert (done["ttft"], done["tpot"], done["latency"]) == (2.5, 0.0, 2.5)


def test_an_end_without_a_token_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stop string held back until the end was counted when its tokens came."""
    done = completion(monkeypatch, (101.0, 1), (102.0, 1), (109.0, 0))
    assert (done["ttft"], done["tpot"], done["latency"]) == (1.0, 1.0, 2.0)
