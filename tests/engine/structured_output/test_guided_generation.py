"""Guided and plain requests in one engine: valid answers, and neighbours that never notice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from atom.model_engine.wire.engine_protocol import FinishedRow
from atom.sampling_params import SamplingParams
from atom.structured_outputs import StructuredOutputsParams
from atom.tokenizer import Tokenizer
from tests.support.engine_core.core_driver import CoreDriver

CHECKPOINT = Path(__file__).resolve().parents[3] / "examples" / "models" / "atom-tiny"
ENDS = (0, 2)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["fast", "small", None]}, "maxItems": 2},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
EXPRESSION = r"[A-Z][a-z]{2,5}-[0-9]{3}"
GRAMMAR = 'root ::= term ("+" term){0,2}\nterm ::= [0-9]{1,3} | "(" term ")"'
CHOICES = ["yes", "no", "it depends — on\nyou"]
KINDS: list[dict[str, Any]] = [
    {"json": SCHEMA},
    {"json": SCHEMA, "disable_any_whitespace": True},
    {"regex": EXPRESSION},
    {"grammar": GRAMMAR},
    {"choice": CHOICES},
]
PROMPTS = ["What is ATOM?", "What is a KV cache?", "Who are you?"]
WAYS: dict[str, dict[str, Any]] = {
    "at once": {},
    "a step behind": {"depth": 1},
    "chunked prompts": {"max_num_batched_tokens": 12, "max_num_seqs": 8, "depth": 1},
    "prompts first": {"scheduling_policy": "prefill_first", "depth": 1},
    "preempted": {"num_kv_blocks": 18, "max_model_len": 288, "depth": 1},
    "no prefix cache": {"enable_prefix_caching": False},
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer(CHECKPOINT)


def prompt_of(tokenizer: Tokenizer, question: str) -> list[int]:
    text = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    return tokenizer.encode(text, add_special_tokens=False)


def requests_of(tokenizer: Tokenizer) -> tuple[list[Any], list[Any]]:
    """(guided, plain): every kind, drawn or greedy; plain ones greedy, drawn, and with limits."""
    guided = [
        (
            prompt_of(tokenizer, PROMPTS[index % 3]),
            SamplingParams(
                max_tokens=250,
                temperature=index % 3 / 2,
                top_k=40 if index % 2 else -1,
                seed=index,
                structured_outputs=StructuredOutputsParams(**kind),
            ),
        )
        for index, kind in enumerate(KINDS)
    ]
    plain = [
        (prompt_of(tokenizer, question), SamplingParams(max_tokens=25, seed=index, **params))
        for index, question in enumerate(PROMPTS)
        for params in ({"temperature": 0.0}, {"temperature": 0.9}, {"top_p": 0.8, "min_p": 0.01})
    ]
    return guided, plain


class Drivers:
    """One engine per way, made when asked for."""

    def __init__(self) -> None:
        self.made: dict[str, CoreDriver] = {}

    def of(self, way: str) -> CoreDriver:
        if way not in self.made:
            options = {"num_kv_blocks": 512, "max_num_seqs": 32, **WAYS[way]}
            self.made[way] = CoreDriver(str(CHECKPOINT), **options)
        return self.made[way]


@pytest.fixture(scope="module")
def drivers() -> Iterator[Drivers]:
    drivers = Drivers()
    yield drivers
    for driver in drivers.made.values():
        driver.guided.close()


@pytest.fixture(scope="module")
def alone(drivers: Drivers, tokenizer: Tokenizer) -> tuple[list[list[int]], list[list[int]]]:
    """What the guided and the plain requests give without the other kind beside them."""
    guided, plain = requests_of(tokenizer)
    driver = drivers.of("at once")
    return driver.generate_each(guided), driver.generate_each(plain)


def fits(kind: dict[str, Any], text: str) -> bool:
    if "json" in kind:
        jsonschema.validate(json.loads(text), kind["json"])
        return "disable_any_whitespace" not in kind or "\n" not in text
    if "regex" in kind:
        return re.fullmatch(kind["regex"], text) is not None
    if "choice" in kind:
        return text in kind["choice"]
    return isinstance(eval(re.sub(r"\b0+(?=\d)", "", text)), int)


def test_every_kind_gives_what_was_asked_for_and_ends(
    alone: tuple[list[list[int]], list[list[int]]], tokenizer: Tokenizer
) -> None:
    for index, tokens in enumerate(alone[0]):
        assert tokens[-1] in ENDS
        text = tokenizer.decode(tokens[:-1])
        assert fits(KINDS[index % len(KINDS)], text), text


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", WAYS)
def test_guided_and_plain_rows_get_the_same_tokens_together(
    way: str,
    drivers: Drivers,
    alone: tuple[list[list[int]], list[list[int]]],
    tokenizer: Tokenizer,
) -> None:
    guided, plain = requests_of(tokenizer)
    driver = drivers.of(way)
    together = driver.generate_each([*guided, *plain])
    assert together[len(guided) :] == alone[1]
    assert together[: len(guided)] == alone[0]
    assert driver.scheduler.blocks.pool.num_referenced == 0
    assert len(driver.guided.rows) == 0
    assert (driver.scheduler.stats().preemptions_total > 0) == (way == "preempted")


def ends_of(driver: CoreDriver) -> dict[int, FinishedRow]:
    """Run to the end; how each request ended."""
    ends = {}
    while driver.has_work():
        result = driver.step()
        ends.update({row.request_id: row for row in result.finished} if result else {})
    return ends


@pytest.mark.parametrize("way", ["at once", "a step behind"])
def test_a_refused_grammar_ends_its_request_with_the_reason_and_no_other(
    way: str, drivers: Drivers, tokenizer: Tokenizer
) -> None:
    driver = drivers.of(way)
    prompt = prompt_of(tokenizer, PROMPTS[0])

    def asking(**kind: Any) -> SamplingParams:
        asked = StructuredOutputsParams(field="guided_regex", **kind)
        return SamplingParams(structured_outputs=asked, max_tokens=40)

    bad = driver.add(prompt, asking(regex="(a"))
    good = driver.add(prompt, asking(regex="[a-z]{3}"))
    plain = driver.add(prompt, SamplingParams(max_tokens=5))
    ends = ends_of(driver)
    assert (ends[bad].reason, ends[bad].param) == ("error", "guided_regex")
    assert "parenthesis is not closed" in ends[bad].detail
    assert (ends[good].reason, ends[good].detail) == ("stop", "eos")
    assert ends[plain].reason == "length"


@pytest.mark.parametrize("way", ["at once", "a step behind"])
def test_an_abort_ends_a_guided_request_wherever_it_is(
    way: str, drivers: Drivers, tokenizer: Tokenizer
) -> None:
    driver = drivers.of(way)
    prompt = prompt_of(tokenizer, PROMPTS[0])
    endless = SamplingParams(
        max_tokens=200, structured_outputs=StructuredOutputsParams(regex=f"[a-z ]+[{way[0]}-z]")
    )
    held = driver.add(prompt, endless)
    assert driver.pipeline.stats().requests_waiting == 1
    assert [row.reason for row in driver.pipeline.abort([held])] == ["abort"]
    running = driver.add(prompt, endless)
    while len(driver.guided.rows) == 0:
        driver.has_work()  # waits for the grammar when nothing else is left
        driver.step()
    # Only now: beside a grammar that takes long to compile it would have ended before.
    other = driver.add(prompt, SamplingParams(max_tokens=30, temperature=0.0))
    for _ in range(3):
        driver.step()
    assert [row.request_id for row in driver.pipeline.abort([running])] == [running]
    assert len(driver.guided.rows) == 0
    assert ends_of(driver).keys() == {other}
    assert driver.scheduler.blocks.pool.num_referenced == 0


def test_ignore_eos_does_not_go_on_past_the_grammars_end(
    drivers: Drivers, tokenizer: Tokenizer
) -> None:
    driver = drivers.of("a step behind")
    asked = StructuredOutputsParams(choice=["yes"])
    params = SamplingParams(ignore_eos=True, max_tokens=50, structured_outputs=asked)
    number = driver.add(prompt_of(tokenizer, PROMPTS[0]), params)
    end = ends_of(driver)[number]
    assert (end.reason, end.detail) == ("stop", "grammar_complete")


def test_min_tokens_gives_way_to_a_complete_grammar(drivers: Drivers, tokenizer: Tokenizer) -> None:
    driver = drivers.of("at once")
    asked = StructuredOutputsParams(regex="a{0,3}")
    params = {"min_tokens": 20, "max_tokens": 50, "structured_outputs": asked}
    (tokens,) = driver.generate([prompt_of(tokenizer, PROMPTS[0])], **params)
    assert tokenizer.decode(tokens[:-1]) == "aaa"


def test_limits_that_leave_no_token_end_the_request_with_an_error(
    drivers: Drivers, tokenizer: Tokenizer
) -> None:
    driver = drivers.of("at once")
    (entry,) = tokenizer.encode("z", add_special_tokens=False)
    params = SamplingParams(
        allowed_token_ids=(entry,), structured_outputs=StructuredOutputsParams(choice=["yes"])
    )
    number = driver.add(prompt_of(tokenizer, PROMPTS[0]), params)
    end = ends_of(driver)[number]
    assert (end.reason, end.param) == ("error", "structured_outputs")
    assert "leave no token" in end.detail


def test_log_probabilities_are_the_models_own(drivers: Drivers, tokenizer: Tokenizer) -> None:
    """The mask decides what may come, not how likely the model held it to be."""
    driver = drivers.of("at once")
    prompt = prompt_of(tokenizer, PROMPTS[0])
    (free,) = driver.generate([prompt], max_tokens=1, logprobs=3)
    free_entry = driver.logprobs[0][0]
    asked = StructuredOutputsParams(regex="[0-9]{2}")
    (tokens,) = driver.generate([prompt], max_tokens=3, logprobs=3, structured_outputs=asked)
    entry = driver.logprobs[0][0]
    assert entry.top_logprobs == free_entry.top_logprobs
    assert entry.token_id == tokens[0] != free[0]
    assert entry.rank > 1
