"""Masks follow a grammar whatever is drawn from them: random models against real validators."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from atom.model_engine.structured_output.guided_rows import GuidedEnd
from atom.structured_outputs import StructuredOutputsParams
from tests.support.random_search import examples
from tests.support.structured_output.guided_sequences import (
    VOCAB,
    GuidedSequences,
    accept,
    allowed,
    batch_of,
    masked,
)


@pytest.fixture(scope="module")
def guided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuidedSequences]:
    guided = GuidedSequences(tmp_path_factory.mktemp("tokenizer"))
    yield guided
    guided.close()


def objects(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def build(properties: dict[str, Any], optional: set[int]) -> dict[str, Any]:
        required = [name for index, name in enumerate(properties) if index not in optional]
        return {"type": "object", "properties": properties, "required": required}

    names = st.text('abc é"\\\n', min_size=1, max_size=4)
    return st.builds(build, st.dictionaries(names, schemas, max_size=3), st.sets(st.integers(0, 2)))


def bounded(low: int, length: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": low, "maximum": low + length}


LEAVES = st.one_of(
    st.just({"type": "boolean"}),
    st.just({"type": "null"}),
    st.builds(bounded, st.integers(-500, 500), st.integers(0, 2000)),
    st.builds(lambda n: {"type": "string", "maxLength": n}, st.integers(0, 6)),
    st.just({"type": "string", "pattern": "^[a-f]{2}-[0-9]+$"}),
    st.just({"type": "string", "format": "uuid"}),
    st.builds(
        lambda values: {"enum": values},
        st.lists(
            st.one_of(st.integers(-(2**53), 2**53), st.text(max_size=5), st.none()),
            min_size=1,
            max_size=4,
        ),
    ),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        objects(inner),
        st.builds(lambda item: {"type": "array", "items": item, "maxItems": 3}, inner),
        st.builds(lambda kinds: {"anyOf": kinds}, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


@settings(
    max_examples=examples(24),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(schema=SCHEMAS, seed=st.integers(0, 2**32))
@example(schema={"enum": [-9007199254740992, 2.5]}, seed=0)
def test_whatever_is_drawn_fits_the_schema(guided: GuidedSequences, schema: Any, seed: int) -> None:
    StructuredOutputsParams(json=schema).check_schema()
    answer = guided.draw(seed, json=schema, disable_any_whitespace=bool(seed % 2))
    jsonschema.validate(
        json.loads(answer), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )


@settings(max_examples=examples(16), deadline=None)
@given(
    choices=st.lists(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1),
        min_size=1, max_size=6,
    ),
    seed=st.integers(0, 2**32),
)  # fmt: skip
def test_whatever_is_drawn_is_one_of_the_choices(
    guided: GuidedSequences, choices: list[str], seed: int
) -> None:
    assert guided.draw(seed, choice=choices) in choices


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_drawn_matches_the_expression(guided: GuidedSequences, seed: int) -> None:
    expression = r"(\d{3}-){2}[A-Z]+ (one|two|три)?"
    assert re.fullmatch(expression, guided.draw(seed, regex=expression))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_drawn_follows_the_grammar(guided: GuidedSequences, seed: int) -> None:
    grammar = 'root ::= sum "="\nsum ::= term | term "+" sum\nterm ::= [0-9] | "(" term ")"'
    answer = guided.draw(seed, grammar=grammar)
    assert answer.endswith("=")
    assert isinstance(eval(answer.removesuffix("=")), int)


def test_ids_that_only_pad_the_logits_and_special_tokens_are_never_allowed(
    guided: GuidedSequences,
) -> None:
    rows = guided.rows(1, structured_outputs=StructuredOutputsParams(regex="(.|\\n)*"))
    found = allowed(rows, 1)
    texts = guided.tokenizer.text_bytes(VOCAB)
    assert all(texts[token] for token in found if token != guided.end)
    assert guided.end in found  # the empty answer fits


def test_only_guided_rows_that_sample_are_masked(guided: GuidedSequences) -> None:
    rows = guided.rows(5, structured_outputs=StructuredOutputsParams(choice=["a"]))
    assert rows.holds_any(batch_of(1, 5))
    assert not rows.holds_any(batch_of(1, 2))
    assert not rows.holds_any(batch_of(1, 5, samples=[True, False]))
    mask = masked(rows, batch_of(9, 1, 5, samples=[False, True, True])).mask
    assert mask.rows.tolist() == [1]
    assert mask.bits.shape == (1, VOCAB // 32)
    rows.leave([5])
    assert not rows.holds_any(batch_of(5))


def test_after_a_complete_text_only_an_end_token_is_allowed_and_it_ends(
    guided: GuidedSequences,
) -> None:
    rows = guided.rows(1, structured_outputs=StructuredOutputsParams(choice=["a"]))
    (entry,) = guided.tokenizer.encode("a", add_special_tokens=False)
    assert allowed(rows, 1) == [entry]
    assert accept(rows, 1, entry) == []
    assert allowed(rows, 1) == [guided.end]
    assert accept(rows, 1, guided.end) == [GuidedEnd(1)]


def test_min_tokens_keeps_ends_out_until_the_grammar_leaves_nothing_else(
    guided: GuidedSequences,
) -> None:
    (entry,) = guided.tokenizer.encode("a", add_special_tokens=False)
    asked = StructuredOutputsParams(regex="a{0,2}")
    rows = guided.rows(1, structured_outputs=asked, min_tokens=5)
    assert allowed(rows, 1) == [entry]
    accept(rows, 1, entry)
    assert allowed(rows, 1) == [entry]
    accept(rows, 1, entry)
    assert allowed(rows, 1) == [guided.end]
    free = guided.rows(1, structured_outputs=asked)
    assert allowed(free, 1) == sorted([entry, guided.end])


def test_a_token_that_the_mask_forbids_ends_the_sequence_with_an_error(
    guided: GuidedSequences,
) -> None:
    rows = guided.rows(
        1, structured_outputs=StructuredOutputsParams(choice=["a"], field="guided_x")
    )
    (end,) = accept(rows, 1, guided.end)
    assert end.param == "guided_x"
    assert "leave no token" in str(end.error)


def test_without_end_tokens_a_text_ends_where_it_first_may(tmp_path: Path) -> None:
    guided = GuidedSequences(tmp_path, ends=False)
    rows = guided.rows(1, structured_outputs=StructuredOutputsParams(regex="[0-9]{2,4}"))
    (digit,) = guided.tokenizer.encode("7", add_special_tokens=False)
    assert accept(rows, 1, digit) == []
    assert accept(rows, 1, digit) == [GuidedEnd(1)]
    guided.close()
