"""What the operator plans by config.json alone is what the engine then holds: weights, KV, blocks.

Of every family and of every format of matrices, on the CPU, where weights and cache can be counted
tensor by tensor.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from atom.config import EngineOptions, build_config
from atom.model_engine.model_runner import ModelRunner
from atom.model_engine.wire.engine_protocol import EngineReport
from atom.model_ops.attention import StateLayer
from atom.model_ops.rotary_embedding import RotaryEmbedding
from atom.sizing import KvElement, ModelFacts, kv_layout, rotary_bytes
from atom.sizing.options.cache import CacheOptions
from atom.sizing.options.images import ImageOptions
from atom.sizing.options.model import ModelOptions
from atom.sizing.options.option import sorted_into
from atom.sizing.options.scheduling import SchedulerOptions
from atom.sizing.overheads import CPU_RUNTIME_BYTES
from atom.speculative_config import SpeculativeConfig
from atom.utils.device import Device
from atom_operator.constants import Reason
from atom_operator.domain import (
    Accelerator,
    Capacity,
    FactsLookup,
    ServingOptions,
    SpeculativeOptions,
)
from atom_operator.domain import EngineOptions as PlannedOptions
from atom_operator.plan.capacity import held_parts, judge_capacity
from atom_operator.plan.model_facts import facts_from_text
from tests.engine.integration.models.test_model_parity import CHECKPOINTS
from tests.support.engine_core.held_cache import counted_cache
from tests.support.models.draft_checkpoints import (
    Tensors,
    add_mimo_mtp_layers,
    add_mtp_layer,
    add_qwen_mtp_layer,
    make_eagle3,
)
from tests.support.models.multimodal_checkpoint import KINDS, make_multimodal_checkpoint
from tests.support.models.quantised_checkpoint import (
    GPT_OSS_LAYOUT,
    LAYOUTS,
    make_quantised_checkpoint,
)
from tests.support.models.quantised_llama4 import LLAMA4_LAYOUTS, make_quantised_llama4
from tests.support.models.tiny_model import make_tiny_checkpoint

MEMORY_BYTES = 2 * 2**30
OPTIONS: dict[str, Any] = {
    "max_model_len": 256,
    "max_num_seqs": 4096,  # more than fit: memory is what limits
    "max_num_batched_tokens": 4096,
    "block_size": 16,
    "gpu_memory_utilization": 0.4,
}
WITHIN = 0.02
DEVICE = Accelerator("cpu", MEMORY_BYTES)
# Of KINDS, those whose images are read.
READ = (
    "gemma3",
    "gemma4",
    "kimi-k2.5",
    "llama4",
    "mistral3",
    "qwen3-vl",
    "qwen3-vl-moe",
    "qwen3.5",
    "qwen3.5-moe",
)


# Encoders of more activations than the decoder's.
WIDE: dict[str, dict[str, Any]] = {
    **{kind: {"intermediate_size": 4096, "image_size": 448} for kind in READ},
    "gemma3": {"intermediate_size": 4096, "image_size": 224},
    "gemma4": {"intermediate_size": 1024},
    "kimi-k2.5": {"intermediate_size": 4096},
    "llama4": {"hidden_size": 256, "intermediate_size": 1024, "image_size": 168},
}


class Measured:
    """What a started engine holds. weights, cache, states: bytes of tensors, each counted once;
    outputs: of images; encoder: of the image encoder's parameters."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        held = counted_cache(monkeypatch)
        states: dict[int, int] = {}
        keep = StateLayer.keep

        def counted_states(layer: Any, running: Any, saved: Any, drafts: Any) -> None:
            held = (*running, *saved, *drafts)
            states.update({each.data_ptr(): each.nbytes for each in held})
            keep(layer, running, saved, drafts)

        monkeypatch.setattr(StateLayer, "keep", counted_states)
        monkeypatch.setattr(Device, "total_memory_bytes", lambda _: MEMORY_BYTES)
        # This process has run other tests; an engine's own takes what the plan assumes.
        resident = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=CPU_RUNTIME_BYTES))
        monkeypatch.setattr(psutil, "Process", lambda: resident)
        config = build_config(
            EngineOptions.of(model=str(folder), device="cpu", **{**OPTIONS, **options})
        )
        runner = ModelRunner(config)
        self.report: EngineReport = runner.initialize(lambda phase, share: None)
        self.cache, self.states = sum(held.values()), sum(states.values())
        models = runner._speculation.models(runner._model)
        modules = [module for model in models for module in model.modules()]
        ropes = {id(each): each for each in modules if isinstance(each, RotaryEmbedding)}
        self.tables = sum(table.nbytes for rope in ropes.values() for table in rope.buffers())
        parameters = [p for model in models for p in model.parameters()]
        weights = {p.untyped_storage().data_ptr(): p.nbytes for p in parameters}
        encoder = runner._model.vision
        self.outputs = 0 if encoder is None else encoder.outputs.nbytes
        self.encoder = 0 if encoder is None else sum(p.nbytes for p in encoder.parameters())
        self.weights = self.tables + self.outputs + sum(weights.values())


