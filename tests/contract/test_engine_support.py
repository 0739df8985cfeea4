"""The table of what the engine runs, which the operator refuses by, is true of the engine."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from atom.config import Config, EngineOptions, build_config
from atom.errors import AtomError
from atom.model_engine.model_runner import ModelRunner
from atom.model_ops.rotary_embedding import RopeLimits, cos_sin_table, rope_config
from atom.models.registry import support_model_arch_dict
from atom.sizing import ModelFacts
from atom.sizing.architectures import ARCHITECTURES
from atom.sizing.attention.kinds import (
    EntriesAttention,
    GroupedAttention,
    LatentAttention,
    SharedKvAttention,
    StateAttention,
)
from atom.sizing.engine_support import (
    SUPPORTED_KV_DTYPES,
    SUPPORTED_ROPE_TYPES,
    unsupported,
)
from atom.sizing.kv_layout import KV_ELEMENTS
from atom.sizing.quantization.config import read_quantization
from atom.sizing.text_part import WRAPPERS, architectures_of
from tests.support.models.published_forms import FAMILIES as FORMED
from tests.support.models.published_forms import FORMS, OLDER
from tests.support.models.quantised_checkpoint import GPT_OSS_LAYOUT, LAYOUTS
from tests.support.models.tiny_model import make_tiny_checkpoint
from tools.reference import models

ROOT = Path(__file__).parents[2]
MODELS_PAGE = "docs/reference/models.md"
SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "vocab_size": 100, "max_position_embeddings": 128,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "v_head_dim": 32,
}  # fmt: skip
OWN_SIZES: dict[str, dict[str, Any]] = {
    "DeepseekV4ForCausalLM": {"o_groups": 2},
    "GraniteMoeHybridForCausalLM": {"layer_types": ["full_attention", "linear_attention"]},
    "KimiLinearForCausalLM": {"linear_attn_config": {"full_attn_layers": [1]}},
    "Qwen3_5ForCausalLM": {"full_attention_interval": 2},
    "Qwen3_5MoeForCausalLM": {"full_attention_interval": 2},
    "Qwen3NextForCausalLM": {"full_attention_interval": 2},
}
# Whose quantised checkpoints have a layout of their own, and tests of it.
APART = {"gpt-oss", "Llama 4"}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), "qwen3")


@pytest.mark.parametrize("module", sorted(set(support_model_arch_dict.values())))
def test_the_module_of_an_architecture_has_its_spec(module: str) -> None:
    assert callable(import_module(module).spec)


def test_the_page_of_models_lists_every_architecture_and_wrapper() -> None:
    text = (ROOT / MODELS_PAGE).read_text(encoding="utf-8")
    rows = {**ARCHITECTURES, **WRAPPERS}
    assert [name for name, row in rows.items() if f"| {row.label} | `{name}` |" not in text] == []


@pytest.mark.parametrize(
    ("page", "link"),
    [
        ("README.md", f"[Models]({MODELS_PAGE})"),
        ("docs/index.md", "[Models](reference/models.md)"),
        ("docs/guides/sizing.md", "[Models](../reference/models.md)"),
    ],
)
def test_documents_link_to_the_page_of_models(page: str, link: str) -> None:
    assert link in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_page_of_models_has_the_forms_that_are_accepted(architecture: str) -> None:
    config = {**SIZES, **OWN_SIZES.get(architecture, {}), "architectures": [architecture]}
    for method, of_method in models.forms().items():
        accepted = []
        for name, section in of_method.items():
            said = {"quantization_config": {"quant_method": method, **section}}
            problems = unsupported(ModelFacts.from_hf_config({**config, **said}))
            if not any(each.field == "quantization_config" for each in problems):
                accepted.append(name)
        assert tuple(accepted) == models.taken(architecture, method)


def test_checkpoints_are_built_in_every_form_of_every_model() -> None:
    own = {row.label for row in ARCHITECTURES.values() if row.written_by}  # test_deepseek_v4.py
    labels = {row.label for row in ARCHITECTURES.values()}
    assert set(FORMED) | set(OLDER) | APART | own == labels
    on_page = {
        _formats({"quant_method": method, **section})
        for method, of_method in models.forms().items()
        for section in of_method.values()
    }
    built = [*FORMS.values(), *LAYOUTS.values(), GPT_OSS_LAYOUT]
    assert {_formats(layout.config) for layout in built} == on_page


def _formats(section: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a form from others, its sizes left out."""
    scheme = read_quantization({"quantization_config": section})
    assert scheme is not None
    assert scheme.default is not None
    stored = scheme.default
    return stored.method, stored.element, stored.granularity, stored.ordered, stored.converted


