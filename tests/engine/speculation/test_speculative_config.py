"""What may be asked of speculation, in vLLM's document or upstream's flags, and what is refused."""

from __future__ import annotations

import pytest

from atom.errors import ConfigError
from atom.speculative_config import SpeculativeConfig, SuffixOptions, speculative_config


def test_nothing_asked_is_no_speculation() -> None:
    assert speculative_config(None, None, None) is None


def test_flags_and_document_say_the_same() -> None:
    document = '{"method": "ngram", "num_speculative_tokens": 3}'
    expected = SpeculativeConfig(num_tokens=3)
    assert speculative_config(document, None, None) == expected
    assert speculative_config(None, "ngram", 3) == expected
    assert speculative_config('{"num_speculative_tokens": 3}', "ngram", None) == expected
    assert speculative_config(document, "ngram", 3) == expected


@pytest.mark.parametrize("method", ["eagle3", "draft_model"])
def test_a_draft_model_is_named_by_flag_or_document(method: str) -> None:
    document = f'{{"method": "{method}", "model": "a/draft", "num_speculative_tokens": 3}}'
    expected = SpeculativeConfig(method=method, draft_model="a/draft", num_tokens=3)
    assert speculative_config(document, None, None) == expected
    assert speculative_config(None, method, 3, "a/draft") == expected
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
        (None, "draft_model", None, "needs a draft model"),
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


def test_suffix_decoding_is_asked_for_as_in_vllm() -> None:
    expected = SpeculativeConfig(method="suffix")
    assert speculative_config('{"method": "suffix"}', None, None) == expected
    assert speculative_config(None, "suffix", None) == expected
    document = (
        '{"method": "suffix", "suffix_decoding_max_tree_depth": 8, '
        '"suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 2.5, '
        '"suffix_decoding_min_token_prob": 0.5}'
    )
    found = speculative_config(document, None, None)
    assert found is not None
    assert not found.by_layers
    assert found.suffix == SuffixOptions(
        max_tree_depth=8, max_cached_requests=0, max_spec_factor=2.5, min_token_prob=0.5
    )


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ('"suffix_decoding_max_tree_depth": 65', "max_tree_depth must be 1 to 64, got 65"),
        ('"suffix_decoding_max_cached_requests": -1', "max_cached_requests must be 0 to"),
        ('"suffix_decoding_max_spec_factor": 0', "max_spec_factor must be 0.1 to 16"),
        ('"suffix_decoding_min_token_prob": 1.5', "min_token_prob must be 0.0 to 1.0, got 1.5"),
        ('"prompt_lookup_min": 2', "prompt_lookup_min .* means nothing to method suffix"),
        ('"model": "a/draft"', "model means nothing to method suffix"),
    ],
)
def test_options_of_suffix_decoding_are_bounded(document: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        speculative_config(f'{{"method": "suffix", {document}}}', None, None)


def test_options_of_suffix_decoding_belong_to_no_other_method() -> None:
    with pytest.raises(ConfigError, match="suffix_decoding_min_token_prob means nothing to"):
        speculative_config('{"method": "ngram", "suffix_decoding_min_token_prob": 0.2}', None, None)
