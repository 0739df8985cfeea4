"""What may be asked of speculation, in vLLM's document or upstream's flags, and what is refused."""

from __future__ import annotations

import pytest

from atom.errors import ConfigError
from atom.speculative_config import SpeculativeConfig, speculative_config


def test_nothing_asked_is_no_speculation() -> None:
    assert speculative_config(None, None, None) is None


def test_flags_and_document_say_the_same() -> None:
    document = '{"method": "ngram", "num_speculative_tokens": 3}'
    expected = SpeculativeConfig(num_tokens=3)
    assert speculative_config(document, None, None) == expected
    assert speculative_config(None, "ngram", 3) == expected
    assert speculative_config('{"num_speculative_tokens": 3}', "ngram", None) == expected
    assert speculative_config(document, "ngram", 3) == expected


def test_a_draft_model_is_named_by_flag_or_document() -> None:
    document = '{"method": "eagle3", "model": "a/draft", "num_speculative_tokens": 3}'
    expected = SpeculativeConfig(method="eagle3", draft_model="a/draft", num_tokens=3)
    assert speculative_config(document, None, None) == expected
    assert speculative_config(None, "eagle3", 3, "a/draft") == expected
    with pytest.raises(ConfigError, match=r"--draft-model b and .* model 'a/draft' differ"):
        speculative_config(document, None, None, "b")
    with pytest.raises(ConfigError, match="--draft-model b: nothing says who drafts"):
        speculative_config(None, None, None, "b")


def test_lookups_of_the_document_are_taken() -> None:
    document = '{"method": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 4}'
    found = speculative_config(document, None, None)
    assert found is not None
    assert (found.fewest_matched, found.most_matched) == (3, 4)
    short = speculative_config('{"method": "ngram", "prompt_lookup_max": 1}', None, None)
    assert short is not None
    assert (short.fewest_matched, short.most_matched) == (1, 1)


@pytest.mark.parametrize(
    ("document", "method", "num_tokens", "said"),
    [
        (None, "medusa", 1, "method 'medusa' is not supported; methods: ngram"),
        (None, "eagle3", None, "needs a draft model"),
        ('{"method": "mtp", "model": "x"}', None, None, "model means nothing to method mtp"),
        (
            '{"method": "mtp", "prompt_lookup_max": 4}', None, None,
            "prompt_lookup_max means nothing to method mtp",
        ),
        (None, None, 3, "add --method ngram"),
        ("[]", None, None, "must be an object"),
        ("{", None, None, "no JSON"),
        ("{}", None, None, "names no method"),
        ('{"method": "ngram"}', "mtp", None, "differ"),
        ('{"method": "ngram", "num_speculative_tokens": 2}', None, 3, "differ"),
        ('{"method": "ngram", "num_speculative_tokens": 0}', None, None, "1 to 16, got 0"),
        ('{"method": "ngram", "num_speculative_tokens": "2"}', None, None, "Expected `int`"),
        ('{"method": "ngram", "model": "x"}', None, None, "model means nothing to method ngram"),
        (
            '{"method": "ngram", "prompt_lookup_min": 9, "prompt_lookup_max": 4}',
            None, None, "prompt_lookup_min must be 1 to 4, got 9",
        ),
    ],
)  # fmt: skip
def test_what_does_not_run_is_refused_with_what_does(
    document: str | None, method: str | None, num_tokens: int | None, said: str
) -> None:
    with pytest.raises(ConfigError, match=r".") as refused:
        speculative_config(document, method, num_tokens)
    assert said in str(refused.value)
