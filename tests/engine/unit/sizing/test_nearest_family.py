"""The refusal of an unknown architecture names the one that runs and is most like it."""

from __future__ import annotations

import re

import pytest

from atom.sizing import ModelFacts, UnknownFamilyError
from atom.sizing.architectures import ARCHITECTURES, families
from atom.sizing.families.nearest_family import nearest

QWEN = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 64,
    "attention_bias": False,
    "use_sliding_window": False,
}


def letters(architecture: str) -> str:
    return re.sub(r"[^a-z]", "", architecture.removesuffix("ForCausalLM").lower())


def later(architecture: str) -> str:
    """Name the next generation."""
    return re.sub(r"\d+", lambda found: str(int(found.group()) + 1), architecture, count=1)


CHANGES = {
    "the next generation": later,
    "a second version": lambda name: name.replace("ForCausalLM", "7ForCausalLM"),
    "other letters": lambda name: name.swapcase().replace("fORcAUSALlm", "ForCausalLM"),
    "with underscores": lambda name: name.replace("ForCausalLM", "_ForCausalLM"),
    "another head": lambda name: name.replace("ForCausalLM", "ForConditionalGeneration"),
    "a letter less": lambda name: name[:1] + name[2:],
    "a letter more": lambda name: f"X{name}",
}


CHANGED = {
    change(architecture): architecture
    for architecture in ARCHITECTURES
    for change in CHANGES.values()
    if change(architecture) not in ARCHITECTURES
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_name_that_is_changed_a_little_is_like_what_it_was(name: str) -> None:
    found = nearest(name, {}, families())
    assert found is not None
    assert found.by == "name"
    assert letters(found.architecture) == letters(CHANGED[name])


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Qwen4ForCausalLM", "Qwen3ForCausalLM"),
        ("Qwen4MoeForCausalLM", "Qwen3MoeForCausalLM"),
        ("Gemma5ForCausalLM", "Gemma4ForCausalLM"),
        ("Olmo4ForCausalLM", "Olmo3ForCausalLM"),
    ],
)
def test_of_generations_the_next_is_named(name: str, expected: str) -> None:
    with pytest.raises(
        UnknownFamilyError, match=rf"the nearest that can is {expected} \(by name\)"
    ):
        ModelFacts.from_hf_config({**QWEN, "architectures": [name]})


def test_a_model_type_counts_as_a_name() -> None:
    found = nearest("OursForCausalLM", {"model_type": "seed_oss"}, families())
    assert found is not None
    assert found.architecture == "SeedOssForCausalLM"


def test_a_name_like_no_other_is_told_by_its_keys() -> None:
    keys = {**QWEN, "architectures": ["OursForCausalLM"], "mlp_bias": False}
    del keys["use_sliding_window"]
    found = nearest("OursForCausalLM", keys, families())
    assert found is not None
    assert (found.architecture, found.by) == ("LlamaForCausalLM", "the keys of config.json")


def test_what_is_like_nothing_names_nothing() -> None:
    assert (
        nearest("MambaForCausalLM", {"model_type": "mamba", "hidden_size": 8}, families()) is None
    )
    with pytest.raises(UnknownFamilyError, match=r"'MambaForCausalLM' cannot be sized; known"):
        ModelFacts.from_hf_config({"architectures": ["MambaForCausalLM"], "hidden_size": 8})