def facts_of(folder: Path) -> ModelFacts:
    return ModelFacts.from_hf_config(json.loads((folder / "config.json").read_text()))


def planned(folder: Path, drafts: SpeculativeOptions | None = None, **options: Any) -> Capacity:
    lookup: FactsLookup = facts_from_text((folder / "config.json").read_text(), "config.json")
    assert lookup.reason is Reason.FITS
    verdict = judge_capacity(lookup, planned_options(drafts, **options), DEVICE)
    assert verdict.capacity is not None, verdict.message
    return verdict.capacity


def planned_options(drafts: SpeculativeOptions | None = None, **options: Any) -> PlannedOptions:
    asked: dict[str, Any] = {**OPTIONS, **options}
    made = PlannedOptions(
        serving=ServingOptions(image="", served_name="", drain_seconds=1),
        model=sorted_into(ModelOptions, asked),
        scheduler=sorted_into(SchedulerOptions, asked),
        cache=sorted_into(CacheOptions, asked),
        images=sorted_into(ImageOptions, asked),
        speculative=drafts or SpeculativeOptions(),
    )
    assert not asked, "every option belongs to a part"
    return made


def check(plan: Capacity, found: Measured) -> None:
    report = found.report
    assert found.weights == pytest.approx(plan.weights_bytes, rel=WITHIN)
    assert report.weights_bytes == pytest.approx(found.weights, rel=WITHIN)
    assert report.limited_by == plan.limited_by == "memory"
    assert report.num_blocks == pytest.approx(plan.num_blocks, rel=WITHIN)
    block_bytes = report.kv_cache_bytes / report.num_blocks
    assert found.cache == pytest.approx(block_bytes * report.num_blocks, rel=WITHIN)
    assert report.kv_bytes_per_token == plan.kv_bytes_per_token
    assert report.kv_tokens == pytest.approx(plan.kv_tokens, rel=WITHIN)


def rows_of(facts: ModelFacts) -> dict[str, int]:
    """States of as many sequences as may run are no block's, and leave some for these."""
    return {"max_num_seqs": 2048} if facts.keeps_states else {}


@pytest.mark.sampled(25)
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_of_every_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder = make_tiny_checkpoint(tmp_path, **CHECKPOINTS[name])
    facts = facts_of(folder)
    rows = rows_of(facts)
    found, plan = Measured(folder, monkeypatch, **rows), planned(folder, **rows)
    check(plan, found)
    assert found.tables == rotary_bytes(facts, OPTIONS["max_model_len"])
    assert found.states == found.report.state_bytes
    assert found.states == pytest.approx(plan.beside_kv.state_bytes, rel=WITHIN)
    layout = kv_layout(facts, KvElement(4))
    checkpoints = found.report.num_checkpoints * layout.state_bytes
    running = found.report.max_num_seqs
    assert found.states - checkpoints == layout.running_states_bytes(running)
    asked = rows.get("max_num_seqs", OPTIONS["max_num_seqs"])
    assert running == pytest.approx(plan.beside_kv.bounded_sequences or asked, rel=WITHIN)
    assert (running < asked) == bool(plan.beside_kv.bounded_sequences)


def test_of_the_inputs_that_states_keep_of_drafts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_tiny_checkpoint(tmp_path, **CHECKPOINTS["kimi-linear-odd"])
    drafts = SpeculativeConfig(num_tokens=2)
    found = Measured(folder, monkeypatch, speculative=drafts)
    plan = planned(folder, SpeculativeOptions(tokens=2, method="ngram"))
    check(plan, found)
    assert found.states == found.report.state_bytes == plan.beside_kv.state_bytes