def test_the_text_part_of_every_wrapper_runs() -> None:
    assert {name for each in WRAPPERS.values() for name in each.text.values()} <= set(ARCHITECTURES)


def test_no_two_rows_have_one_name_or_model_type() -> None:
    """A config.json without `architectures` is that of one row."""
    rows = {**ARCHITECTURES, **WRAPPERS}
    assert len(rows) == len(ARCHITECTURES) + len(WRAPPERS)
    assert len({row.model_type for row in rows.values()}) == len(rows)
    for name, row in rows.items():
        assert architectures_of({"model_type": row.model_type}) == [name]


# Kinds of attention that only some settings of an architecture have.
KINDS: dict[str, dict[str, Any]] = {
    "Gemma4ForCausalLM": {"num_kv_shared_layers": 1, "layer_types": ["full_attention"] * 2},
    "GlmMoeDsaForCausalLM": {"indexer_types": ["full", "shared"]},
    "MiniMaxM3VLForCausalLM": {
        "layer_types": ["full_attention", "minimax_m3_sparse"], "index_n_heads": 2,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def engine_config(checkpoint: Path) -> Config:
    return build_config(EngineOptions.of(model=str(checkpoint), device="cpu"))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_facts_of_every_architecture_reach_other_processes(
    engine_config: Config, architecture: str
) -> None:
    settings = {**SIZES, **OWN_SIZES.get(architecture, {}), **KINDS.get(architecture, {})}
    facts = ModelFacts.from_hf_config({**settings, "architectures": [architecture]})
    config = replace(engine_config, model=replace(engine_config.model, facts=facts))
    assert Config.from_json(config.to_json()) == config


def test_the_facts_that_are_sent_have_every_kind_of_attention() -> None:
    kinds = {
        type(layer.attention)
        for name in ARCHITECTURES
        for layer in ModelFacts.from_hf_config(
            {**SIZES, **OWN_SIZES.get(name, {}), **KINDS.get(name, {}), "architectures": [name]}
        ).layers
    }
    assert kinds == {
        GroupedAttention, SharedKvAttention, LatentAttention, EntriesAttention, StateAttention,
    }  # fmt: skip


@pytest.mark.parametrize("kind", [*SUPPORTED_ROPE_TYPES, "mrope"])
def test_the_table_has_the_rope_types_that_are_computed(kind: str) -> None:
    factors = {"short_factor": [1.0] * 32, "long_factor": [2.0] * 32}
    parameters: dict[str, Any] = {"rope_type": kind, "rope_theta": 1e4, **LLAMA3, **factors}
    limits = RopeLimits(max_position=512, original=None, longest=256)
    if kind in SUPPORTED_ROPE_TYPES:
        assert cos_sin_table(rope_config(parameters, 64, limits), 8).shape == (8, 64)
        return
    with pytest.raises(AtomError, match=kind):
        rope_config(parameters, 64, limits)


@pytest.mark.parametrize("dtype", KV_ELEMENTS)
def test_the_table_has_the_cache_types_that_start(checkpoint: Path, dtype: str) -> None:
    options = EngineOptions.of(
        model=str(checkpoint),
        device="cpu",
        kv_cache_dtype=dtype,
        num_kv_blocks=8,
        max_model_len=64,
        max_num_seqs=2,
        max_num_batched_tokens=64,
    )

    def start() -> None:
        ModelRunner(build_config(options)).initialize(lambda phase, share: None)

    if dtype in SUPPORTED_KV_DTYPES:
        start()
        return
    with pytest.raises(AtomError, match=f"unknown kv_cache_dtype '{dtype}'"):
        start()