LONG = 100_000


@pytest.mark.parametrize(
    ("name", "elements"),
    {
        "llama": 16,
        "deepseek3": 8,  # of the rotated part alone
        "gemma3": 2 * 24,  # a rope for windows, another for all tokens
        "llama4": 16 + 1,  # what turns nothing is one row; a temperature of each position
        "llama4-odd": 24,
        "gpt-oss": 16,  # YaRN
    }.items(),
)
def test_tables_of_a_long_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, elements: int
) -> None:
    """Where they outgrow the weights, plan and engine still count the same."""
    given = {**CHECKPOINTS[name], "max_position_embeddings": LONG}
    folder = make_tiny_checkpoint(tmp_path, **given)
    options = {"max_model_len": LONG, "gpu_memory_utilization": 0.9}
    found = Measured(folder, monkeypatch, **options)
    plan = planned(folder, **options)
    check(plan, found)
    one_row = 4 * 32 if name.startswith("llama4") else 0
    assert found.tables == pytest.approx(4 * elements * LONG, abs=one_row)
    assert found.tables == rotary_bytes(facts_of(folder), LONG)
    half = planned(folder, **{**options, "max_model_len": LONG // 2})
    assert plan.weights_bytes - half.weights_bytes == pytest.approx(found.tables / 2, abs=one_row)


@pytest.mark.parametrize(
    ("name", "add_layer"),
    [
        ("deepseek3-experts", add_mtp_layer),
        ("qwen3-next-odd", add_qwen_mtp_layer),
        ("mimo-v2", add_mimo_mtp_layers),
    ],
)
def test_a_layer_that_drafts_turns_by_the_models_table(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    add_layer: Callable[[Path], Tensors],
) -> None:
    folder = make_tiny_checkpoint(tmp_path, **CHECKPOINTS[name])
    add_layer(folder)
    found = Measured(folder, monkeypatch, speculative=SpeculativeConfig(method="mtp", num_tokens=2))
    check(planned(folder, SpeculativeOptions(tokens=2, method="mtp")), found)
    assert found.tables == rotary_bytes(facts_of(folder), OPTIONS["max_model_len"])


def test_a_draft_models_table_is_beside_the_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, draft = make_tiny_checkpoint(tmp_path / "target", "llama", layers=7), tmp_path / "draft"
    make_eagle3(draft, folder, draft_vocabulary=64)
    asked = SpeculativeConfig(method="eagle3", num_tokens=2, draft_model=str(draft))
    found = Measured(folder, monkeypatch, speculative=asked)
    plan = planned(folder, SpeculativeOptions(tokens=2, method="eagle3", facts=facts_of(draft)))
    check(plan, found)
    both = (rotary_bytes(facts_of(each), OPTIONS["max_model_len"]) for each in (folder, draft))
    assert found.tables == sum(both)


def test_a_whole_model_that_drafts_is_beside_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is wider than the model, so that a step takes what its layers do."""
    folder = make_tiny_checkpoint(tmp_path / "target", "qwen3_moe")
    draft = make_tiny_checkpoint(tmp_path / "draft", "llama", layers=3, hidden=160)
    asked = SpeculativeConfig(method="draft_model", num_tokens=2, draft_model=str(draft))
    found = Measured(folder, monkeypatch, speculative=asked)
    facts = facts_of(draft)
    plan = planned(folder, SpeculativeOptions(tokens=2, method="draft_model", facts=facts))
    check(plan, found)


@pytest.mark.parametrize("kind", KINDS)
def test_of_every_text_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    make_multimodal_checkpoint(tmp_path, kind)
    rows = rows_of(facts_of(tmp_path))
    check(planned(tmp_path, **rows), Measured(tmp_path, monkeypatch, **rows))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", READ)
@pytest.mark.parametrize("options", [{}, {"max_images": 0}, {"language_model_only": True}], ids=str)
def test_of_every_image_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: dict[str, Any]
) -> None:
    """To the byte: its weights, and the outputs that it keeps."""
    make_multimodal_checkpoint(tmp_path, kind)
    facts = facts_of(tmp_path)
    given = options | rows_of(facts)
    found, plan = Measured(tmp_path, monkeypatch, **given), planned(tmp_path, **given)
    check(plan, found)
    assert found.weights == plan.weights_bytes
    assert facts.vision is not None
    parts = {
        part.name: part.size_bytes for part in held_parts(facts, planned_options(**options), DEVICE)
    }
    sizes = found.encoder, found.outputs
    assert sizes == (parts.get("image encoder", 0), parts.get("outputs of images", 0))
    kept_tokens = 8 * OPTIONS["max_model_len"]
    whole = 4 * facts.vision.parameters, 4 * facts.vision.row_size * kept_tokens
    assert sizes == ((0, 0) if options else whole)


@pytest.mark.parametrize("kind", READ)
def test_of_the_activations_at_the_largest_image(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """To the byte, where they are more than the decoder's."""
    make_multimodal_checkpoint(tmp_path, kind, vision=WIDE[kind])
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64}
    found, plan = Measured(tmp_path, monkeypatch, **options), planned(tmp_path, **options)
    report, vision = found.report, facts_of(tmp_path).vision
    assert vision is not None
    activations = vision.activation_bytes(OPTIONS["max_model_len"], 4)
    assert report.peak_bytes - report.weights_bytes == CPU_RUNTIME_BYTES + activations
    assert plan.device.reserve_bytes == CPU_RUNTIME_BYTES + activations
    assert report.num_blocks == plan.num_blocks


@pytest.mark.parametrize("name", LLAMA4_LAYOUTS)
def test_of_quantised_experts_in_modules_and_in_stacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    quantised, plain = make_quantised_llama4(tmp_path, name)
    text = {"language_model_only": True}  # the encoder is not quantised
    check(planned(quantised, **text), Measured(quantised, monkeypatch, **text))
    stored = Measured(quantised, monkeypatch, backend="torch_ref", **text)
    facts = replace(facts_of(quantised), vision=None, weight_dtype_bytes=4)
    assert stored.weights == facts.weight_bytes() + stored.tables
    assert stored.weights < 0.75 * planned(plain, **text).weights_bytes


@pytest.mark.parametrize("dtype", ["bf16", "fp8", "fp32"])
def test_of_every_type_of_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str
) -> None:
    folder = make_tiny_checkpoint(tmp_path, "gemma3", layers=3)
    options = {"kv_cache_dtype": dtype}
    check(planned(folder, **options), Measured(folder, monkeypatch, **options))


FORMATS = [(name, "qwen3") for name in LAYOUTS] + [
    ("fp8-blocks", "qwen3_moe"),
    ("awq", "qwen3_moe"),
    ("fp8-blocks", "deepseek3"),
    ("mxfp4", "gpt_oss"),
]
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
EXTRA = {
    "qwen3_moe": EXPERTS,
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "deepseek3": {
        "n_routed_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64,
        "first_k_dense_replace": 1, "q_lora_rank": 64, "kv_lora_rank": 64, "v_head_dim": 32,
        "qk_nope_head_dim": 32, "n_group": 4, "topk_group": 2,
    },
}  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize(("name", "architecture"), FORMATS, ids=str)
def test_of_every_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, architecture: Any
) -> None:
    """The CPU's backends expand matrices, which the operator's plan counts; the reference keeps
    them as the checkpoint has them, as a GPU does."""
    layout = LAYOUTS.get(name, GPT_OSS_LAYOUT)
    folder, _ = make_quantised_checkpoint(
        tmp_path,
        layout,
        architecture,
        leave="self_attn" if layout is GPT_OSS_LAYOUT else None,
        extra=EXTRA.get(architecture),
    )
    check(planned(folder), Measured(folder, monkeypatch))
    stored = Measured(folder, monkeypatch, backend="torch_ref")
    config = json.loads((folder / "config.json").read_text())
    lookup = facts_from_text(json.dumps(config), "config.json")
    assert lookup.facts is not None
    as_stored = replace(lookup.facts, weight_dtype_bytes=4).weight_bytes() + stored.tables
    assert stored.weights == pytest.approx(as_stored, rel=WITHIN)
    assert stored.weights < 0.75 * planned(folder).weights_bytes
